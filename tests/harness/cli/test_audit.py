"""`stride audit`: on stored runs, on anybody's tokens, and on what is neither."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from stridebench.harness.audit.bets import Bets
from stridebench.harness.audit.outcomes import FloatArray, TokenOutcomes
from stridebench.harness.audit.verdict import Audit, audit
from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.record.store import Store
from stridebench.harness.registry import ALTERNATIVES, METHODS
from tests.support.cli import refused, stride
from tests.support.one_by_one import register

SERVED = ("--backbone", "tabular", "--temperature", "1")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit") / "run"
    words = ("--method", "speculative", "--method", "{name: sjdpp, reuse: paper}", "--backbone", "tabular")
    words += ("--task", "{name: tabular, prompts_count: 8}", "-t", "1", "-t", "0", "--max-new-tokens", "24")
    words += ("--set", "prove=false", "--set", "warmup=0")
    assert stride("run", *words, "--out", folder, "--json").code == 0
    return folder


def served(path: Path, temperature: float, lines: int = 16) -> Path:
    """Tokens of the tabular model at this temperature, a line an output."""
    model = Tabular("tabular", {})
    texts = []
    for index in range(lines):
        prompt = [index % 3, index % 2, 1]
        draws = SeededDraws(0, "served", str(index), 0, "cpu")
        run = open_run(model, lambda name: model, prompt, Sampling(temperature), 32, draws)
        output = decode(METHODS.get("autoregressive")(), run).tokens
        texts.append(json.dumps({"prompt_ids": prompt, "output_ids": output}))
    path.write_text("\n".join(texts))
    return path


@pytest.mark.slow
def test_a_stored_run_is_audited_anew_with_the_same_e_values(run: Path) -> None:
    outcome = stride("audit", run, "--json")
    assert outcome.code == 0
    store = Store.open(run)
    rows = outcome.document["cells"]
    assert [row["claim"] for row in rows] == ["SAME_LAW", "SAME_LAW", "SAME_LAW", "APPROXIMATE"]
    for row in rows:
        meta = store.cell(row["cell"]).meta
        assert math.log(row["e_value"]) == pytest.approx(meta.audit_log_e, abs=1e-6)
        assert (row["tokens"], row["best"]) == (meta.audit_tokens, meta.audit_best)
        assert row["threshold"] == 3000  # three cells claim the target's distribution
        assert row["dtype"] == "fp64"  # in which toys compute


def test_the_table_names_every_cell_under_its_setting(run: Path) -> None:
    outcome = stride("audit", run)
    assert "refuted from e = 3000 on, distributions in fp64" in outcome.out
    assert outcome.out.count("tabular fp64, T = 1, tabular") == 1
    for label in ("autoregressive (other seeds)", "speculative", "sjdpp", "not refuted", "APPROXIMATE"):
        assert label in outcome.out


def test_an_approximate_cell_may_be_refuted(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def far_off(bets: list[Bets], audits: int = 1) -> Audit:
        return dataclasses.replace(audit(bets, audits), threshold=1e-300)

    monkeypatch.setattr("stridebench.harness.run.stored_audit.audit", far_off)
    out = " ".join(stride("audit", run).out.split())
    assert "sjdpp: no fault, since it claims another distribution than the model's" in out
    assert out.count("no fault") == 1


def test_a_cell_that_cannot_be_audited_is_no_pass(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(outcomes: TokenOutcomes) -> FloatArray:
        if outcomes.q is not None:
            raise ValueError("no such bias")
        return np.ones_like(outcomes.p)

    register(monkeypatch, ALTERNATIVES, "fails", fails)  # type: ignore[arg-type]  # a function, as an alternative is
    outcome = stride("audit", run)
    assert outcome.code == 4 and "no such bias" in outcome.out and "not refuted" in outcome.out


def test_weights_that_did_not_make_the_run_are_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Tabular.__init__

    def other(self: Tabular, name: str, params: dict[str, object]) -> None:
        load(self, name, params)
        self.fingerprint = "another"

    monkeypatch.setattr(Tabular, "__init__", other)
    assert "was made with other weights of tabular" in refused("audit", run)


def test_tokens_of_the_claimed_temperature_pass_and_others_are_refuted(tmp_path: Path) -> None:
    correct = stride("audit", "--tokens", served(tmp_path / "a.jsonl", 1.0), *SERVED, "--json")
    assert correct.code == 0 and correct.document["verdict"] == "not refuted"
    assert correct.document["tokens"] == 512 and correct.document["e_value"] < 20
    path = served(tmp_path / "b.jsonl", 0.5)
    wrong = stride("audit", "--tokens", path, *SERVED, "--json")
    assert wrong.code == 1 and wrong.document["verdict"] == "refuted" and wrong.document["best"].startswith("colder")
    printed = stride("audit", "--tokens", path, *SERVED).out
    assert printed.startswith("refuted: e = 1e+") and "other weights, another prompt format" in printed


def test_a_model_whose_logits_are_not_finite_audits_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = served(tmp_path / "a.jsonl", 1.0, lines=1)
    monkeypatch.setattr(Tabular, "_logits", lambda self, entry: torch.full((self.vocabulary,), torch.nan).double())
    assert "logits of the target are NaN or infinite" in refused("audit", "--tokens", path, *SERVED)


def test_tokens_outside_the_claimed_nucleus_are_refuted_at_once(tmp_path: Path) -> None:
    path = served(tmp_path / "a.jsonl", 1.0, lines=1)
    outcome = stride("audit", "--tokens", path, *SERVED, "--top-p", "0.3", "--margin", "0.001", "--json")
    assert outcome.code == 1 and outcome.document["impossible"] > 0
    assert outcome.document["best"] == "a token that cannot be drawn"


def test_few_tokens_are_inconclusive(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt_ids": [1], "output_ids": [0, 2]}')
    outcome = stride("audit", "--tokens", path, *SERVED)
    assert outcome.code == 4 and outcome.out.startswith("inconclusive") and "audit 20 tokens" in outcome.out


def test_a_drafter_adds_its_bets(tmp_path: Path) -> None:
    path = served(tmp_path / "a.jsonl", 1.0, lines=2)
    needed = "they need the drafter's distributions; name the drafter with --drafter"
    assert needed in stride("audit", "--tokens", path, *SERVED).out
    outcome = stride("audit", "--tokens", path, *SERVED, "--drafter", "small", "--json")
    assert "draft" in outcome.document["visible"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name a run folder, or a file of tokens"),
        (("RUN", "--tokens", "FILE"), "name a run folder, or a file of tokens"),
        (("RUN", "--temperature", "1"), "--temperature goes with --tokens"),
        (("nowhere",), "holds no run"),
        (("--tokens", "FILE", "--temperature", "1"), "--tokens needs --backbone and --temperature"),
        (("--tokens", "FILE", "--backbone", "tabular"), "--tokens needs --backbone and --temperature"),
        (("--tokens", "nowhere", *SERVED), "cannot read the tokens in nowhere"),
        (("--tokens", "FILE", "--backbone", "tabula", "-t", "1"), "there is no backbone 'tabula'; did you mean"),
        (("--tokens", "FILE", "--backbone", "tabular", "-t", "0"), "at 0 nothing is drawn"),
        (("--tokens", "FILE", "--backbone", "tabular", "-t", "nan"), "temperature is nan"),
        (("--tokens", "FILE", *SERVED, "--top-p", "0"), "0 < top_p <= 1"),
        (("--kernel", "unknown"), "there is no kernel 'unknown'"),
        (("--kernel", "transformers", "-t", "1"), "--temperature goes with --tokens"),
        (("RUN", "--trials", "5"), "--trials goes with --kernel"),
        (("--kernel", "transformers", "--dtype", "fp32"), "leave out --dtype, --device and --offline"),
        (("http://127.0.0.1:9",), "To audit a server, add --prompts FILE.jsonl."),
        (("http://127.0.0.1:9", "--prompts", "FILE", "--offline"), "leave out the options of a run or a file"),
        (("--tokens", "FILE", *SERVED, "--margin", "-1"), "margin is -1"),
        (("--tokens", "FILE", *SERVED, "--top-k", "-1"), "top_k >= 0"),
        (("--tokens", "FILE", *SERVED, "--dtype", "int8"), "there is no dtype 'int8'"),
        (("--tokens", "FILE", "--backbone", "masked-tabular", "-t", "1"), "is a masked or an order-free model"),
        (("--tokens", "BAD", *SERVED), "outside the vocabulary of 3"),
        (("--tokens", "FILE", *SERVED, "--device", "nowhere"), "--device nowhere"),
        (("RUN", "--device", "nowhere"), "--device nowhere"),
    ],
)
def test_bad_input_ends_with_one_message(run: Path, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    (tmp_path / "good").write_text('{"prompt_ids": [1], "output_ids": [0, 2]}')
    (tmp_path / "bad").write_text('{"prompt_ids": [1], "output_ids": [0, 3]}')
    paths = {"RUN": str(run), "FILE": str(tmp_path / "good"), "BAD": str(tmp_path / "bad")}
    assert message in refused("audit", *(paths.get(word, word) for word in words))


def test_a_run_that_drew_nothing_is_refused(tmp_path: Path) -> None:
    words = ("--method", "sjd", "--backbone", "tabular", "--task", "{name: tabular, limit: 1}", "-t", "0")
    stride("run", *words, "--max-new-tokens", "4", "--set", "prove=false", "--out", tmp_path / "run")
    assert "no finished cell at a temperature above 0" in refused("audit", tmp_path / "run")


def test_a_kernel_is_held_against_known_distributions() -> None:
    words = ("--kernel", "transformers", "--kernel", "transformers_single_position", "--kernel", "transformers")
    outcome = stride("audit", *words, "--trials", "20", "--json")
    assert [told["kernel"] for told in outcome.document["kernels"]] == ["transformers", "transformers_single_position"]
    places = outcome.document["kernels"][0]["places"]
    assert len(places) == 16 and not any(place["biased"] for place in places) and outcome.code == 1
    shown = stride("audit", "--kernel", "transformers", "--trials", "100")
    assert shown.code == 0 and shown.out.startswith("transformers: tokens")
    assert "far drafter" in shown.out and "biased" not in shown.out
