"""MuLo-SD: bands counted by hand, the target's distribution where no draft stays, two scales, bad settings."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.backbone import Backbone, EncodedPrompt
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.core.canvas import Canvas
from stridebench.harness.core.clock import CpuClock, Stopwatch
from stridebench.harness.core.draws import SeededDraws, Stream
from stridebench.harness.core.loop import Decode, advance, decode
from stridebench.harness.core.models import Models
from stridebench.harness.core.run import Run, open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.session import Session
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import ContractError, UsageError, WeightsError
from stridebench.harness.plan import presets
from stridebench.harness.plan.expand import expand
from stridebench.harness.plan.resolve import resolve
from stridebench.harness.plan.yaml_lines import Lines
from stridebench.harness.record.store import Store
from stridebench.harness.run.executors import serial
from stridebench.harness.run.loading import Options
from stridebench.harness.train.recipe import save_bf16
from stridebench.methods.drafters.scales import Pair, Samplers, SamplerShape
from stridebench.methods.mulo_sd import MuLoSD, neighbour_count

PROMPT = (0, 1)
PLAIN, CLOSED = (4, 4), (4, 4, 4)
GRIDS = pytest.mark.parametrize("grid", [PLAIN, CLOSED], ids=["plain", "closed"])


class UniformTarget(Cache):
    """Uniform distributions, but at one place a single possible id; records the places that each pass reads."""

    def __init__(self, model: Tabular, only: tuple[int, int] | None) -> None:
        self.model, self.only, self.windows = model, only, list[list[int]]()

    def extend(self, window: Window) -> Rows:
        assert self.model.grammar is not None
        places = [place - len(PROMPT) for place in window.positions.tolist()]
        self.windows += [places] if window.rows else []
        logits = self.model.grammar(window.positions[len(places) - window.rows :] + 1 - len(PROMPT))
        for row, place in zip(logits, places[len(places) - window.rows :], strict=True):
            if self.only and self.only[0] == place + 1:
                row[torch.arange(len(row)) != self.only[1]] = -inf
        return Rows(logits)

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        """It has no entries."""


def tabular(grid: Sequence[int], seed: int = 0) -> Tabular:
    return Tabular("tabular", {"vocabulary": 5, "grid": grid, "context": 400, "seed": seed})


class Recorded(NamedTuple):
    """A decode and the places that its passes read."""

    result: Decode
    windows: list[list[int]]


def decoded(
    method: MuLoSD, grid: Sequence[int], only: tuple[int, int] | None = None, budget: int | None = None
) -> Recorded:
    """A decode whose target is uniform but for ``only``, a place and its one possible id."""
    model = tabular(grid)
    assert model.capabilities.grid is not None
    cache, length = UniformTarget(model, only), model.capabilities.grid.length if budget is None else budget
    models = Models(model, model_of(model), PROMPT, encoded=EncodedPrompt(PROMPT, lambda: cache))
    run = Run.of(models, Sampling(1.0), length, SeededDraws(0, "t", "p", 0))
    return Recorded(decode(method, run), cache.windows)


def model_of(model: Backbone) -> Any:
    """Opens any drafter as the model itself; a toy is then made smaller."""
    return lambda name: model


class TestBands:
    @GRIDS
    def test_at_tau_zero_every_draft_stays(self, grid: tuple[int, ...]) -> None:
        """Two bands of two rows: one pass each, and one drafter pass for each of 2 small cells."""
        result, windows = decoded(MuLoSD(band=2, tau=0.0), grid)
        assert [(s.nfe, s.draft_nfe, s.resampled) for s in result.steps] == [(1, 2, 0)] * 2
        assert [s.emitted for s in result.steps] == [len(result.tokens) // 2] * 2
        if grid == PLAIN:
            assert windows == [list(range(-1, 7)), list(range(7, 15))]
        else:
            assert windows == [list(range(-1, 8)), list(range(8, 18))]
            assert result.tokens[4::5] == (4,) * 4 and [s.forced for s in result.steps] == [2, 2]

    @GRIDS
    def test_a_draft_of_repeat_is_a_block_of_equal_tokens(self, grid: tuple[int, ...]) -> None:
        tokens, stride = decoded(MuLoSD(tau=0.0), grid).result.tokens, 4 + (grid == CLOSED)
        rows = [tokens[first : first + 4] for first in range(0, 4 * stride, stride)]
        assert rows[0] == rows[1] and rows[2] == rows[3] and rows[0] != rows[2]
        assert all(row[0] == row[1] and row[2] == row[3] for row in rows)

    @GRIDS
    def test_at_tau_inf_no_draft_stays_and_each_cell_takes_a_pass(self, grid: tuple[int, ...]) -> None:
        result, windows = decoded(MuLoSD(band=2, tau=inf), grid)
        assert [(s.nfe, s.draft_nfe, s.resampled) for s in result.steps] == [(8, 2, 8)] * 2
        again = [[n] for n in range(6)] if grid == PLAIN else [[0], [1], [2], [3, 4], [5], [6], [7]]
        assert windows[1:7] == again[:6]

    def test_a_rejection_spreads_over_its_surroundings(self) -> None:
        """Cell (1, 1) of 4 x 4 with radius 1: three rows of three; each new token is read before the next is drawn."""
        for grid, place, fed in (
            (PLAIN, 5, [[0], [1], [2, 3], [4], [5], [6, 7], [8], [9]]),
            (CLOSED, 6, [[0], [1], [2, 4], [5], [6], [7, 9], [10], [11]]),
        ):
            method = MuLoSD(radius=1, delta=0.0)
            draft = decoded(method, grid).result.tokens
            only = (draft[place] + 1) % 4
            result, windows = decoded(method, grid, (place, only))
            assert [(s.nfe, s.draft_nfe, s.resampled) for s in result.steps] == [(9, 4, 9)]
            assert windows[1:] == fed and result.tokens[place] == only
            stride = 4 + (grid == CLOSED)
            unchanged = [n for n in range(len(draft)) if n // stride == 3 or n % stride == 3]
            assert [result.tokens[n] for n in unchanged] == [draft[n] for n in unchanged]

    @pytest.mark.parametrize(
        ("window", "fed"), [(1, [[0, 3], [1, 4], [2, 5], [3, 6]]), (2, [[0], [1, 3], [2, 4], [3, 5], [6]])]
    )
    def test_rows_are_drawn_again_side_by_side(self, window: int, fed: list[list[int]]) -> None:
        """A band of 2 x 4, none of which stays: row 1 follows w cells behind row 0.

        The band's own pass gives the distribution of the first cell. Every later pass reads the new tokens and the
        tokens before its cells, such as the last draft of row 0 before row 1.
        """
        result, windows = decoded(MuLoSD(band=2, tau=inf, window=window), PLAIN)
        assert windows[1 : len(fed) + 1] == fed
        assert [s.resampled for s in result.steps] == [8, 8]
        assert [s.nfe for s in result.steps] == [len(fed) + 1] * 2

    @pytest.mark.parametrize(("window", "passes"), [(0, 4), (1, 3), (2, 4)])
    def test_the_drafters_rows_are_drawn_side_by_side(self, window: int, passes: int) -> None:
        """A band of two small rows of two: the second row's first cell behind one cell of the first, or behind both."""
        result = decoded(MuLoSD(tau=0.0, draft_window=window), CLOSED).result
        assert [(s.nfe, s.draft_nfe) for s in result.steps] == [(1, passes)]

    @pytest.mark.parametrize(("radius", "resampled"), [(0, 1), (1, 6), (2, 8), (3, 8)])
    def test_redrawn_cells_lie_in_their_band(self, radius: int, resampled: int) -> None:
        """Cell (1, 1) of a band of two rows: 1; 2 x 3; 2 x 4 and no more. The first redrawn cell takes no pass."""
        method = MuLoSD(band=2, radius=radius, delta=0.0)
        draft = decoded(method, PLAIN).result.tokens
        steps = decoded(method, PLAIN, (5, (draft[5] + 1) % 4)).result.steps
        assert [(s.nfe, s.resampled) for s in steps] == [(resampled, resampled), (1, 0)]

    @pytest.mark.parametrize(("recompute", "read"), [(False, [6, 7]), (True, list(range(8)))])
    def test_the_next_band_reads_new_tokens_or_all_that_follow(self, recompute: bool, read: list[int]) -> None:
        method = MuLoSD(band=2, radius=1, delta=0.0, recompute=recompute)
        draft = decoded(method, PLAIN).result.tokens
        windows = decoded(method, PLAIN, (5, (draft[5] + 1) % 4)).windows
        assert windows[-1] == [*read, *range(8, 15)] and len(windows) == 7

    def test_the_last_band_has_the_remaining_rows(self) -> None:
        result = decoded(MuLoSD(band=4, tau=0.0), (6, 4)).result
        assert [(s.emitted, s.draft_nfe) for s in result.steps] == [(16, 4), (8, 2)]


