"""What becomes of every method on every backbone, and whether the commands that are printed can be followed."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stridebench.harness import discover
from stridebench.harness.cli.list import matrix_rows
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.discover import declare_all, load_recipes
from stridebench.harness.errors import WeightsError
from stridebench.harness.plan import presets
from stridebench.harness.plan.compatibility import PUBLISHED, WORDS, Outcome, Outcomes, incompatibility
from stridebench.harness.registry import GENERAL_RECIPES, METHODS, RECIPES
from stridebench.harness.train import loop
from tests.support.cli import stride

TRAIN = re.compile(r"stride train (\w+) ([\w.-]+) --out (\S+)")
DATA = r"(?:FILE|tabular|shapes|utterances|'\{name: point_clouds, folder: FOLDER\}')"
GENERAL = re.compile(
    rf"stride train ([\w-]+) --backbone (\S+) --data {DATA}(?: --set 'layers=\[\d+, \d+\]' --out (\S+))?"
)
CLOUDS = "'{name: point_clouds, folder: FOLDER}'"
FETCH = re.compile(r"stride fetch (\S+)")
HUB = re.compile(r"hf download (\S+) --local-dir (\S+)")


@pytest.fixture(scope="module")
def pairs() -> list[dict[str, Any]]:
    declare_all()
    return matrix_rows()


def outcome(method: str, backbone: str) -> Outcome:
    declare_all()
    return Outcomes().of(METHODS.get(method)(), presets.resolve(backbone))


def test_every_printed_command_can_be_followed(pairs: list[dict[str, Any]]) -> None:
    """A recipe of that kind and name exists, and what it writes is where the method looks; a fetch names a preset."""
    load_recipes()
    for row in pairs:
        assert row["outcome"] in WORDS
        assert bool(row["command"]) == (row["outcome"] in ("needs a part", "needs weights")), row
        if match := TRAIN.fullmatch(row["command"]):
            kind, name, folder = match.groups()
            assert RECIPES.get(name).kind == kind and Path(folder) == discover.shipped(name), row
        elif match := GENERAL.fullmatch(row["command"]):
            name, backbone, out = match.groups()
            part = next(part for part in METHODS.get(row["name"])().components if part[1].startswith(name))
            assert discover.general(part[0], name) and GENERAL_RECIPES.get(name).kind == part[0], row
            assert backbone == row["backbone"] and presets.resolve(backbone), row
            written = Path(out) if out else discover.trained(f"{name}-{backbone}")
            assert written == discover.trained(f"{part[1]}-{discover.plain(backbone)}"), row
        elif match := HUB.fullmatch(row["command"]):
            part = METHODS.get(row["name"])().components[0][1]
            assert match[1] == PUBLISHED[part, row["backbone"]]
            assert Path(match[2]) == discover.trained(f"{part}-{row['backbone']}")
        elif row["command"]:
            fetch = FETCH.fullmatch(row["command"])
            assert fetch is not None and fetch[1] in presets.by_name(), row
    assert {row["outcome"] for row in pairs} == set(WORDS)


def test_every_printed_command_begins_to_train(
    pairs: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line as printed, FILE being prompts: the recipe has its settings, and what it starts from is here."""
    begun: list[str] = []

    def begin(name: str, recipe: Any, folder: Path, built: dict[str, Path], *rest: Any) -> loop.Trained:
        assert set(built) == set(recipe.requires) and recipe.steps > 0
        begun.append(name)
        return loop.Trained(folder, True, recipe.steps, 0.0)

    monkeypatch.setattr(loop, "train", begin)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a\nb\n")
    commands = {row["command"] for row in pairs if row["outcome"] == "needs a part"}
    for command in sorted(commands):
        done = stride(
            *shlex.split(re.sub("FILE", str(prompts), command).replace("FOLDER", str(tmp_path)))[1:], "--json"
        )
        assert done.code == 0 and done.document["finished"], (command, done)
    assert len(begun) == len(commands) >= 30


def test_each_outcome_is_that_of_a_pair_that_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert outcome("eagle1", "tabular") == Outcome("runs"), "it makes a toy of any drafter"
    lacking = outcome("sjd", "embedded-sudoku-masked")
    assert lacking.word == "cannot" and lacking.reason and not lacking.command
    untrained = outcome("hydra", "vicuna-7b")  # its weights are to be had, and no recipe trains Hydra's heads
    assert untrained.word == "cannot" and "no recipe trains one" in str(untrained.reason)
    fetched = outcome("sjd", "emu3-gen")
    assert (fetched.word, fetched.command) == ("needs weights", "stride fetch emu3-gen")
    foreign = outcome("multi_head", "embedded-mesh-truncated")  # its weights are made first, then heads for it
    assert foreign.word == "needs weights" and "shapes-mesh-truncated" in foreign.command
    monkeypatch.setattr("stridebench.harness.discover.shipped", lambda name: tmp_path / name)
    part = outcome("eagle1", "embedded-image")
    assert part.word == "needs a part"
    assert part.command == f"stride train drafter eagle1-embedded-image --out {tmp_path / 'eagle1-embedded-image'}"


