"""Continue a text: any UTF-8 file, or the shipped prose.

Outputs are not scored, but every task is measured by log-probability and agreement with the baseline.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stridebench.harness.core.task import Prompt, Task
from stridebench.harness.errors import UsageError, within
from stridebench.harness.registry import TASKS

SHIPPED = Path(__file__).parent / "data" / "prose.txt"


@TASKS.register("continuation")
@dataclass(frozen=True)
class Continuation(Task):
    """Evenly spaced pieces of a text, each to be continued from its first characters.

    Args:
        file: a UTF-8 text; "" is the shipped prose.
        chunks: most pieces. A short file gives fewer, each longer than ``prompt_chars`` characters.
        prompt_chars: most characters of a prompt. A prompt ends with a whole word.
    """

    file: str = ""
    chunks: int = 16
    prompt_chars: int = 400

    source = "a text file"

    def __post_init__(self) -> None:
        within("the task continuation", 1, chunks=self.chunks, prompt_chars=self.prompt_chars)

    def prompts(self) -> Sequence[Prompt]:
        """Return the pieces in the order of the file; ``data["reference"]`` is the rest of the piece."""
        path = Path(self.file).expanduser() if self.file else SHIPPED
        text = _read(path)
        if len(text) <= self.prompt_chars:
            raise UsageError(
                f"{path} has {len(text)} characters, too few for one prompt of {self.prompt_chars} and what "
                f"follows it. Give a longer file, or lower prompt_chars."
            )
        pieces = _pieces(text, min(self.chunks, len(text) // (self.prompt_chars + 1)), self.prompt_chars)
        cuts = [(piece, _prompt_end(piece, self.prompt_chars)) for piece in pieces]
        return tuple(
            Prompt(f"continuation/{index}", piece[:end], data={"reference": piece[end:]})
            for index, (piece, end) in enumerate(cuts)
            if end
        )


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}. Convert it first, "
            f"for example with iconv -t UTF-8"
        ) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}. Give the path of a text file.") from error
    if not text.strip():
        raise UsageError(f"{path} is empty or holds nothing but white space. Give a file with text in it.")
    return text.strip("\n")


def _pieces(text: str, count: int, least: int) -> list[str]:
    """Split the text into ``count`` pieces of ``least`` characters or more."""
    slack = (len(text) // count - least) // 2
    starts = [0, *(_boundary(text, len(text) * k // count, slack) for k in range(1, count))]
    return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def _boundary(text: str, start: int, slack: int) -> int:
    """Return the first start of a line in text[start : start + slack], else of a word there, else ``start``."""
    for pattern in (r"\n\s*^", r"\s+"):
        if match := re.compile(pattern, re.MULTILINE).search(text, start, start + slack):
            return match.end()
    return start


def _prompt_end(piece: str, most: int) -> int:
    """Return the end of the last whole word in the first ``most`` characters."""
    head = piece[:most]
    if len(piece) > most and not piece[most].isspace():
        # A text without spaces is cut inside a word.
        head = re.sub(r"\s\S*\Z", "", head) or head
    return len(head.rstrip())
