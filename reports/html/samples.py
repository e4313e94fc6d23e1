"""The samples of a cell for its page: a row each for the table, and a document each for the view of one output.

Documents lie in shards: script files that a page opened from the disk can load, one when it is needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from stridebench.harness.errors import StoreError, printable_line
from stridebench.harness.record.metrics import owners
from stridebench.harness.record.outputs import ACCEPTED, BONUS, CORRECTED, DECODED, FORCED, ORIGINS, Mesh, load, origins
from stridebench.harness.record.run_notes import sound_file
from stridebench.reports.html.headline import setting_of
from stridebench.reports.html.text import excerpt, safe_json, text_of

if TYPE_CHECKING:
    from stridebench.reports.finished_cell import FinishedCell


# Pictures, sounds and meshes of a page: files are copied beside it, meshes become numbers that its script draws.


DECIMALS = 4
"""Of a vertex; the cube of a mesh is two units wide."""


def sound_of(source: Path, run: Path, folder: Path, prefix: str) -> dict[str, object]:
    """Copy the sound that a speech model heard to the page, with the words that were spoken, if they are kept.

    Args:
        source: `stridebench.harness.record.run_notes.sound_file`.
        run, folder, prefix: as of ``media_of``.
    """
    if not source.is_file() or not source.resolve().is_relative_to(run.resolve()):
        return {}
    words = source.with_suffix(".txt")
    return {
        "sound": _copied(source, folder, prefix),
        "spoken": words.read_text("utf-8", "replace") if words.is_file() else "",
    }


def _copied(source: Path, folder: Path, prefix: str) -> str:
    copy = folder / prefix / source.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(source.read_bytes())
    return f"{prefix}/{source.name}"


def media_of(sample: pd.Series[Any] | Mapping[str, object], run: Path, folder: Path, prefix: str) -> dict[str, object]:
    """Return the picture or mesh of a sample for the page; nothing if its output is a text.

    Args:
        sample: a row of samples.parquet.
        run: the run's folder.
        folder: the page's folder, which gets a copy of the picture.
        prefix: folder of the pictures, below ``folder``.

    Returns:
        ``picture``: the address from the page's folder; or ``mesh``: vertices and faces, flat; or ``lost``: why
        the output cannot be shown.
    """
    name = sample.get("output")
    if not isinstance(name, str) or not name:
        return {}
    path = run / name
    inside = not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts
    try:
        if not inside:
            raise StoreError(f"{name} lies outside the run")
        output = load(path)
    except StoreError as error:
        return {"lost": str(error)}
    if isinstance(output, Mesh):
        corners = output.vertices.round(DECIMALS).ravel().tolist()
        return {"mesh": {"vertices": corners, "faces": output.faces.ravel().tolist()}}
    return {"picture": _copied(path, folder, prefix)}


LETTERS = {ACCEPTED: "a", CORRECTED: "c", BONUS: "b", FORCED: "f", DECODED: "d"}
"""A token's origin in a document."""
LEGEND = tuple((LETTERS[kind], kind, meaning) for kind, meaning in ORIGINS.items())
COUNTS = ("drafted", "tested", "accepted", "emitted", "forced", "overshoot", "nfe", "rows")
TIMES = ("wall", "draft", "target", "verify", "host")
SHARD, SHARD_SAMPLES = 400_000, 200
"""Characters and samples after which a shard is closed."""
INLINE = 150_000
"""Characters of all documents and rows up to which they stand in the page itself."""
STATIC = 50
"""Rows of the table that are there without a script."""
PICTURES = 24
"""Pictures that are there without a script."""


class _Step(NamedTuple):
    """What `origins` reads of a step."""

    drafted: int
    tested: int
    accepted: int
    emitted: int
    forced: int
    rows: int


@dataclass(frozen=True)
class SampleTable:
    """The samples of a cell as a page shows them.

    Args:
        columns: headings, with a description each.
        rows: values, first the number of the sample and its prompt; None if there is no value.
        inline: all documents, if they are small enough for the page.
        starts: number of the first sample of each shard.
        pictures: address and prompt of the first pictures.
    """

    columns: tuple[tuple[str, str], ...]
    rows: list[list[Any]]
    inline: list[Mapping[str, object]] | None
    starts: list[int]
    pictures: list[tuple[str, str]]

    @property
    def static(self) -> list[list[Any]]:
        """The rows that are there without a script."""
        return self.rows[:STATIC]

    @property
    def rows_inline(self) -> bool:
        """Whether the page holds the rows itself."""
        return len(self.rows) <= 4 * STATIC