class RecordingDraws(SeededDraws):
    """Records each drawn token and its distribution."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, "t", "p", 0)
        self.records: list[tuple[str, Tensor, int]] = []

    def categorical(self, probs: Float[Tensor, "N V"], stream: Stream) -> Int[Tensor, " N"]:
        drawn = super().categorical(probs, stream)
        self.records += [(stream, row, int(token)) for row, token in zip(probs, drawn, strict=True)]
        return drawn


@dataclass
class RecordedDecode:
    """A decode and its draws."""

    run: Run
    tokens: tuple[int, ...]
    draws: RecordingDraws

    def distributions(self, stream: str) -> list[Tensor]:
        return [probs for kind, probs, _ in self.draws.records if kind == stream]


def decoded_with_draws(method: MuLoSD, model: Backbone, drafter: Backbone, prompt: Prompt, seed: int) -> RecordedDecode:
    assert model.capabilities.grid is not None
    draws = RecordingDraws(seed)
    run = open_run(model, model_of(drafter), prompt, Sampling(1.0), model.capabilities.grid.length, draws)
    return RecordedDecode(run, decode(method, run).tokens, draws)


def target_distributions(model: Backbone, prompt: Prompt, tokens: Sequence[int]) -> list[Tensor]:
    """The distribution of each cell given all before it, from a separate session."""
    encoded, grid = model.open(prompt), model.capabilities.grid
    assert grid is not None
    session = Session(encoded.cache(), model.capabilities, [*encoded.tokens], stopwatch=Stopwatch(CpuClock()))
    distributions = []
    for place, token in enumerate(tokens):
        probs = session.forward()[0].softmax(-1)
        distributions += [probs] if grid.forced(grid.start + place) is None else []
        session.append(torch.tensor([token]))
    return distributions


@pytest.mark.usefixtures("unchecked")
class TestOutputDistribution:
    @pytest.mark.parametrize("grid", [(6, 4), (6, 4, 4)], ids=["plain", "closed"])
    @pytest.mark.parametrize("recompute", [False, True])
    def test_over_three_bands_every_draw_is_from_the_targets_distribution(
        self, grid: tuple[int, ...], recompute: bool
    ) -> None:
        """These pictures are too large to enumerate, so every distribution of one decode is compared."""
        model, prompt = tabular(grid, 3), Prompt("p", tokens=PROMPT)
        done = decoded_with_draws(MuLoSD(band=2, tau=inf, recompute=recompute), model, model, prompt, 5)
        expected = torch.stack(target_distributions(model, prompt, done.tokens))
        torch.testing.assert_close(torch.stack(done.distributions("resid")), expected, rtol=0, atol=1e-15)

    def test_recomputed_entries_are_those_of_a_raster_pass_and_stale_ones_are_not(self) -> None:
        """After the second band: those of the first, against a canvas that read the picture in order."""
        same: dict[bool, list[bool]] = {False: [], True: []}
        for recompute, seed in itertools.product(same, range(4)):
            model = tabular(PLAIN, 3)
            run = open_run(model, model_of(model), PROMPT, Sampling(1.0), 16, SeededDraws(seed, "t", "p", 0))
            method = MuLoSD(band=2, tau=0.12, radius=0, delta=0.0, recompute=recompute)
            state = method.start(run)
            for _ in range(2):
                advance(method, run, state)
            cache = model.open(Prompt("p", tokens=PROMPT)).cache()
            fresh = Canvas(cache, model.capabilities, PROMPT, length=16, stopwatch=Stopwatch(CpuClock()))
            fresh.read(torch.tensor([PROMPT[-1], *run.canvas.output[:8]]), range(1, 10))
            same[recompute].append([entry for entry in run.canvas.cache_state if entry[0] < 10] == fresh.cache_state)
        assert all(same[True]) and not all(same[False])

    def test_the_drafter_reads_the_rows_above_as_its_own_scale(self) -> None:
        """Before the third band: D_r of two bands, which with these samplers is the mean's nearest code."""
        model = tabular((6, 4, 4), 3)
        run = open_run(model, model_of(model), PROMPT, Sampling(1.0), 30, SeededDraws(0, "t", "p", 0))
        method = MuLoSD(band=2, tau=inf)
        state = method.start(run)
        for _ in range(3):
            advance(method, run, state)
        assert model.capabilities.codebook is not None
        above = torch.tensor(run.canvas.output).view(6, 5)[:4, :4]
        y = Samplers.untrained("repeat", model.capabilities.codebook).down(above)
        expected = [token for row in y.tolist() for token in (*row, 4)]
        small = run.pictures[method.drafter]
        assert list(small.output) == expected and small.capabilities.grid.columns == 2


