"""`stride run SUITE --tiny`: the papers' suites at published settings, on tiny models of random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stridebench.harness import discover
from stridebench.harness.backbones import tiny
from stridebench.harness.errors import PackageMissing, UsageError
from stridebench.harness.plan import presets, resolve, tiny_suite
from stridebench.harness.plan.expand import expand
from stridebench.harness.registry import METHODS
from stridebench.harness.train import tiny_components
from tests.support.cli import stride

SUITES = [name for name in resolve.commands() if name.endswith(("real", " 500"))]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins are written into a folder that the tests of this file share."""
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path_factory.getbasetemp() / "tiny-cache"))


def test_published_models_become_stand_ins_and_the_settings_stay() -> None:
    overrides = resolve.Overrides(tiny=True)
    shrunk = resolve.of_command("papers/adt_tree --only real", overrides)
    whole = resolve.of_command("papers/adt_tree --only real")
    assert [entry.name for entry in shrunk.suite.backbones] == [f"tiny:{entry.name}" for entry in whole.suite.backbones]
    assert shrunk.methods == whole.methods
    assert {use.limit for use in shrunk.tasks} == {1} and shrunk.suite.max_new_tokens == 40
    assert resolve.of_command("quantized", overrides).suite.threads == 1
    assert (resolve.of_command("quantized").suite.threads or 0) > 1
    own = resolve.load("papers/sjdpp", overrides)
    assert [entry.name for entry in own.suite.backbones] == ["embedded-image"]


def test_settings_that_small_pictures_and_short_canvases_do_not_have_shrink() -> None:
    """Windows wider than four cells, and steps with the canvas; those of models of the package stay."""
    windows = {
        (METHODS.name_of(type(use.method)), use.method.window)
        for name in ("papers/sjdpp --only real", "papers/mulo_sd --only 500")
        for use in resolve.of_command(name, resolve.Overrides(tiny=True)).uses
        if METHODS.name_of(type(use.method)) == "zipar"
    }
    assert windows == {("zipar", 2), ("zipar", 8)}
    steps = [
        use.method.steps
        for use in resolve.of_command("papers/cross_regression --only real", resolve.Overrides(tiny=True)).uses
        if METHODS.name_of(type(use.method)) == "masked_diffusion"
    ]
    assert steps == [40, 10, 5, 40, 10, 5, 40, 2, 1], "twice 1024, 256, 128, and 1024, 64, 16 of 1024 tokens"
    more = resolve.of_command("quick", resolve.Overrides({"repetitions": 3}, limit=2, tiny=True)).tasks
    assert {(use.limit, use.repetitions) for use in more} == {(2, 3)}
    pictures = resolve.of_command("papers/mulo_sd --only 500", resolve.Overrides(tiny=True)).tasks
    assert {use.max_new_tokens for use in pictures} == {8192} and {use.limit for use in pictures} == {1}


def test_a_drafter_of_the_targets_layers_has_no_more_than_a_stand_in() -> None:
    plain: dict[str, Any] = {
        "backbones": [{"name": "smollm2-135m"}],
        "methods": [{"name": "speculative", "drafter": "self:layers=26"}, {"name": "sjd", "window": 8}],
    }
    tiny_suite.shrink(plain)
    assert plain["methods"] == [{"name": "speculative", "drafter": "self:layers=2"}, {"name": "sjd", "window": 8}]


def test_a_model_without_a_stand_in_is_one_message() -> None:
    with pytest.raises(UsageError, match="embedded-code has no tiny stand-in"):
        presets.resolve("tiny:embedded-code")


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_of_a_paper_plans_on_its_own_models_and_on_stand_ins(name: str) -> None:
    for more in ((), ("--tiny",)):
        cells = stride("run", *name.split(), "--dry-run", "--json", *more).document["cells"]
        published = [cell for cell in cells if cell["backbone"] != "embedded-image"]
        assert published and all(cell["backbone"].startswith(tiny.PREFIX) == bool(more) for cell in published)
    reasons = {str(cell["reason"]) for cell in cells if cell["outcome"] == "cannot"}
    assert all("HIDDEN" in reason or "T = 0" in reason or "suite keeps" in reason for reason in reasons), reasons


def ran(name: str, out: Path, *words: object) -> None:
    """Run a suite; no sample fails and no planned cell is left."""
    outcome = stride("run", *name.split(), "--tiny", *words, "--out", out, "--json")
    assert outcome.code == 0 and outcome.document["failed"] == 0, outcome
    assert outcome.document["done"] == outcome.document["cells"] - outcome.document["skipped"] > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backbone", "task", "method"),
    [
        ("papers/cross_regression --only real", "deepseek-r1-distill-1.5b", "gsm8k", ""),
        ("papers/cross_regression --only real", "whisper-tiny-hub", "librispeech", ""),
        ("papers/cross_regression --only real", "dream-7b", "gsm8k", ""),
        ("papers/sjdpp --only real", "lumina-mgpt-7b-512", "coco", ""),
        ("papers/adt_tree --only real", "llamagen-c2i-l", "imagenet_classes", ""),
        ("papers/mulo_sd --only 500", "tar-1.5b", "coco", "{name: zipar, window: 16}"),
        ("papers/xspecmesh --only real", "bpt", "", "{name: multi_head, levels: 4}"),
    ],
)
def test_a_suite_runs_to_its_end_on_a_stand_in_of_each_family(
    name: str, backbone: str, task: str, method: str, tmp_path: Path
) -> None:
    """Without proofs, which are of toys here too; `test_a_whole_suite_runs_to_its_end_on_stand_ins` makes them."""
    words = ("--task", task, "-t", 1) if task else ()
    words += ("--method", method) if method else ()
    ran(name, tmp_path / "run", "--backbone", backbone, "--set", "prove=false", "--set", "warmup=0", *words)


@pytest.mark.audit
@pytest.mark.parametrize("name", SUITES)
def test_a_whole_suite_runs_to_its_end_on_stand_ins(name: str, tmp_path: Path) -> None:
    ran(name, tmp_path / "run")
    assert (tmp_path / "run/report/papers.md").read_text()


def test_cells_whose_training_needs_a_package_are_skipped_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows C and E of XSpecMesh need peft; the other rows run."""

    def train(recipe: str, *_: object) -> None:
        if recipe.endswith("-lora"):
            raise PackageMissing("low-rank training needs peft: pip install x")

    monkeypatch.setattr(tiny_components, "_train", train)
    monkeypatch.setattr(discover, "is_here", lambda *_: False)
    plan = expand(resolve.of_command("papers/xspecmesh --only real", resolve.Overrides(tiny=True)))
    trained = tiny_components.make(plan, lambda _: None)
    skipped = {cell.backbone for cell in trained.cells if str(cell.skip).startswith("low-rank training needs peft")}
    assert skipped == {cell.backbone for cell in plan.runnable if ":lora=" in cell.backbone} != set()
    assert {cell.backbone for cell in trained.runnable} == {cell.backbone for cell in plan.runnable} - skipped


def test_what_an_earlier_stand_in_trained_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    folder = discover.trained("medusa-tiny:llama2-7b")
    for fingerprint, kept in (("of other weights", False), (tiny_components._fingerprint("tiny:llama2-7b"), True)):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"fingerprint": fingerprint}))
        tiny_components._forget_other_weights("medusa", "tiny:llama2-7b", tuned=False)
        assert folder.is_dir() == kept