def write_samples(finished: FinishedCell, run: Path, folder: Path, data: str) -> SampleTable:
    """Write the documents of a cell's samples, and return the part that its page holds.

    Args:
        finished: the cell.
        run: folder of the run, which holds pictures and meshes.
        folder: of the pages.
        data: of the shards and pictures, below ``folder``.
    """
    counted = finished.cell.samples[~finished.cell.samples["warmup"].to_numpy(dtype=bool)]
    scores = [json.loads(text) if text else {} for text in counted["scores"]]
    names = list(dict.fromkeys(name for row in scores for name in row))
    columns_of = [str(name) for name in counted]
    samples = [dict(zip(columns_of, row, strict=True)) for row in counted.itertuples(index=False, name=None)]
    frame = finished.totals[["output", "nfe", "wall_ms"]]
    totals = dict(zip(frame.index, frame.to_dict("records"), strict=True))
    rows = [
        _row(index, sample, totals.get((sample["prompt"], sample["repetition"])), [row.get(name) for name in names])
        for index, (sample, row) in enumerate(zip(samples, scores, strict=True))
    ]
    made = documents(finished, samples, scores, (run, folder, data))
    return write_table((*COLUMNS, *((printable_line(name), "score") for name in names)), rows, made, folder, data)


def write_table(
    columns: Sequence[tuple[str, str]],
    rows: list[list[Any]],
    documents: Iterable[Mapping[str, object]],
    folder: Path,
    data: str,
) -> SampleTable:
    """Write the documents of outputs, and return what their page holds of them.

    Args:
        columns: headings, with a description each; a column without a value is left out.
        rows: the number of the output, then a value a column.
        documents: one a row.
        folder: of the pages.
        data: of the shards, below ``folder``.
    """
    writer = _Shards(folder / data)
    pictures: list[tuple[str, str]] = []
    for document in documents:
        writer.add(document)
        if "picture" in document and len(pictures) < PICTURES:
            title = excerpt(str(document["asked"])) or str(document["prompt"])
            pictures.append((str(document["picture"]), title))
    inline = writer.close()
    filled = [i for i in range(len(columns)) if i == 0 or any(row[i + 1] not in (None, "") for row in rows)]
    rows = [[row[0], *(row[i + 1] for i in filled)] for row in rows]
    table = SampleTable(tuple(columns[i] for i in filled), rows, inline, writer.starts, pictures)
    if not table.rows_inline:
        (folder / data).mkdir(parents=True, exist_ok=True)
        (folder / data / "rows.js").write_text(f"strideRows({safe_json(rows)});\n", encoding="utf-8")
    return table


COLUMNS = (
    ("prompt", "id of the prompt; its link opens the output token by token"),
    ("repetition", "each has another seed"),
    ("category", "the prompt's"),
    ("status", "ok or failed"),
    ("tokens", "of the output"),
    ("passes", "of the target"),
    ("tokens/pass", "output tokens over target passes"),
    ("ms/token", "wall time of start and steps over output tokens"),
    ("agreement", "with the baseline's output, at T = 0"),
    ("output", "its beginning, or the reason of the failure"),
)
"""Headings of the table of samples."""