CODES, WORDS = 6, ("a", "cat")
CAPTION = Prompt("p", "a cat")


def preset(folder: Path, name: str, side: int, **changes: Any) -> None:
    """Writes a guided picture model with random weights."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    picture = {"rows": side, "columns": side, "codes": CODES, "words": list(WORDS), "closed": True, **changes}
    vocabulary = CODES + len(WORDS) + 2 + bool(picture["closed"])
    config = {**sizes, "vocab_size": vocabulary, "max_position_embeddings": 100, "picture": picture}
    config |= {"initializer_range": 0.5, "bos_token_id": None, "eos_token_id": None}
    body = {"adapter": "image", "guidance": 2.0, "licence": "Apache-2.0", "note": "a test"}
    body["source"] = {"random": {"model_type": "llama", "config": config, "seed": side}}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(body))


@pytest.fixture()
def scales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with presets ``large`` of 4 x 4 cells, ``small`` of 2 x 2 and samplers ``pair`` for their codes."""
    preset(tmp_path, "large", 4)
    preset(tmp_path, "small", 2)
    monkeypatch.setenv("STRIDE_PRESETS", str(tmp_path))
    torch.manual_seed(0)
    pair = Pair(SamplerShape(2, CODES, 1, 8, 1))
    pair.codebook.copy_(torch.linspace(0, 1, CODES)[:, None])
    (tmp_path / "pair").mkdir()
    save_bf16(pair, tmp_path / "pair")
    pair.write_config(tmp_path / "pair")
    return tmp_path


