"""An output is audited along one pass of the model, in parts of any size."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from stridebench.harness.audit import output
from stridebench.harness.audit.bets import Bets, added_up
from stridebench.harness.audit.output import bets_on, drafter_logits, read_outputs, target_logits, unguided_logits
from stridebench.harness.audit.verdict import audit
from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.capabilities import Capabilities
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.errors import UsageError
from stridebench.harness.plan import presets
from stridebench.harness.registry import METHODS

MODEL = Tabular("tabular", {"vocabulary": 12, "context": 80, "seed": 4})
PROMPT = (1, 2, 3)


def tokens_at(temperature: float, index: int, budget: int = 48) -> tuple[int, ...]:
    draws = SeededDraws(0, "audit", str(index), 0, "cpu")
    run = open_run(MODEL, lambda name: MODEL, PROMPT, Sampling(temperature), budget, draws)
    return decode(METHODS.get("autoregressive")(), run).tokens


def bets_at(temperature: float, claimed: float, outputs: int = 10) -> list[Bets]:
    decodes = [tokens_at(temperature, index) for index in range(outputs)]
    logits = [target_logits(MODEL, PROMPT, tokens) for tokens in decodes]
    return [
        bets_on(table, [*PROMPT, *tokens], Sampling(claimed), 1e-6)
        for table, tokens in zip(logits, decodes, strict=True)
    ]


def test_the_logits_of_an_output_are_those_that_its_decode_used() -> None:
    tokens = tokens_at(1.0, 0, budget=5)
    logits = target_logits(MODEL, PROMPT, tokens)
    run = open_run(
        MODEL, lambda name: MODEL, (*PROMPT, *tokens[:-1]), Sampling(1.0), 1, SeededDraws(0, "", "", 0, "cpu")
    )
    torch.testing.assert_close(run.target.forward()[0], logits[-1])
    assert len(logits) == len(tokens)


def test_a_temperature_that_is_not_the_claimed_one_is_refuted() -> None:
    correct, hotter = audit(bets_at(1.0, 1.0)), audit(bets_at(2.0, 1.0))
    assert correct.verdict == "not refuted" and correct.log_e < np.log(20)
    assert hotter.verdict == "refuted" and "hotter" in hotter.best


def test_rows_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tokens_at(1.0, 0)
    logits, context = target_logits(MODEL, PROMPT, tokens), [*PROMPT, *tokens]
    together = bets_on(logits, context, Sampling(1.0), 1e-6, logits + 0.1)
    monkeypatch.setattr(output, "ROWS", 7)
    in_parts = bets_on(logits, context, Sampling(1.0), 1e-6, logits + 0.1)
    np.testing.assert_allclose(in_parts.gains, together.gains, atol=1e-6)
    assert in_parts.tilts == together.tilts and added_up([together]) == together


def test_a_drafter_is_read_along_the_output_with_its_own_context() -> None:
    tokens = tokens_at(1.0, 0, budget=4)
    drafter = presets.drafter(MODEL, "small")
    expected = target_logits(drafter, PROMPT, tokens)
    logits = drafter_logits(MODEL, lambda name: drafter, "small", PROMPT, tokens)
    torch.testing.assert_close(logits, expected)
    assert not warp(logits, Sampling(1.0)).equal(warp(target_logits(MODEL, PROMPT, tokens), Sampling(1.0)))


def test_a_model_without_guidance_is_not_read_without_it() -> None:
    def refuse(name: str) -> Tabular:
        raise AssertionError(name)

    plain = SimpleNamespace(capabilities=SimpleNamespace(guidance=1), toy_drafters=False)
    assert unguided_logits(plain, refuse, PROMPT, [1, 2]) is None  # type: ignore[arg-type]


# Anybody's tokens are read, and each malformed line is named.


SMALL = Capabilities(vocabulary=10, context=6)


def test_lines_are_read_and_other_keys_and_empty_lines_left_out(tmp_path: Path) -> None:
    path = tmp_path / "served.jsonl"
    path.write_text(
        '{"prompt_ids": [1, 2], "output_ids": [9], "time": 0.5}\n\n'
        '{"prompt_ids": [0], "output_ids": [3], "emitted": [2]}\n'
    )
    assert read_outputs(path, SMALL) == [([1, 2], [9], []), ([0], [3], [2])]


def test_a_mark_of_the_byte_order_and_ends_of_lines_within_a_text_are_read(tmp_path: Path) -> None:
    path = tmp_path / "served.jsonl"
    line = '{"prompt_ids": [1, 2], "output_ids": [9], "text": "a\u2028b\x85c"}\r\n'
    path.write_bytes(b"\xef\xbb\xbf" + 2 * line.encode())
    assert read_outputs(path, SMALL) == 2 * [([1, 2], [9], [])]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "holds no output"),
        ("tokens", ":1: not JSON"),
        ("[1, 2]", ":1: found a JSON list"),
        ('{"prompt_ids": [1]}', ":1: output_ids is None"),
        ('{"prompt_ids": [1], "output_ids": [1, 2], "emitted": [1]}', r":1: emitted is \[1\]; .* and 2 together"),
        ('{"prompt_ids": [1], "output_ids": [1, 2], "emitted": [2, 0]}', r":1: emitted is \[2, 0\]"),
        ('{"prompt_ids": [], "output_ids": [1]}', r":1: prompt_ids is \[\]"),
        ('{"prompt_ids": [1], "output_ids": "12"}', ":1: output_ids is '12'"),
        ('{"prompt_ids": [1], "output_ids": [1.0]}', r":1: output_ids\[0\] is 1.0; give whole numbers"),
        ('{"prompt_ids": [1], "output_ids": [true]}', r":1: output_ids\[0\] is True"),
        ('{"prompt_ids": [1], "output_ids": [NaN]}', ":1: not JSON: NaN"),
        ('{"prompt_ids": [1], "output_ids": [2, 10]}', r":1: output_ids\[1\] is 10, outside the vocabulary of 10"),
        ('{"prompt_ids": [-1], "output_ids": [2]}', r":1: prompt_ids\[0\] is -1, outside"),
        ('{"prompt_ids": [1, 1, 1], "output_ids": [2, 2, 2, 2]}', ":1: prompt and output have 7 ids"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "served.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(UsageError, match=message):
        read_outputs(path, SMALL)


@pytest.mark.parametrize("content", [None, b"\xff\xfe{"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "served.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match="cannot read the tokens in"):
        read_outputs(path, SMALL)
