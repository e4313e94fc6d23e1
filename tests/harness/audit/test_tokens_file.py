"""Anybody's tokens are read, and each malformed line is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from stridebench.harness.audit.output import read_outputs
from stridebench.harness.core.capabilities import Capabilities
from stridebench.harness.errors import UsageError

SMALL = Capabilities(vocabulary=10, context=6)


def test_lines_are_read_and_other_keys_and_empty_lines_left_out(tmp_path: Path) -> None:
    path = tmp_path / "served.jsonl"
    path.write_text(
        '{"prompt_ids": [1, 2], "output_ids": [9], "time": 0.5}\n\n{"prompt_ids": [0], "output_ids": [3]}\n'
    )
    assert read_outputs(path, SMALL) == [([1, 2], [9]), ([0], [3])]


def test_a_mark_of_the_byte_order_and_ends_of_lines_within_a_text_are_read(tmp_path: Path) -> None:
    path = tmp_path / "served.jsonl"
    line = '{"prompt_ids": [1, 2], "output_ids": [9], "text": "a\u2028b\x85c"}\r\n'
    path.write_bytes(b"\xef\xbb\xbf" + 2 * line.encode())
    assert read_outputs(path, SMALL) == 2 * [([1, 2], [9])]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "holds no output"),
        ("tokens", ":1: not JSON"),
        ("[1, 2]", ":1: found a JSON list"),
        ('{"prompt_ids": [1]}', ":1: output_ids is None"),
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
