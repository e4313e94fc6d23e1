"""Puzzles of several answers: synthetic data, task, perplexity and distinct-n, and the recipes of both models."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers.utils import logging

from stridebench.harness.backbones.text.hf_causal import HFCausal
from stridebench.harness.backbones.text.masked import MaskedModel
from stridebench.harness.core.cache import Window
from stridebench.harness.core.canvas import Canvas
from stridebench.harness.core.clock import CpuClock, Stopwatch
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt, Scored
from stridebench.harness.discover import shipped
from stridebench.harness.errors import ContractError, UsageError, WeightsError
from stridebench.harness.plan import presets
from stridebench.harness.registry import METHODS, RECIPES, TASKS
from stridebench.harness.synthetic import sudoku
from stridebench.harness.train.backbones.sudoku import CONTEXT, IDS, PROMPT, SCHEDULES, Sudoku, logits_of, rows
from stridebench.harness.train.loop import train
from stridebench.methods.masked_diffusion import MaskedDiffusion
from stridebench.tasks.metrics.perplexity import Judge, distinct, perplexity
from stridebench.tasks.sudoku import SudokuTask

GRID = "1234341221434321"
TINY: dict[str, Any] = {"summary": "tiny", "width": 16, "layers": 2, "heads": 2, "inner": 24, "batch": 4, "steps": 2}
SHIPPED = {
    name: f"embedded-{name}"
    for name in ("sudoku-masked", "sudoku-masked-cosine", "sudoku-masked-log-linear", "sudoku-ar")
}
SOLVED = {"sudoku-masked": 0.95, "sudoku-masked-cosine": 0.95, "sudoku-masked-log-linear": 0.2, "sudoku-ar": 0.75}
"""Least shares by the cards, for greedy decoding. The twin writes early cells before it knows their consequences."""


class TestWorld:
    def test_there_are_288_grids_and_all_are_right(self) -> None:
        texts = {"".join(map(str, grid)) for grid in sudoku.grids()}
        assert len(texts) == len(sudoku.grids()) == 288 and GRID in texts
        assert all(sudoku.faults(text) == 0 for text in texts)

    @pytest.mark.parametrize(
        ("text", "faults"),
        [
            (GRID, 0),
            ("2134" + GRID[4:], 2),  # two columns hold a digit twice; row and box are the same sets
            ("1324" + GRID[4:], 4),  # and so do both upper boxes
            (GRID[:-1] + ".", 3),
            (GRID[:-1], 3),
            ("", 12),
        ],
    )
    def test_faults_count_rows_columns_and_boxes(self, text: str, faults: int) -> None:
        assert sudoku.faults(text) == faults

    def test_an_answer_keeps_the_given_cells(self) -> None:
        assert sudoku.solves("1...............", GRID) and sudoku.solves("." * 16, GRID)
        assert not sudoku.solves("2...............", GRID)
        assert not sudoku.solves("1...............", GRID[:-1]) and not sudoku.solves("." * 16, GRID + "1")

    def test_answers_counts_the_grids_of_a_puzzle(self) -> None:
        assert [sudoku.answers(cells) for cells in ("." * 16, "1" + "." * 15, GRID, "11" + "." * 14)] == [288, 72, 1, 0]

    def test_the_split_is_by_the_text_of_the_puzzle(self) -> None:
        training, held_out = (
            list(islice(sudoku.puzzles(np.random.default_rng(seed), held_out), 1000))
            for seed, held_out in ((0, False), (1, True))
        )
        assert not {puzzle.clues for puzzle in training} & {puzzle.clues for puzzle in held_out}
        assert all(sudoku.solves(puzzle.clues, puzzle.answer) for puzzle in (*training, *held_out))
        given_counts = {sudoku.CELLS - puzzle.clues.count(sudoku.HIDDEN) for puzzle in training}
        assert given_counts == set(sudoku.CLUES)
        again = islice(sudoku.puzzles(np.random.default_rng(0), held_out=False), 1000)
        assert training == list(again)


class TestTask:
    def test_prompts_are_held_out_different_and_stable(self) -> None:
        task: SudokuTask = TASKS.get("sudoku")(200)
        prompts = task.prompts()
        assert len({prompt.text for prompt in prompts}) == 200 and prompts == task.prompts()
        assert prompts[:50] == SudokuTask(50).prompts() != SudokuTask(50, seed=1).prompts()
        assert all(sudoku.Puzzle(prompt.data["shown"], GRID).held_out for prompt in prompts)
        kinds = {prompt.category: sudoku.answers(prompt.data["shown"]) for prompt in prompts}
        assert kinds["one answer"] == 1 and 2 <= kinds["2 to 6 answers"] <= 6 < kinds["over 6 answers"]

    def test_the_score_by_hand(self, judged: str) -> None:
        task = SudokuTask(1, judge=judged)
        prompt = Prompt("sudoku/0", "1" + "." * 15 + "=", data={"shown": "1" + "." * 15})
        right, wrong = task.score(prompt, GRID, ()), task.score(prompt, "2134" + GRID[4:], ())
        assert (right["solved"], right["units"]) == (1, 1) and (wrong["solved"], wrong["units"]) == (0, 1 - 2 / 12)
        assert right["nats"] > 0 and task.score(prompt, "", ()) == {"solved": 0, "units": 0}
        outputs = [Scored(prompt, n, text, {"nats": nats}) for n, (text, nats) in enumerate([(GRID, 1.0), (GRID, 3.0)])]
        scores = task.score_set([*outputs, Scored(prompt, 2, "", {})])
        assert scores["generative_perplexity"].value == pytest.approx(math.exp(2)) and set(scores) == set(
            task.set_metrics
        )
        assert (scores["generative_perplexity"].n, scores["generative_perplexity"].failures) == (2, 1)
        assert scores["distinct_8"].value == 9 / 18

    def test_output_of_another_kind_is_refused(self) -> None:
        with pytest.raises(ContractError, match="scores texts"):
            SudokuTask().score(SudokuTask(1).prompts()[0], np.zeros(3), ())  # type: ignore[arg-type]


class TestPerplexity:
    def test_it_loads_without_a_bar_and_leaves_the_users_setting(self, capfd: pytest.CaptureFixture[str]) -> None:
        logging.enable_progress_bar()
        Judge("sudoku-ar")
        assert capfd.readouterr().err == "" and logging.is_progress_bar_enabled()

    def test_nats_are_those_of_the_model_on_the_text_alone(self, judged: str) -> None:
        nats, model = Judge(judged).nats("12..=", "341"), Judge(judged)._model
        ids = torch.tensor([[IDS.index(one) for one in "12..=341"]])
        by_hand = -model(input_ids=ids).logits.log_softmax(-1)[0]
        assert nats.tolist() == pytest.approx([float(by_hand[4 + n, IDS.index(x)]) for n, x in enumerate("341")])

    def test_perplexity_resamples_prompts(self) -> None:
        ids, nats = list("abcdefgh"), [1.0, 3.0, 2.0, 2.5, 1.5, 2.2, 1.8, 2.0]
        once, twice = perplexity(ids, nats), perplexity(ids * 2, nats * 2)
        assert once.value == pytest.approx(math.exp(2)) and once.low is not None and once.high is not None
        assert once.low < once.value < once.high and once.low == pytest.approx(twice.low or 0)
        assert perplexity(ids, [2.0] * 8).low is None
        assert perplexity([], []).reason == "no output has a token"

    def test_distinct_n_equals_the_count_by_hand(self) -> None:
        texts = {"a": ["abab", "abcd"], "b": ["x"]}
        assert distinct(texts, 2).value == 4 / 6 and distinct(texts, 1).value == 5 / 9
        assert distinct(texts, 5).value is None and "no output has 5 characters" in distinct(texts, 5).reason

    def test_an_unknown_judge_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(WeightsError, match="there is no judge 'nobody'"):
            Judge("nobody")
        with pytest.raises(WeightsError, match="cannot be read from"):
            Judge(str(tmp_path))


class TestNoise:
    @pytest.mark.parametrize(
        ("name", "t", "masked", "weight"),
        [
            ("linear", 0.25, 0.25, 4),
            ("linear", 0.5, 0.5, 2),
            ("cosine", 1 / 3, 0.25, math.pi * 3**0.5),
            ("cosine", 0.5, 0.5, math.pi),
            ("log_linear", 1 / 3, 0.9, math.log(1000) / 9),
            ("log_linear", 0.5, 1 - 1000**-0.5, math.log(1000) / (1000**0.5 - 1)),
        ],
    )
    def test_schedules_equal_the_values_by_hand(self, name: Any, t: float, masked: float, weight: float) -> None:
        assert [float(x) for x in SCHEDULES[name](torch.tensor([t]))] == pytest.approx([masked, weight])

    @pytest.mark.parametrize("name", SCHEDULES)
    def test_an_uninformed_model_has_the_nats_of_a_uniform_guess(self, name: Any) -> None:
        """Seven equally likely ids without the mask: log 7 a token over 16,384 answers at a fixed seed, within 3 %."""
        ids = rows(np.random.default_rng(0), 512, held_out=False).repeat(32, 1)
        nats = Sudoku(schedule=name, summary="").nats(Level(), ids, np.random.default_rng(1))
        assert float(nats.mean()) == pytest.approx(math.log(7), rel=0.03)

    def test_the_twins_loss_covers_the_answer_alone(self) -> None:
        ids = rows(np.random.default_rng(0), 3, held_out=False)
        nats = Sudoku(schedule=None, summary="").nats(Level(), ids, np.random.default_rng(1))
        assert nats.tolist() == pytest.approx([math.log(7)] * 3)


class Level(nn.Module):
    """The same logit for every id."""

    def forward(self, input_ids: Tensor, **_: Any) -> Any:
        return SimpleNamespace(logits=torch.zeros(*input_ids.shape, len(IDS)))


def trained(recipe: Any, folder: Path) -> nn.Module:
    """The model of a checkpoint, rounded as the exported one is."""
    model: nn.Module = recipe.build({}).eval()
    body = torch.load(folder / "checkpoint.pt", weights_only=True)["mean"]
    model.load_state_dict({key: value.bfloat16().float() for key, value in body.items()})
    return model


class TestModels:
    @pytest.mark.parametrize("name", ["sudoku-masked", "sudoku-ar"])
    def test_what_is_exported_is_what_was_trained(self, name: str, tmp_path: Path) -> None:
        tiny = replace(RECIPES.get(name), **TINY)
        train(name, tiny, tmp_path, {})
        model = trained(tiny, tmp_path)
        ids = rows(np.random.default_rng(0), 1, held_out=True)[0]
        ids[-5:] = IDS.index("<|mask|>") if tiny.schedule else ids[-5:]
        expected = logits_of(model, ids[None], causal=tiny.schedule is None)[0]
        assert expected[:, IDS.index("<|mask|>")].eq(float("-inf")).all()
        kind = MaskedModel if tiny.schedule else HFCausal
        loaded = kind.load(name, {"source": {"folder": str(tmp_path)}}, "fp32", "cpu")
        assert found_laws(loaded, ids)[:, :-1].sub(expected[:, :-1]).abs().max() < 1e-4
        assert loaded.capabilities.context == CONTEXT and loaded.capabilities.eos == {0}
        assert loaded.encode("1.4=") == [1, 5, 4, 6] and loaded.decode([4, 3, 2, 1]) == "4321"

    def test_the_model_of_uniform_noise_reads_the_puzzle_once_and_its_last_logits(self, tmp_path: Path) -> None:
        """Logits of two passes over a canvas, the second one conditioned, are those of the model that was trained."""
        tiny = replace(RECIPES.get("sudoku-uniform"), **TINY)
        assert train("sudoku-uniform", tiny, tmp_path, {}).finished
        model = trained(tiny, tmp_path)
        ids = rows(np.random.default_rng(0), 1, held_out=True)[0]
        params = {"source": {"folder": str(tmp_path)}}
        loaded = MaskedModel.load("sudoku-uniform", {**params, "noise": "uniform"}, "fp32", "cpu")
        assert (loaded.capabilities.mask, loaded.capabilities.block) == (None, PROMPT)
        puzzle, watch = tuple(ids[:PROMPT].tolist()), Stopwatch(CpuClock())
        board = Canvas(loaded.cache(), loaded.capabilities, puzzle, length=sudoku.CELLS, stopwatch=watch)
        board.read(ids[:PROMPT], range(PROMPT), "all", rows=0)
        given, blind = None, torch.zeros(1, sudoku.CELLS, len(IDS))
        for _ in range(2):
            logits = board.read(ids[PROMPT:], board.open_block, "all", given=given)
            expected = tiny.restored(model, ids[None], blind if given is None else given.softmax(1)[None])[0]
            assert logits.sub(expected).abs().max() < 1e-4
            given = logits
        whole = Canvas(loaded.cache(), loaded.capabilities, puzzle, length=sudoku.CELLS, stopwatch=watch)
        at_once = whole.read(ids, range(len(ids)), "all", rows=sudoku.CELLS, given=expected)
        assert at_once.sub(tiny.restored(model, ids[None], expected.softmax(1)[None])[0]).abs().max() < 1e-4
        with pytest.raises(UsageError, match=r"the model in .* has noise uniform; set `noise: uniform` in its preset"):
            MaskedModel.load("sudoku-uniform", params, "fp32", "cpu")

    def test_the_judge_that_nothing_names_is_the_twin(self) -> None:
        assert SudokuTask().judge in SHIPPED and RECIPES.get(SudokuTask().judge).schedule is None


def found_laws(model: MaskedModel | HFCausal, ids: Tensor) -> Tensor:
    """Logits of every position, from one pass."""
    places = torch.arange(len(ids))
    if isinstance(model, HFCausal):
        return model.cache().extend(Window(ids, places, 0, None, len(ids))).logits
    watch = Stopwatch(CpuClock())
    board = Canvas(
        model.cache(), model.capabilities, tuple(ids[:PROMPT].tolist()), length=sudoku.CELLS, stopwatch=watch
    )
    return board.read(ids, range(len(ids)), "all")


def solved(name: str, method: Any, temperature: float, prompts: Sequence[Prompt]) -> float:
    """The share of puzzles that a shipped model solves."""
    model, task = presets.load(name, "fp32"), SudokuTask(1)
    right = 0
    for prompt in prompts:
        draws = SeededDraws(0, "sudoku", prompt.id, 0)
        run = open_run(model, lambda _: model, model.encode(prompt.text or ""), Sampling(temperature), 16, draws)
        right += sudoku.solves(prompt.data["shown"], str(model.decode(decode(method, run).tokens)))
    assert task.eos is False
    return right / len(prompts)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A twin that was trained for two steps."""
    folder = tmp_path_factory.mktemp("judge")
    train("sudoku-ar", replace(RECIPES.get("sudoku-ar"), **TINY), folder, {})
    return str(folder)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_models_have_what_their_cards_say(name: str) -> None:
    model, card = presets.load(SHIPPED[name], "fp32"), json.loads((shipped(name) / "card.json").read_text())
    recipe = RECIPES.get(name)
    assert (card["name"], card["steps"], card["data"]) == (name, recipe.steps, recipe.source)
    assert model.capabilities.vocabulary == len(IDS) and card["figures"]["solved_greedy"] > SOLVED[name]


@pytest.mark.slow
def test_the_shipped_model_solves_by_many_passes_and_not_by_one() -> None:
    """40 held-out puzzles at T = 1, each at a fixed seed."""
    prompts = SudokuTask(40).prompts()
    shares = [solved("embedded-sudoku-masked", MaskedDiffusion(steps=steps), 1.0, prompts) for steps in (1, 4, 16)]
    assert shares[0] < 0.1 and shares[0] + 0.2 < shares[1] < shares[2] and shares[2] > 0.9


@pytest.mark.slow
def test_the_shipped_twin_solves() -> None:
    method = METHODS.get("autoregressive")()
    assert solved("embedded-sudoku-ar", method, 1.0, SudokuTask(40).prompts()) > 0.65


def test_the_twins_perplexity_finds_right_answers_likelier() -> None:
    task, prompt = SudokuTask(), SudokuTask(1).prompts()[0]
    texts = ["".join(map(str, grid)) for grid in sudoku.grids()]
    right = next(text for text in texts if sudoku.solves(prompt.data["shown"], text))
    turned = right[1:] + right[:1]
    assert task.score(prompt, right, ())["nats"] + 0.5 < task.score(prompt, turned, ())["nats"]