def test_a_folder_without_a_configuration_says_so(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    declare_all()
    result = Outcomes().of(METHODS.get("eagle1")(features=str(tmp_path)), presets.resolve("tiny:llama3-8b"))
    assert result.word == "cannot" and f"{tmp_path} has no config.json or adapter_config.json" in str(result.reason)


def test_heads_of_one_branch_cannot_run_on_a_guided_model() -> None:
    for backbone in ("embedded-image", "embedded-image-8x8", "embedded-image:guidance=3.0"):
        result = outcome("hydra", backbone)
        assert result.word == "cannot" and "is guided" in str(result.reason) and not result.command
    plain = outcome("hydra", "embedded-image:guidance=1.0")
    assert "guided" not in str(plain.reason)


def test_samplers_of_another_tokenizer_do_not_serve() -> None:
    declare_all()
    result = Outcomes().of(METHODS.get("mulo_sd")(drafter="tar-1.5b-256"), presets.resolve("tar-1.5b"))
    fetched = ("stride fetch tar-1.5b", "stride fetch tar-1.5b-256")
    assert result.word == "needs weights"
    assert result.commands == (*fetched, "stride train mulo-2x --backbone tar-1.5b --data FILE")
    foreign = Outcomes().of(METHODS.get("mulo_sd")(), presets.resolve("tar-1.5b"))
    assert foreign.word == "cannot" and "has other picture codes than tar-1.5b" in str(foreign.reason)


def test_a_tuned_backbone_needs_both_stages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Heads, then the decoder beside them; heads of the base model do not serve it."""
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    declare_all()
    tuned, heads = "tiny:bpt:lora=xspecmesh-cross-lora", METHODS.get("multi_head")(heads="xspecmesh-cross-lora")
    result = Outcomes().of(heads, presets.resolve(tuned))
    stages = [f"stride train xspecmesh-cross{stage} --backbone tiny:bpt --data {CLOUDS}" for stage in ("", "-lora")]
    assert (result.word, result.commands) == ("needs a part", tuple(stages))
    published = Outcomes().of(METHODS.get("autoregressive")(), presets.resolve(tuned.removeprefix("tiny:")))
    assert published.commands == ("stride fetch bpt", *(stage.replace("tiny:", "") for stage in stages))
    plain = Outcomes().of(heads, presets.resolve("tiny:bpt"))
    assert plain.word == "cannot" and "no recipe trains one" in str(plain.reason)
    elsewhere = Outcomes().of(METHODS.get("autoregressive")(), presets.resolve("tiny:bpt:lora=nowhere"))
    assert elsewhere.word == "cannot" and "low-rank matrices nowhere" in str(elsewhere.reason)


def test_samplers_of_two_stages_name_the_first_one_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    declare_all()
    method = METHODS.get("mulo_sd")(drafter="tiny:tar-1.5b-256", samplers="mulo-4x", factor=4)
    result = Outcomes().of(method, presets.resolve("tiny:tar-1.5b-1024"))
    assert result.commands == tuple(
        f"stride train mulo-{factor}x --backbone tiny:tar-1.5b-1024 --data FILE" for factor in (2, 4)
    )


@pytest.mark.parametrize(
    ("kind", "name", "backbone", "advice"),
    [
        ("drafter", "eagle1", "vicuna-7b", "to train: stride train eagle1 --backbone vicuna-7b --data FILE"),
        ("drafter", "hydra", "vicuna-7b", "no recipe of `stride train drafter` is for it"),
        ("samplers", "mulo-9x", "", "no recipe of `stride train samplers` is for it"),
        ("drafter", "medusa2", "embedded-code", "stride train drafter medusa2-embedded-code --out"),
    ],
)
def test_a_run_prints_no_command_without_a_recipe(kind: str, name: str, backbone: str, advice: str) -> None:
    with pytest.raises(WeightsError, match=re.escape(advice)):
        discover.component(kind, name, backbone)


def test_a_dry_run_tells_the_four_outcomes_apart() -> None:
    words = ("--method", "sjd", "--method", "hydra", "--backbone", "tabular", "--backbone", "emu3-gen")
    result = stride("run", *words, "--task", "tabular", "--dry-run")
    assert "skipped" not in result.out
    assert "3 runs, 0 needs a part, 0 needs weights, 3 cannot" in result.out
    cells = stride("run", *words, "--task", "tabular", "--dry-run", "--json").document["cells"]
    assert {cell["outcome"] for cell in cells} == {"runs", "cannot"} and {cell["command"] for cell in cells} == {""}


@dataclass(frozen=True)
class Drafting:
    """The attributes of a method that compatibility reads."""

    drafter: str
    drafter_shrink: int
    requirements: frozenset[Requirement] = frozenset()
    one_branch: bool = False

    def drafters(self) -> tuple[str, ...]:
        return (self.drafter,)


@pytest.fixture()
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Presets named after the rows and columns of their pictures."""
    for rows, columns in ((4, 4), (4, 8), (8, 8)):
        name = f"picture-{rows}x{columns}"
        config = {"model_type": "llama", "vocab_size": 9, "picture": {"rows": rows, "columns": columns}}
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        (tmp_path / f"{name}.yaml").write_text(f"adapter: hf_causal\nsource: {{folder: {tmp_path / name}}}\n")
    monkeypatch.setenv("STRIDE_PRESETS", str(tmp_path))


@pytest.mark.parametrize(
    ("drafter", "shrink", "reason"),
    [
        ("picture-4x4", 2, None),
        ("picture-4x4", 4, "the drafter picture-4x4 has 4x4 cells, and not 1/4 of 8x8"),
        ("picture-4x8", 2, "the drafter picture-4x8 has 4x8 cells, and not 1/2 of 8x8"),
        ("self", 2, "there is no backbone 'self'"),
        ("picture-4x4", 1, None),
    ],
)
def test_a_drafters_pictures_must_be_smaller_by_the_methods_factor(
    pictures: None, drafter: str, shrink: int, reason: str | None
) -> None:
    method: Any = Drafting(drafter, shrink)
    message = incompatibility(method, presets.by_name()["picture-8x8"])
    assert message is None if reason is None else message is not None and reason in message