class TestTwoModels:
    @pytest.mark.parametrize("recompute", [False, True])
    def test_guided_models_draw_from_the_targets_distribution_where_no_draft_stays(
        self, scales: Path, recompute: bool
    ) -> None:
        large, small = (presets.load(name, "fp32") for name in ("large", "small"))
        method = MuLoSD("small", str(scales / "pair"), band=2, tau=inf, recompute=recompute)
        done = decoded_with_draws(method, large, small, CAPTION, 1)
        with torch.inference_mode():
            expected = target_distributions(large, CAPTION, done.tokens)
        torch.testing.assert_close(
            torch.stack(done.distributions("resid")).float(), torch.stack(expected), rtol=0, atol=1e-5
        )
        assert len(done.distributions("draft")) == 4

    def test_the_drafter_draws_from_its_own_distribution(self, scales: Path) -> None:
        large, small = (presets.load(name, "fp32") for name in ("large", "small"))
        done = decoded_with_draws(MuLoSD("small", "repeat", tau=0.0), large, small, CAPTION, 1)
        y = [token for kind, _, token in done.draws.records if kind == "draft"]
        with torch.inference_mode():
            expected = target_distributions(small, CAPTION, [y[0], y[1], CODES + 4, y[2], y[3], CODES + 4])
        torch.testing.assert_close(
            torch.stack(done.distributions("draft")).float(), torch.stack(expected), rtol=0, atol=1e-5
        )

    @pytest.mark.parametrize("closed", [True, False])
    def test_side_by_side_the_drafter_reads_the_token_before_a_row(self, scales: Path, closed: bool) -> None:
        """The first cell of the second row is drawn after an end of row, or after the first cell of the first row."""
        preset(scales, "large", 4, closed=closed)
        preset(scales, "small", 2, closed=closed)
        large, small = (presets.load(name, "fp32") for name in ("large", "small"))
        done = decoded_with_draws(MuLoSD("small", "repeat", tau=0.0, draft_window=1), large, small, CAPTION, 1)
        y = [token for kind, _, token in done.draws.records if kind == "draft"]
        assert len(y) == 4 and done.run.pictures["small"].passes == 3
        encoded = small.open(CAPTION)
        canvas = Canvas(encoded.cache(), small.capabilities, encoded.tokens, length=6, stopwatch=Stopwatch(CpuClock()))
        first, row = canvas.start, 2 + closed
        fed = torch.tensor([encoded.tokens[-1], y[0], CODES + 4 if closed else y[0]])
        with torch.inference_mode():
            expected = canvas.read(fed, [first - 1, first, first + row - 1]).softmax(-1)
        torch.testing.assert_close(torch.stack(done.distributions("draft")[:3]).float(), expected, rtol=0, atol=1e-5)

    def test_samplers_are_timed_as_drafting(self, scales: Path) -> None:
        large, small = (presets.load(name, "fp32") for name in ("large", "small"))
        run = open_run(large, model_of(small), CAPTION, Sampling(1.0), 20, SeededDraws(0, "t", "p", 0))
        method = MuLoSD("small", str(scales / "pair"), band=2)
        state = method.start(run)
        for calls in (3, 4):
            run.stopwatch.spans = []
            advance(method, run, state)
            kinds = [span.kind for span in run.stopwatch.spans if span.kind in ("draft", "target")]
            assert kinds[: calls + 1] == ["draft"] * calls + ["target"], "U_r and two small cells; then D_r too"

    @pytest.mark.usefixtures("unchecked")
    def test_a_run_ends_with_its_counts_and_a_verdict(self, scales: Path) -> None:
        method = {"name": "mulo_sd", "drafter": "small", "tau": 0.0}
        store = run_suite(scales, [{**method, "samplers": str(scales / "pair")}, {**method, "samplers": "nowhere"}])
        cells = [cell for cell in map(store.cell, store.cells()) if "mulo" in cell.meta.label]
        missing, done = sorted(cells, key=lambda cell: cell.meta.status == "done")
        assert missing.meta.status == "skipped"
        assert "no samplers 'nowhere'" in missing.meta.reason
        assert set(done.samples["status"]) == {"ok"} and done.meta.verdict.word == "approximate"
        stages = [json.loads(one) for one in done.samples["stages"]]
        assert all(min(one.values()) > 0 and {"up", "score", "judge", "redraw"} <= set(one) for one in stages)
        counted = done.steps[~done.steps["warmup"].astype(bool)]
        assert (counted["resampled"].tolist(), counted["draft_nfe"].tolist()) == ([0], [4])


