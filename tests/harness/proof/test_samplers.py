"""The proof of other people's samplers: what it says of right and wrong ones, and of functions that break its rules."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import numpy as np
import pytest

from stridebench.harness.errors import ContractError, EnumerationLimit, UsageError
from stridebench.harness.proof.sampler_proof import FAULTS, measure, models, prove_sampler
from stridebench.harness.proof.samplers import read_samplers
from tests.support.cli import refused, stride

ROOT = Path(__file__).resolve().parents[3]
SAMPLERS = {one.name: one for one in read_samplers(str(ROOT / "examples" / "samplers"))}
EXACT = {
    "eagle_tree",
    "mlx_equal",
    "sglang_tree",
    "stop_after_low_confidence",
    "traversal",
    "vllm_block",
    "vllm_ngram",
    "vllm_token",
}
TOKEN = """
import numpy as np
from stridebench import sampler
@sampler({settings})
def rejection(tokens, q, p, draws):
    for k, token in enumerate(tokens):
        if not draws.coin(p[k, token] / q[k, token]):
            return [*tokens[:k], draws.token(np.maximum(p[k] - q[k], 0))]
    return [*tokens, draws.token(p[-1])]
"""
UNIFORM = """
import torch
from stridebench import sampler
@sampler(arrays="torch", drafts=1)
def uniform(x, q, p, draws):
    refused = (draws.uniforms(len(x)) > p[range(len(x)), x] / q[range(len(x)), x]).nonzero()
    n = int(refused[0]) if len(refused) else len(x)
    row = (p[n] - q[n]).clamp_min(0) if n < len(x) else p[n]
    return [*x[:n], int(((row / row.sum()).cumsum(0) <= draws.uniform()).sum().clamp_max(2))]