def documents(
    finished: FinishedCell,
    samples: Sequence[Mapping[str, Any]],
    scores: Sequence[Mapping[str, Any]],
    places: tuple[Path, Path, str],
) -> Iterator[dict[str, object]]:
    """Yield the data for the view of one output, sample by sample.

    Args:
        finished: the cell.
        samples: its counted samples.
        scores: of each.
        places: folder of the run, of the pages, and of the cell's data below it.
    """
    baseline = str(finished.cell.meta.baseline or finished.cell.name)
    steps = finished.steps
    own = owners(steps, [(sample["prompt"], sample["repetition"]) for sample in samples])
    order = np.argsort(own, kind="stable")
    ends = np.searchsorted(own[order], np.arange(len(samples) + 1))
    columns = {name: steps[name].to_numpy() for name in COUNTS}
    heard = (places[0] / "conditions" / baseline).is_dir()
    columns |= {name: steps[f"{name}_ns"].to_numpy() // 1000 for name in TIMES}
    for place, (sample, score) in enumerate(zip(samples, scores, strict=True)):
        index = order[ends[place] : ends[place + 1]]
        numbers = {name: values[index].tolist() for name, values in columns.items()}
        document = _texts(sample) | _tokens(sample, numbers) | media_of(dict(sample), *places)
        if finished.cell.meta.modality == "image" and sample["status"] == "ok" and not sample.get("output"):
            tokens = len(sample["tokens"])
            cut = ", which is all that the run allows: give --max-new-tokens more"
            end = cut if tokens == finished.cell.meta.max_new_tokens else ""
            document["lost"] = f"The picture is missing: the output ends after {tokens} tokens{end}."
        if heard:
            document |= sound_of(sound_file(places[0], baseline, str(sample["prompt"])), *places)
        document["steps"] = {name: _folded(values) for name, values in numbers.items()}
        document["count"] = len(index)
        document["scores"] = {printable_line(name): value for name, value in score.items()}
        yield document


def _texts(sample: Mapping[str, Any]) -> dict[str, object]:
    row = dict(sample)
    return {
        "prompt": printable_line(str(sample["prompt"])),
        "repetition": int(sample["repetition"]),
        "status": str(sample["status"]),
        "error": text_of(row, "error"),
        "category": text_of(row, "category"),
        "asked": text_of(row, "prompt_text"),
        "text": text_of(row, "text"),
        "promptTokens": int(sample.get("prompt_tokens") or 0),
        "prefill": int(sample.get("prefill_ns") or 0) // 1000,
    }


def _tokens(sample: Mapping[str, Any], numbers: Mapping[str, list[int]]) -> dict[str, object]:
    """The output token by token: text or id, origin, and log-probability."""
    tokens = sample["tokens"]
    steps = map(_Step, *(numbers[name] for name in _Step._fields))
    kinds = origins(steps, len(tokens))
    pieces = sample.get("pieces")
    known = pieces is not None and len(pieces) == len(tokens) > 0
    document: dict[str, Any] = {"kinds": None if kinds is None else "".join(LETTERS[kind] for kind in kinds)}
    document["pieces"] = list(pieces) if known and pieces is not None else None
    document["tokens"] = None if known else np.asarray(tokens, dtype=int).tolist()
    logprobs = sample["logprobs"]
    rounded = np.asarray(logprobs, dtype=float).round(3).tolist()
    document["logprobs"] = rounded if len(logprobs) == len(tokens) else None
    return document


def _folded(values: list[Any]) -> Any:
    """A list of equal numbers as that number."""
    return values[0] if values and values.count(values[0]) == len(values) else values


def _row(index: int, sample: Mapping[str, Any], totals: Mapping[str, Any] | None, scores: list[Any]) -> list[Any]:
    tokens, failed = len(sample["tokens"]), sample["status"] != "ok"
    passes = None if totals is None else int(totals["nfe"])
    agreement = sample.get("agreement")
    return [
        index,
        printable_line(str(sample["prompt"])),
        int(sample["repetition"]),
        printable_line(str(sample.get("category") or "")),
        str(sample["status"]),
        tokens,
        passes,
        round(tokens / passes, 3) if passes else None,
        round(totals["wall_ms"] / tokens, 1) if totals is not None and tokens else None,
        None if agreement is None or agreement != agreement else round(float(agreement), 4),
        excerpt(str(sample["error"] if failed else sample["text"] or "")),
        *(None if value is None else round(float(value), 4) for value in scores),
    ]


class _Shards:
    """Writes documents to shards; keeps them instead while all are small.

    Args:
        folder: of the shards; it is made when the first is written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.starts = folder, [0]
        self._texts: list[str] = []
        self._documents: list[Mapping[str, object]] = []
        self._count = self._size = 0

    def add(self, document: Mapping[str, object]) -> None:
        """Take the next document."""
        text = safe_json(document)
        if self._texts and (self._size + len(text) > SHARD or len(self._texts) >= SHARD_SAMPLES):
            self._write()
        self._texts.append(text)
        if len(self.starts) == 1:
            self._documents.append(document)
        self._size += len(text)
        self._count += 1

    def close(self) -> list[Mapping[str, object]] | None:
        """Write the rest, or return all documents if they are small; no shard is written then."""
        if len(self.starts) == 1 and self._size <= INLINE:
            return self._documents
        self._write()
        self.starts.pop()
        return None

    def _write(self) -> None:
        number = len(self.starts) - 1
        self._folder.mkdir(parents=True, exist_ok=True)
        body = ",\n".join(self._texts)
        (self._folder / f"{number}.js").write_text(f"strideShard({number}, [\n{body}\n]);\n", encoding="utf-8")
        self.starts.append(self._count)
        self._texts, self._documents, self._size = [], [], 0


# Cells and samples that are missing in the figures.


REASONS = 20
"""Reasons of failures of one cell; samples with further ones are counted."""


@dataclass(frozen=True)
class Missing:
    """Cells without figures for one reason, or failed samples of one cell with one reason.

    Args:
        what: skipped, unfinished or failed.
        cells: the cells that it shows.
        count: cells or samples.
        reason: in words.
    """

    what: str
    cells: str
    count: int
    reason: str


def failures(row: pd.Series[Any], rows: pd.DataFrame) -> list[Missing]:
    """Return the failed samples or requests of a cell by their reason, the most frequent first."""
    failed_rows = (rows["status"] != "ok").to_numpy(dtype=bool) & ~rows["warmup"].to_numpy(dtype=bool)
    if not failed_rows.any():
        return []
    errors = rows.loc[failed_rows, "error"].fillna("no reason is stored")
    cells = f"{row['shown']} on {setting_of(row)}"
    reasons = errors.map(printable_line).value_counts()
    failed = [Missing("failed", cells, int(count), str(reason)) for reason, count in reasons.head(REASONS).items()]
    rest = reasons.iloc[REASONS:]
    if len(rest):
        other = f"{len(rest)} further reasons; the page of the cell has every sample"
        failed.append(Missing("failed", cells, int(rest.sum()), other))
    return failed