def run_suite(folder: Path, methods: list[dict[str, Any]]) -> Store:
    (folder / "PartiPrompts.tsv").write_text("Prompt\tCategory\tChallenge\tNote\na cat\tAnimals\t\t\n")
    settings = {
        "methods": methods,
        "backbones": ["large"],
        "tasks": [{"name": "partiprompts", "file": str(folder / "PartiPrompts.tsv")}],
        "max_new_tokens": 99,
        "temperature": [1.0],
        "warmup": 1,
        "greedy_check": {"prompts": 0},
    }
    plan = expand(resolve(settings, Lines("test", None)))
    store = Store.create(folder / "run", {**plan.manifest(), "provenance": {}})
    serial(plan, store, Options(fetch=False))
    return store


class TestBadInput:
    @pytest.mark.parametrize("grid", [(3, 4), (4, 3)])
    def test_a_picture_that_is_no_multiple_of_the_drafters_is_refused(self, grid: tuple[int, ...]) -> None:
        with pytest.raises(UsageError, match=rf"the target {grid[0]} x {grid[1]}: at factor 2 the drafter's are 1/2"):
            decoded(MuLoSD(), grid)

    def test_a_drafter_of_another_size_or_other_codes_is_refused(self, scales: Path) -> None:
        large = presets.load("large", "fp32")
        with pytest.raises(UsageError, match=r"the drafter 'self' makes pictures of 4 x 4 cells and the target 4 x 4"):
            decoded_with_draws(MuLoSD("self", "repeat"), large, large, CAPTION, 0)
        small = presets.load("small", "fp32")
        small.capabilities = replace(small.capabilities, codebook=small.capabilities.codebook.flip(0))
        with pytest.raises(UsageError, match="the drafter 'small' has other codes than the target"):
            decoded_with_draws(MuLoSD("small", "repeat"), large, small, CAPTION, 0)
        small.capabilities = replace(small.capabilities, grid=None)
        with pytest.raises(UsageError, match="the drafter 'small' makes no pictures"):
            decoded_with_draws(MuLoSD("small", "repeat"), large, small, CAPTION, 0)

    def test_samplers_that_are_missing_or_do_not_fit_are_refused(self, scales: Path) -> None:
        preset(scales, "tall", 8)
        tall, large, small = (presets.load(name, "fp32") for name in ("tall", "large", "small"))
        with pytest.raises(WeightsError, match=r"no samplers 'mulo-9x' .*no recipe of .stride train samplers. is for"):
            decoded_with_draws(MuLoSD("small", "mulo-9x"), large, small, CAPTION, 0)
        with pytest.raises(UsageError, match="are of factor 2, and the method's is 4"):
            decoded_with_draws(MuLoSD("small", str(scales / "pair"), factor=4), tall, small, CAPTION, 0)
        other = Pair(SamplerShape(2, CODES + 1, 1, 8, 1))
        save_bf16(other, scales / "pair")
        other.write_config(scales / "pair")
        with pytest.raises(WeightsError, match="was trained for a codebook of 7 codes"):
            decoded_with_draws(MuLoSD("small", str(scales / "pair")), large, small, CAPTION, 0)

    def test_more_tokens_than_a_picture_are_refused(self) -> None:
        with pytest.raises(ContractError, match="asked for 17 tokens of a picture of 16"):
            decoded(MuLoSD(), PLAIN, budget=17)

    @pytest.mark.parametrize(("name", "window", "most"), [("window", 5, 4), ("draft_window", 3, 2)])
    def test_a_window_wider_than_a_row_is_refused(self, name: str, window: int, most: int) -> None:
        with pytest.raises(UsageError, match=f"mulo_sd: {name} is {window} and rows have {most} cells"):
            decoded(MuLoSD(**{name: window}), PLAIN)

    def test_the_default_k_is_the_papers_share(self) -> None:
        assert [neighbour_count(0, codes) for codes in (16384, 1024, 64, 5, 2, 1)] == [1000, 62, 4, 1, 1, 0]
        assert (neighbour_count(7, 16384), neighbour_count(7, 5)) == (7, 4)