"""


@pytest.fixture(scope="module")
def proved():
    """Return a function that proves a public sampler, once."""
    return functools.cache(lambda name: prove_sampler(SAMPLERS[name]))


@pytest.mark.parametrize("name", SAMPLERS)
def test_public_samplers_get_the_verdicts_of_the_page(proved, name):
    row = proved(name)
    assert (row.verdict == "exact") == (name in EXACT)
    assert all(seen is not False for seen in row.faults.values())
    page = (ROOT / "docs" / "samplers.md").read_text(encoding="utf-8")
    assert f"| {row.sampler} | {row.verdict} | {_rounded(row.total_variation)} |" in page


def _rounded(variation: float) -> str:
    return f"{variation:.1g}" if variation > 1e-9 else "0"


def test_more_than_block_verification_accepts_is_an_alarm(proved):
    assert proved("hsd").alarm and not proved("vllm_block").alarm
    assert proved("vllm_block").accepted == pytest.approx(proved("vllm_block").block)


def test_uniform_numbers_are_cut_into_the_pieces_that_the_function_makes(tmp_path):
    (tmp_path / "uniform.py").write_text(UNIFORM)
    (tmp_path / "coins.py").write_text(TOKEN.format(settings="drafts=1"))
    model = next(models(3, 2))
    coins, uniform = (measure(one, model, 3) for one in read_samplers(str(tmp_path)))  # in the order of their names
    assert uniform.total_variation < 1e-9
    assert uniform.accepted == pytest.approx(coins.accepted, abs=1e-9)


def test_models_are_distributions_and_faults_change_their_arguments():
    for model in models(3, 2):
        for rows in (model.p, model.q):
            np.testing.assert_allclose([row.sum() for row in rows.values()], 1.0)
            support = {"top-k = 2": 2, "T = 0": 1}.get(model.title, 3)
            assert {np.count_nonzero(row) for row in rows.values()} == {support}
    q, p = np.array([[0.2, 0.0, 0.8]]), np.array([[0.1, 0.2, 0.7], [0.6, 0.3, 0.1]])
    flat = (p**0.8).T / (p**0.8).sum(1)
    by_hand = [(q, p[[1, 0]]), (q, flat.T), (np.array([[0.5, 0.0, 0.5]]), p)]
    for corrupt, expected in zip(FAULTS.values(), by_hand, strict=True):
        for changed, rows in zip(corrupt(q, p), expected, strict=True):
            np.testing.assert_allclose(changed, rows)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 7", "returns a list"),
        ("return [0, 1, 2, 0]", "1 to 3 ids"),
        ("return [3]", "ids from 0 to 2"),
        ("p[0] = 0; return [0]", "changes its arguments"),
        ("import numpy; return [int(numpy.random.rand() * 3)]", "draws from numpy.random"),
        ("import torch; return [int(torch.rand(1) * 3)]", "draws from torch's generator"),
        ("import random; return [random.randrange(3)]", "draws from Python's random"),
        ("return [draws.token(p[0] - p[0])]", "not all 0"),
        ("draws.coin(-1); return [0]", "probability -1.0"),
        ("return [1 / 0]", "ZeroDivisionError: division by zero (broken.py:2)"),
        ("CALLS.append(0); return [len(CALLS) % 3]", "verify: equal draws gave two results"),
        ("return [0] if draws.coin(0.5) else [int(RNG.integers(3)) for _ in tokens]", "a generator of its own"),
        ("return [0] if draws.coin(0.5) else [int(draws.coin(0.5)) for _ in range(RNG.integers(3))]", "of its own"),
        ("return [draws.token(p[0]) + 0.7]", ".7]; it returns a list"),
        ("return [float('nan')]", "verify returned [nan]; it returns a list"),
        ("return 'a'", "verify returned 'a'; it returns a list"),
        ("import torch; return torch.zeros(1, 2, dtype=int)", "it returns a list"),
        ("yield tokens[7]", "ended with IndexError: index 7 is out of bounds for axis 0 with size 2 (broken.py:2)"),
        ("while draws.coin(0.5): pass\n    return [0]", "verify: a call takes over 256 draws"),
    ],
)
def test_what_breaks_the_rules_is_one_error(tmp_path, body, message):
    head = f"def verify(tokens, q, p, draws):\n    {body}\n"
    (tmp_path / "broken.py").write_text(f"{head}import numpy\nCALLS, RNG = [], numpy.random.default_rng(0)\n")
    with pytest.raises((ContractError, EnumerationLimit), match=re.escape(message)):
        prove_sampler(*read_samplers(f"{tmp_path / 'broken.py'}:verify"))


@pytest.mark.parametrize("drafted", ["7", "-1", "0.5", "'a'"])
def test_a_draft_is_an_id_or_none(tmp_path, drafted):
    text = TOKEN.format(settings=f"propose=lambda tokens, q, draws: {drafted}")
    (tmp_path / "drafting.py").write_text(text)
    with pytest.raises(ContractError, match=f"rejection drafts {drafted}; propose returns an id from 0 to 2, or None"):
        prove_sampler(*read_samplers(str(tmp_path / "drafting.py")))


@pytest.mark.parametrize("head", ["from rule import draw\n", "import sys\nsys.path.insert(0, BESIDE)\nimport rule\n"])
def test_files_of_two_folders_import_what_lies_in_their_own(tmp_path, head):
    """At the head of a file and in the body of a function, behind the reading of all files."""
    for name, token in (("right", "draws.token(p[0])"), ("wrong", "0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rule.py").write_text(f"def draw(p, draws): return [{token}]")
        text = head.replace("BESIDE", repr(str(tmp_path / name))) + "def verify(tokens, q, p, draws):\n"
        (tmp_path / name / "mine.py").write_text(
            text + "    from rule import draw as drawn\n    return drawn(p, draws)"
        )
    paths = [f"{tmp_path / name / 'mine.py'}:verify" for name in ("right", "wrong")]
    samplers = [sampler for path in paths for sampler in read_samplers(path)]
    assert [prove_sampler(sampler).verdict for sampler in samplers] == ["exact", "biased"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            TOKEN.format(settings="parents=(0, 0)"),
            "rejection: the draft has the parents (0, 0); give 1 to 4 tokens, each",
        ),
        (TOKEN.format(settings="drafts=5"), "give 1 to 4 tokens"),
        (TOKEN.format(settings="arrays='jax'"), "numpy or torch"),
        (TOKEN.format(settings="draft=3"), "cannot be imported: TypeError"),
        ("import nowhere", "cannot be imported: ModuleNotFoundError"),
        ("def rule(tokens, q, p, draws): ...", "no function that @sampler() marks; mark one"),
        (None, "holds no file FILE.py; write one with"),
    ],
)
def test_a_file_that_cannot_be_proved_is_refused(tmp_path, text, message):
    if text is not None:
        (tmp_path / "refused.py").write_text(text)
    with pytest.raises(UsageError, match=re.escape(message)):
        list(read_samplers(str(tmp_path)))


def test_a_new_verifier_is_written_proved_and_told_apart_from_methods(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert stride("new", "verifier", "mine").code == 0
    shown = stride("verify", "mine.py", "--json")
    assert shown.code == 0
    assert [row["verdict"] for row in json.loads(shown.out)] == ["exact"]
    assert "is there already" in refused("new", "verifier", "mine")
    assert "does not go with the file" in refused("verify", "mine.py", "sjd")
    assert "its functions: mine" in refused("verify", "mine.py:other")
    (tmp_path / "mine.py").write_text(TOKEN.format(settings="").replace("p[k] - q[k]", "p[k]"))
    assert stride("verify", "mine.py").code == 1
