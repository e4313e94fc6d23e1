"""The verdict of a cell: what each check adds to it, in which words, and what is decoded for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stridebench.harness.backbones.masked_toy import MaskedTabular
from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.clock import CpuClock, Stopwatch
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.session import Session
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import EnumerationLimit
from stridebench.harness.proof import verdicts
from stridebench.harness.proof.cases import WIDER_CASES, Case
from stridebench.harness.proof.distance import QUICK
from stridebench.harness.proof.prove import Proof
from stridebench.harness.proof.verdicts import Verdicts, timed_verdict, unproved
from stridebench.methods.masked_diffusion import MaskedDiffusion
from tests.support.faulty_methods import RaisesOnToys, WrongLate
from tests.support.one_by_one import OneByOne

pytestmark = pytest.mark.usefixtures("unchecked")
MODEL = Tabular("tabular", {"vocabulary": 3, "context": 80, "seed": 4})
PROMPTS = [Prompt(name, tokens=tokens) for name, tokens in (("a", (0, 1, 2)), ("b", (2, 2)), ("c", (1,)))]
ASKED = (Case(2, 3, 10, Sampling(1.0)), Case(3, 2, 11, Sampling(0.0)))
ROWS = Case(2, 3, 54, Sampling(1.0), prompt=(1, 0), batch=2)
PLAIN_NOTE = "enumerated on 2 models, outputs of up to 3 tokens"
TOGETHER = replace(ROWS, length=2, joint=True)


@dataclass(frozen=True)
class Named:
    title: str = "task"


class ByDesign(RaisesOnToys):
    claim = Claim.APPROXIMATE


class Pinned(OneByOne):
    pinned = frozenset({"noise", "init"})


class Greedy(OneByOne):
    claim = Claim.SAME_GREEDY


@dataclass(frozen=True)
class Raising(OneByOne):
    error: type[BaseException] = EnumerationLimit

    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        raise self.error("too much")


class OpensADrafter(OneByOne):
    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        run.open("small").forward()
        return super().token(run, p)


def cell_of(method: Method[Any], batch: int = 1, backbone: str = "tabular", dtype: str = "fp32", t: float = 0.0) -> Any:
    return SimpleNamespace(
        method=method, batch=batch, backbone=backbone, sampling=Sampling(t), dtype=dtype, task=Named()
    )


def sample(at: int | None = None, margin: float | None = None, status: str = "ok", warmup: bool = False) -> Any:
    return SimpleNamespace(status=status, warmup=warmup, diverged_at=at, margin=margin, prompt="a")


def judge(backbone: Any = MODEL, prove: bool = True, prompts: int = 2, **named: Any) -> Verdicts:
    check = SimpleNamespace(prompts=prompts, tokens=8)
    suite = SimpleNamespace(prove=prove, greedy_check=check)
    plan = SimpleNamespace(suite=SimpleNamespace(suite=suite), prompts={Named(): PROMPTS})
    return Verdicts(plan, backbone, lambda name: MODEL, False, **named)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "cases_of", lambda method, outputs: {27: ASKED}[outputs])


def logits_behind(tokens: Sequence[int]) -> torch.Tensor:
    cache = MODEL.open(Prompt("", tokens=tuple(tokens))).cache()
    with torch.inference_mode():
        return Session(cache, MODEL.capabilities, tokens, stopwatch=Stopwatch(CpuClock())).forward()[0]


def greedy_text(prompt: Sequence[int], count: int) -> list[int]:
    text = list(prompt)
    for _ in range(count):
        text.append(int(logits_behind(text).argmax()))
    return text


class TestGreedy:
    @pytest.mark.parametrize(
        ("method", "batch"), [(OneByOne(), 1), (OneByOne(), 2), (WrongLate(), 1), (WrongLate(), 2)]
    )
    def test_the_first_prompts_are_decoded_as_by_the_baseline_or_the_claim_is_broken(
        self, method: Method[Any], batch: int
    ) -> None:
        """`WrongLate` takes the lowest id that is not the best from the seventh token on, which no case has."""
        verdict = judge().of(cell_of(method, batch, "random", t=1.0), [sample()])
        if type(method) is OneByOne:
            assert (verdict.greedy, verdict.divergences) == ("2/2 equal (fp32, 8 tokens)", [])
            assert verdict.word == "exact"
            return
        assert (verdict.word, verdict.greedy) == ("broken", "0/2 equal (fp32, 8 tokens)")
        assert verdict.note == "greedy output differs from the baseline's in fp32, and not at a tie"
        rows = [logits_behind(greedy_text(prompt.tokens or (), 6)) for prompt in PROMPTS[:2]]
        margins = [float(row.max() - row[int(row.argmax() == 0)]) for row in rows]
        assert [(one.prompt, one.at) for one in verdict.divergences] == [("a", 6), ("b", 6)]
        assert [one.margin for one in verdict.divergences] == pytest.approx(margins)
        flat = Tabular("tabular", {"vocabulary": 3, "context": 80, "seed": 4, "sharpness": 1e-5})
        tied = judge(flat).of(cell_of(method, batch, "random"), [sample()])
        assert (tied.word, tied.greedy) == ("exact", "0/2 equal, 2 tied (fp32, 8 tokens)")

    @pytest.mark.parametrize(("rule", "word", "greedy"), [("static:1", "exact", "2/2"), ("static:2", "broken", "0/2")])
    def test_masked_models_are_decoded_as_by_their_own_baseline(
        self, rule: str, word: str, greedy: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Claiming(MaskedDiffusion):
            claim = Claim.SAME_LAW
            reference = MaskedDiffusion()

        monkeypatch.setattr(verdicts, "prove", lambda method, cases, **named: proof())
        model = MaskedTabular("masked_tabular", {"vocabulary": 3, "context": 80, "seed": 4})
        verdict = judge(model).of(cell_of(Claiming(rule=rule), backbone="random"), [sample()])
        assert (verdict.word, verdict.greedy) == (word, f"{greedy} equal (fp32, 8 tokens)")

    def test_the_baseline_and_a_setting_are_decoded_once_on_each_prompt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        decode, decoded = verdicts.decode, []

        def counting(method: Method[Any], run: Run) -> Any:
            decoded.append((type(method).__name__, run.sampling.temperature, run.room))
            return decode(method, run)

        monkeypatch.setattr(verdicts, "decode", counting)
        of_group = judge()
        for method in (OneByOne(), WrongLate(), OneByOne()):
            of_group.of(cell_of(method, backbone="random"), [sample()])
        names = ["OneByOne"] * 2 + ["Autoregressive"] * 2 + ["WrongLate"] * 2
        assert decoded == [(name, 0.0, 8) for name in names]

    def test_none_is_decoded_where_none_is_asked_for_or_the_claim_is_broken_already(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unasked = judge(prompts=0).of(cell_of(OneByOne(), backbone="random"), [sample()])
        assert unasked.word == "unverified" and "(greedy_check: prompts: 0)" in (unasked.note or "")
        assert judge(prompts=0).of(cell_of(Raising(), backbone="random"), [sample()]).note == "too much"
        unproved_run = judge(prove=False).of(cell_of(OneByOne(), backbone="random"), [sample()])
        assert (unproved_run.word, unproved_run.note) == ("unverified", "the suite says prove: false")
        monkeypatch.setattr(verdicts, "prove", lambda method, cases, **named: proof(verdict="broken"))
        for one in (judge().of(cell_of(OneByOne(), backbone="random"), [sample()]), unproved_run):
            assert one.greedy is None
        assert judge().of(cell_of(OneByOne()), [sample()]).greedy is None  # a toy is enumerated itself

    @pytest.mark.parametrize(
        ("dtype", "keeps", "free", "loads", "released"),
        [
            ("fp32", False, 0, 0, 0),
            ("fp64", False, 0, 0, 0),
            ("bf16", True, 100, 1, 0),
            ("bf16", True, 99, 1, 1),
            ("fp16", False, 1000, 1, 1),
        ],
    )
    def test_a_model_of_a_narrow_type_is_loaded_again_in_fp32_with_its_drafters(
        self, dtype: str, keeps: bool, free: int, loads: int, released: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[object] = []
        monkeypatch.setattr(verdicts, "free_memory", lambda device: free)
        monkeypatch.setattr(verdicts.presets, "load", lambda *words: calls.append(words) or MODEL)
        monkeypatch.setattr(verdicts.presets, "drafter", lambda *words: calls.append(words[1:]) or MODEL)
        wide = dtype in ("fp32", "fp64")
        model = MODEL if wide else SimpleNamespace(name="m", dtype=dtype, device="cpu", weights_bytes=100)
        with monkeypatch.context() as patched:
            patched.setattr(MODEL, "dtype", dtype if wide else "fp32")
            of_group = judge(model, release=lambda: calls.append("released"), **({} if keeps else {"keeps": False}))
            verdict = of_group.of(cell_of(OpensADrafter(), backbone="random"), [sample()])
        assert verdict.greedy == "2/2 equal (fp32, 8 tokens)", verdict.error
        assert calls == ["released"] * released + [("m", "fp32", "cpu", False), ("small", False)] * loads


class TestEnumerated:
    @pytest.mark.parametrize(
        ("method", "word", "note", "error"),
        [
            (OneByOne(), "exact", PLAIN_NOTE, None),
            (Raising(), "unverified", "too much", None),
            (RaisesOnToys(), "unverified", "RuntimeError: not on a toy", "RuntimeError: not on a toy"),
            (ByDesign(), "approximate", "RuntimeError: not on a toy", "RuntimeError: not on a toy"),
            (Raising(SystemExit), "unverified", None, None),
        ],
    )
    def test_an_error_leaves_the_word_of_a_claim_without_a_proof(
        self, method: Method[Any], word: str, note: str | None, error: str | None
    ) -> None:
        verdict = judge().of(cell_of(method), [sample()])
        assert verdict.word == word
        if note is None:
            assert "sys.exit" in (verdict.error or "")
        else:
            assert (verdict.note, verdict.error) == (note, error)

    def test_an_error_of_the_greedy_check_is_told(self) -> None:
        verdict = judge().of(cell_of(RaisesOnToys(), backbone="random"), [sample()])
        assert verdict.word == "unverified" and verdict.greedy is None
        assert verdict.error == "greedy equality could not be checked: RuntimeError: not on a toy" == verdict.note

    @pytest.mark.parametrize("prove", [True, False])
    def test_an_interrupt_is_no_verdict(self, prove: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        if not prove:
            monkeypatch.setattr(verdicts, "prove", lambda method, cases, **named: proof())
        with pytest.raises(KeyboardInterrupt):
            judge().of(cell_of(Raising(KeyboardInterrupt), backbone="random"), [sample()])

    @pytest.mark.parametrize(
        ("fields", "word", "variation", "note"),
        [
            ({}, "exact", 1e-16, PLAIN_NOTE),
            ({"verdict": "broken", "hint": "a hint"}, "broken", 1e-16, "a hint"),
            ({"total_variation": None, "case": "no TV", "verdict": "approximate"}, "approximate", None, "no TV"),
            (
                {"cases": (replace(ASKED[0], length=2), ASKED[1], WIDER_CASES[0])},
                "exact",
                1e-16,
                "enumerated on 3 models, outputs of up to 2 tokens; 1 cut shorter, since a step has too many outcomes",
            ),
            (
                {"verdict": "declared"},
                "approximate",
                None,
                f"it samples the distributions that it declares (1e-16); {PLAIN_NOTE}",
            ),
            (
                {"method": Pinned()},
                "exact",
                1e-16,
                f"{PLAIN_NOTE}; draws of init, noise answered by 4 seeds",
            ),
        ],
    )
    def test_a_note_says_what_was_enumerated(
        self, fields: dict[str, Any], word: str, variation: float | None, note: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shown = proof(**fields)
        monkeypatch.setattr(verdicts, "prove", lambda method, cases, **named: shown)
        verdict = judge().of(cell_of(OneByOne()), [sample()])
        assert (verdict.word, verdict.total_variation, verdict.note) == (word, variation, note)
        assert verdict.case == shown.case

    @pytest.mark.parametrize(
        ("cases", "word"),
        [
            ((), "unverified in batches"),
            ((TOGETHER,), "unverified in batches"),
            ((ROWS,), "unverified in batches"),
            ((TOGETHER, replace(ROWS, length=2)), "unverified in batches"),
            ((TOGETHER, ROWS), "exact"),
            ((replace(ROWS, joint=True),), "exact"),
            ((TOGETHER, replace(ROWS, length=4)), "exact"),
        ],
    )
    def test_a_run_in_batches_needs_rows_together_and_three_tokens_of_a_row(
        self, cases: tuple[Case, ...], word: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[Sequence[Case]] = []

        def prove(method: Method[Any], shown: Sequence[Case], **named: Any) -> Proof:
            asked.append(shown)
            assert named == {"mutants": False, "effort": QUICK}
            return proof(cases=tuple(shown))

        monkeypatch.setattr(verdicts, "batch_cases_of", lambda method: cases)
        monkeypatch.setattr(verdicts, "prove", prove)
        of_group = judge()
        assert of_group.of(cell_of(OneByOne(), 4), [sample()]).word == word
        assert of_group.of(cell_of(OneByOne()), [sample()]).word == "exact"
        assert of_group.of(cell_of(OneByOne(), 2), [sample()]).word == word
        assert of_group.of(cell_of(Greedy(), 4), [sample()]).word == "exact"
        assert asked == [(*ASKED, *cases), ASKED, ASKED]


def proof(**fields: Any) -> Proof:
    """A proof of an exact method, except for some fields."""
    plain = {"method": OneByOne(), "claim": Claim.SAME_LAW, "total_variation": 1e-16, "case": "a case"}
    return Proof(**{**plain, "verdict": "exact", "cases": ASKED, **fields})


@pytest.mark.parametrize(
    ("dtype", "t", "samples", "part"),
    [
        ("fp32", 0.0, [(None, None), (3, 0.001), (3, -0.0009)], None),
        ("fp32", 0.0, [(3, 0.0009), (3, 0.0011), (4, 2.0)], "2 of 3 timed outputs differ from the baseline's in fp32"),
        ("fp32", 0.0, [(3, 0.0011)], "in fp32, and not at a tie: prompt a at token 3 (a logit margin of 0.0011)"),
        ("fp64", 0.0, [(5, -0.25)], "prompt a at token 5 (a logit margin of 0.25)"),
        ("fp64", 0.0, [(0, None)], "prompt a at token 0 (one output ends there)"),
        ("bf16", 0.0, [(3, 0.25), (3, -2.0)], None),
        ("bf16", 0.0, [(3, 2.5)], "in bf16, by more than it rounds"),
        ("bf16", 0.0, [(3, None)], "in bf16, by more than it rounds"),
        ("fp16", 0.0, [(3, 0.25)], None),
        ("fp16", 0.0, [(3, 0.26)], "in fp16, by more than it rounds"),
        ("int8", 0.0, [(3, 9.0)], None),
        ("fp32", 0.5, [(3, 9.0)], None),
    ],
)
def test_timed_outputs_that_part_by_more_than_rounding_break_a_claim(
    dtype: str, t: float, samples: list[tuple[int | None, float | None]], part: str | None
) -> None:
    """In bf16 rounding parts two greedy outputs by 0.25 at most in all stored runs of exact methods."""
    timed = [sample(*one) for one in samples]
    verdict = timed_verdict(cell_of(OneByOne(), dtype=dtype, t=t), timed)
    assert verdict.stored().get("word") == (part and "broken") and (part or "") in (verdict.note or "")
    whole = judge(prove=False).of(cell_of(OneByOne(), dtype=dtype, t=t), timed)
    assert whole.word == ("broken" if part else "unverified")
    assert judge(prove=False).of(cell_of(ByDesign(), dtype=dtype, t=t), timed).word == "unverified"


@pytest.mark.parametrize("samples", [[], [sample(status="failed")], [sample(3, 9.0, warmup=True)]])
def test_without_a_timed_sample_there_is_no_word(samples: list[Any]) -> None:
    for verdict in (judge().of(cell_of(OneByOne()), samples), unproved(cell_of(OneByOne()), samples, "no time")):
        assert verdict.word is None and verdict.note == "no sample succeeded, so nothing is known of its output"
        assert "error" not in verdict.stored()


@pytest.mark.parametrize(
    ("method", "margin", "word"),
    [(OneByOne(), 9.0, "broken"), (OneByOne(), 0.0, "unverified"), (ByDesign(), 9.0, "approximate")],
)
def test_without_a_proof_the_timed_outputs_still_count(method: Method[Any], margin: float, word: str) -> None:
    verdict = unproved(cell_of(method), [sample(3, margin)], "no time")
    assert (verdict.word, verdict.error) == (word, "no time") and (word == "broken" or verdict.note == "no time")
