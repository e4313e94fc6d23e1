"""`stride show RUN CELL --prompt ID`: the prompt, the output with tokens coloured by origin, and the steps."""

from __future__ import annotations

from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stridebench.harness.cli.main import emit
from stridebench.harness.errors import UnknownNameError, UsageError, printable, printable_line
from stridebench.harness.record.outputs import ACCEPTED, BONUS, CORRECTED, DECODED, FORCED, ORIGINS, origins
from stridebench.harness.record.store import Cell

COLOURS = {ACCEPTED: "green", CORRECTED: "red", BONUS: "blue", FORCED: "yellow", DECODED: "default"}
COUNTS = ("drafted", "tested", "accepted", "emitted", "forced")
BLOCK = "\N{BLACK SQUARE}"
"""A token of an output that is no text."""
LISTED = 12
"""Prompts that a message lists."""
STEPS = 24
"""Steps that the table shows; --json has all."""


def show_prompt(cell: Cell, prompt: str, as_json: bool) -> None:
    """Print the counted decodes of a prompt.

    Raises:
        UnknownNameError: the cell has no such prompt. UsageError: it has several; they are listed.
    """
    prompt = match_prompt(list(dict.fromkeys(cell.samples["prompt"])), printable_line(prompt))  # as it is stored
    samples = cell.samples[(cell.samples["prompt"] == prompt) & ~cell.samples["warmup"].astype(bool)]
    steps = cell.steps[(cell.steps["prompt"] == prompt) & ~cell.steps["warmup"].astype(bool)]
    if as_json:
        emit({"samples": samples.to_dict("records"), "steps": steps.to_dict("records")})
        return
    console = Console(highlight=False, markup=False)
    asked = _text(samples.iloc[0], "prompt_text")
    console.print(Text("prompt", "bold"))
    console.print(Text(printable(asked) if asked else "(the run does not hold it: older, or no text)"))
    for _, sample in samples.iterrows():
        _print_decode(console, sample, steps[steps["repetition"] == sample["repetition"]])


def match_prompt(ids: list[str], text: str) -> str:
    """The only prompt whose id is ``text``, ends with it behind a slash, or begins with it.

    Raises:
        UnknownNameError: there is no such prompt. UsageError: there are several; the first of them are listed.
    """
    if text in ids:
        return text
    for matches in (
        [name for name in ids if name.endswith(f"/{text}")],
        [name for name in ids if name.startswith(text)],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches and text:
            listed = "".join(f"\n  {name}" for name in matches[:LISTED])
            more = f"\n  and {len(matches) - LISTED} more" if len(matches) > LISTED else ""
            raise UsageError(f"{text!r} fits {len(matches)} prompts; write more of one's id:{listed}{more}")
    raise UnknownNameError("prompt of this cell", text, ids)


def _print_decode(console: Console, sample: pd.Series[Any], steps: pd.DataFrame) -> None:
    console.print(Text(f"\noutput of repetition {sample['repetition']}", "bold"))
    if sample["status"] != "ok":
        console.print(Text(printable(str(sample["error"]))))
        return
    kinds = origins(steps.itertuples(), len(sample["tokens"]))
    pieces = [printable(piece) for piece in _pieces(sample)]
    text, file = printable(str(sample["text"])), file_of(sample)
    if kinds is None or (text and len(pieces) != len(kinds)):
        console.print(Text(text or file or f"{len(sample['tokens'])} tokens without a text"))
        console.print(Text(f"({_why_plain(kinds)})", "dim"))
    else:
        if not text:
            console.print(Text(f"{file or 'no text'}, a block a token:"))
        shown = pieces if text else [BLOCK] * len(kinds)
        console.print(Text.assemble(*((piece, COLOURS[kind]) for piece, kind in zip(shown, kinds, strict=True))))
        console.print(_legend(kinds))
    console.print(_table(steps, pieces))
    if len(steps) > STEPS:
        console.print(Text(f"{len(steps) - STEPS} more steps: --json has all", "dim"))


def file_of(sample: pd.Series[Any]) -> str:
    """The file of an output that is no text, such as a picture, in the run folder; "" where there is none."""
    return printable(_text(sample, "output"))


def _why_plain(kinds: list[str] | None) -> str:
    if kinds is None:
        return "positions were filled in any order, so that no token has one origin"
    return "the run holds no text of single tokens: older, or without a tokenizer; the steps say what was accepted"


def _legend(kinds: list[str]) -> Text:
    lines = [(f"{kind} {kinds.count(kind)}: {ORIGINS[kind]}\n", COLOURS[kind]) for kind in ORIGINS if kind in kinds]
    return Text.assemble(*lines, end="")


def _table(steps: pd.DataFrame, pieces: list[str]) -> Table:
    """The steps, with the text that each emitted where it is known."""
    table = Table("step", *COUNTS, "ms", *(["text"] if pieces else []), header_style="bold")
    first = 0
    for _, step in steps.head(STEPS).iterrows():
        end = first + int(step["emitted"])
        numbers = [str(int(step[name])) for name in COUNTS]
        text = "".join(pieces[first:end]).replace("\n", "\\n")
        table.add_row(
            str(int(step["step"])), *numbers, f"{step['wall_ns'] / 1e6:.1f}", *([Text(text[:40])] if pieces else [])
        )
        first = end
    return table


def _text(sample: pd.Series[Any], column: str) -> str:
    """A text column; "" where the run is older than it."""
    value = sample.get(column)
    return value if isinstance(value, str) else ""


def _pieces(sample: pd.Series[Any]) -> list[str]:
    value = sample.get("pieces")
    return [] if value is None else [str(piece) for piece in value]
