"""MuLo-SD's samplers for any model of pictures: trained on a tiny Tar, started from others, and decoded with."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from stridebench.harness import discover
from stridebench.harness.errors import ContractError, UsageError, WeightsError
from stridebench.harness.plan import presets
from stridebench.harness.plan.compatibility import Outcomes
from stridebench.harness.train.general import general
from stridebench.harness.train.loop import train
from stridebench.harness.train.pictures import PicturePlan
from stridebench.methods.drafters.scales import Pair, SamplerShape, bilinear
from stridebench.methods.mulo_sd import MuLoSD
from stridebench.methods.training.scales.general import PAPER, AnySamplers, InOrder
from tests.support.cli import stride

TAR = "tiny:tar-1.5b"
SMALL = {"steps": 2, "batch": 2, "width": 16, "blocks": 1}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRIDE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five pictures of different sizes with captions."""
    home, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number in range(5):
        pixels = random.integers(0, 256, (20 + number, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(home / f"{number}.png")
        (home / f"{number}.txt").write_text(f"a cat {number}\n")
    return home


def built(backbone: str, folder: Path, **settings: object) -> AnySamplers:
    kind = "mulo-4x" if settings.pop("four", False) else "mulo-2x"
    recipe = general(kind, backbone, PicturePlan(folder, dtype="fp32"), {**SMALL, **settings})
    assert isinstance(recipe, AnySamplers)
    return recipe


@pytest.mark.slow
def test_samplers_of_a_folder_serve_a_decode(folder: Path, tmp_path: Path) -> None:
    """The command that the matrix and `stride paper list` print, two steps, and a run that finds its result."""
    method = MuLoSD(drafter="tiny:tar-1.5b-256")
    before = Outcomes().of(method, presets.resolve(TAR))
    assert before.word == "needs a part" and before.command == f"stride train mulo-2x --backbone {TAR} --data FILE"
    words = before.command.replace("FILE", str(folder)).split()[1:]
    settings = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    assert stride(*words, *settings, "--dtype", "fp32", "--json").document["finished"]
    assert Outcomes().of(method, presets.resolve(TAR)).word == "runs"
    task = f"{{name: imagenet_classes, limit: 1, file: {discover.SAMPLES / 'imagenet_classes.json'}}}"
    run = ("run", "--backbone", TAR, "--task", task, "--set", "prove=false", "--out", tmp_path / "run", "-t", 1)
    run += ("--set", "warmup=0", "--set", "timing=false", "--set", "greedy_check={prompts: 0}")
    outcome = stride(*run, "--method", "{name: mulo_sd, drafter: 'tiny:tar-1.5b-256', k: 8}", "--json")
    assert outcome.code == 0 and outcome.document["failed"] == 0 and outcome.document["skipped"] == 0, outcome


@pytest.mark.slow
def test_samplers_at_factor_4_start_from_those_at_factor_2(folder: Path, tmp_path: Path) -> None:
    small = train("mulo-2x", built("tiny:tar-1.5b-1024", folder), tmp_path / "2", {})
    recipe = built("tiny:tar-1.5b-1024", folder, four=True, more=1)
    model = recipe.build({"mulo-2x": small.folder})
    x = torch.randn(1, model.pair.shape.code_width, 3, 3)
    first = Pair.load(small.folder)
    torch.testing.assert_close(model.pair.up(x), bilinear(first.up(x), 2))
    done = train("mulo-4x", recipe, tmp_path / "4", {"mulo-2x": small.folder})
    assert done.finished and Pair.load(done.folder).shape.factor == 4
    with pytest.raises(WeightsError, match="the samplers to start from are"):
        built("tiny:tar-1.5b-1024", folder, four=True, width=32).build({"mulo-2x": small.folder})


def test_equation_9_whole_reaches_every_net(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in of LPIPS, whose weights are not here."""
    seen = []

    class LPIPS(torch.nn.Module):
        def __init__(self, net: str) -> None:
            super().__init__()

        def forward(self, painted: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
            seen.append(painted.shape)
            return (painted - pixels).abs().mean((1, 2, 3))

    monkeypatch.setitem(sys.modules, "torchmetrics.functional.image.lpips", types.SimpleNamespace(_LPIPS=LPIPS))
    recipe = built(TAR, folder, lpips=1.0, gan=0.25, gan_from=0.0)
    torch.manual_seed(0)
    model = recipe.build({})
    recipe.loss(model, 0, np.random.default_rng(0)).backward()
    assert seen == [(2, 3, 16, 16), (2, 3, 8, 8)]
    trained = [*model.pair.up.parameters(), *model.pair.down.parameters(), *model.critics.parameters()]
    assert all(weight.grad is not None for weight in trained)
    late = built(TAR, folder, gan=0.25, gan_from=0.5)
    model.critics.zero_grad()
    late.loss(model, 0, np.random.default_rng(0)).backward()
    assert all(weight.grad is None for weight in model.critics.parameters())


def test_the_papers_schedule_has_20_and_30_million_parameters() -> None:
    recipe = general("mulo-2x", TAR, PicturePlan(Path("x")), {"schedule": "paper", "batch": 3})
    assert isinstance(recipe, AnySamplers)
    assert (recipe.steps, recipe.rate, recipe.lpips, recipe.gan, recipe.batch) == (150_000, 3e-4, 1.0, 0.25, 3)
    for shape, millions in ((SamplerShape(2, 16, 8, 960, 4), 20), (SamplerShape(4, 16, 8, 960, 4, 2), 30)):
        with torch.device("meta"):
            count = sum(weight.numel() for weight in Pair(shape).up.parameters())
        assert abs(count / 1e6 - millions) < 2.5
    assert general("mulo-4x", TAR, PicturePlan(Path("x")), {"schedule": "paper"}).batch == 8
    assert PAPER["steps"] * recipe.gan_from == 20_000


def test_codes_count_as_in_decoding(folder: Path) -> None:
    """Chameleon's ids are not in the order of its codes."""
    backbone = presets.load("tiny:anole-7b", "fp32")
    tokenizer, order = backbone.tokenizer(), InOrder(backbone)
    torch.testing.assert_close(order.codebook, backbone.capabilities.codebook.float())
    pictures = torch.randint(0, 256, (1, 8, 8, 3), dtype=torch.uint8)
    codes, places = tokenizer.encode(pictures), order.encode(pictures)
    assert not torch.equal(codes, places)
    torch.testing.assert_close(order.codebook[places], tokenizer.codebook[codes])


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["anole-7b", "lumina-mgpt-7b-512", "janus-pro-1b", "emu3-gen", "tar-1.5b"])
def test_pictures_are_data_of_drafters(backbone: str, folder: Path) -> None:
    """The passage ends with the picture's tokens, forced ones included; a drafter learns from it."""
    plan = PicturePlan(folder, limit=2, dtype="fp32")
    passages = plan.passages(f"tiny:{backbone}")
    model, passage = passages.teacher.backbone, passages.train[0]
    grid, written = model.capabilities.grid, passage.tokens[passage.start :]
    assert len(written) == grid.length and model.decode(written).pixels.shape[2] == 3
    recipe = general("eagle1", f"tiny:{backbone}", plan, {"steps": 1})
    assert np.isfinite(recipe.loss(recipe.build({}), 0, np.random.default_rng(0)).item())


class TestBadInput:
    def test_a_picture_without_a_caption(self, folder: Path, tmp_path: Path) -> None:
        for number in range(2):
            (tmp_path / f"{number}.png").write_bytes((folder / f"{number}.png").read_bytes())
        with pytest.raises(UsageError, match=r"0\.png has no caption.*metadata\.jsonl"):
            PicturePlan(tmp_path, dtype="fp32").passages(TAR)

    def test_a_file_that_is_no_picture(self, tmp_path: Path) -> None:
        for number in range(2):
            (tmp_path / f"{number}.png").write_text("no picture")
        recipe = built(TAR, tmp_path)
        with pytest.raises(UsageError, match=r"0\.png cannot be read as a picture"):
            recipe.loss(recipe.build({}), 0, np.random.default_rng(0))

    @pytest.mark.parametrize("line", ['{"text": "a"}', "[]", '{"file_name": "gone.png"}', "{", '{"file_name": 3}'])
    def test_a_line_of_captions(self, line: str, tmp_path: Path) -> None:
        (tmp_path / "metadata.jsonl").write_text(line)
        with pytest.raises(UsageError, match=r"metadata\.jsonl:1: "):
            PicturePlan(tmp_path).sides()

    def test_a_folder_of_one(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="has 0 pictures; give two or more"):
            PicturePlan(tmp_path).sides()

    def test_a_backbone_of_texts(self, folder: Path) -> None:
        with pytest.raises(UsageError, match="tiny:llama2-7b makes no pictures"):
            PicturePlan(folder, dtype="fp32").passages("tiny:llama2-7b")

    def test_one_stage_cannot_be_started_from_another(self) -> None:
        with pytest.raises(ContractError, match="one stage"):
            Pair(SamplerShape(2, 16, 8)).warm_start(Pair(SamplerShape(2, 16, 8)))

    def test_a_factor_that_does_not_divide_the_cells(self, folder: Path) -> None:
        with pytest.raises(UsageError, match="which 3 does not divide"):
            built(TAR, folder, factor=3).build({})


def test_what_the_package_has_serves_its_own_backbones_alone() -> None:
    assert discover.is_here("samplers", "mulo-2x", "embedded-image")
    assert not discover.is_here("samplers", "mulo-2x", "tiny:tar-1.5b-nosuch")
