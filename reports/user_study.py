"""A user study of meshes: a questionnaire that names no method, a key to it, and the count of its votes.

Source: Chen et al., XSpecMesh, section 7.4: 20 cases of three choices, shuffled and anonymised, 70 participants.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from harness.errors import UsageError
from harness.record import stats
from harness.record.store import condition_file
from reports.meshes import cloud, draw
from reports.papers.measured import written
from reports.plot_style import STYLE
from reports.summary import FinishedCell
from reports.text_table import Column, TextTable

if TYPE_CHECKING:
    from harness.record.store import Store

PAGE = Path(__file__).parent / "data" / "study.html"
LETTERS = "ABCDEFGH"
"""Names of the choices of a case; as many cells as that at most."""
EDGE = 0.5
"""Width of the wireframe, in points."""


@dataclass(frozen=True)
class Case:
    """A shape of the questionnaire.

    Args:
        prompt: the shape. cells: whose mesh each choice is, by letter.
    """

    prompt: str
    cells: Mapping[str, str]


@dataclass(frozen=True)
class Key:
    """What the questionnaire does not say.

    Args:
        study: digest of the rest; answers name it. seed: of the order. labels: of the cells, as in tables.
        left_out: shapes that not every cell made a mesh of, so that nobody could be asked about them.
    """

    study: str
    seed: int
    labels: Mapping[str, str]
    left_out: int
    cases: tuple[Case, ...]


def export(store: Store, cells: Sequence[str], folder: Path, cases: int = 20, seed: int = 0) -> list[Path]:
    """Write questionnaire.html, which holds its pictures, and key.json; the same seed gives the same order.

    Raises:
        UsageError: fewer than two cells, too many or the same twice; cells of other shapes; or too few shapes of which
            every cell made a mesh.
    """
    if not 2 <= len(set(cells)) == len(cells) <= len(LETTERS):
        raise UsageError(f"a study compares 2 to {len(LETTERS)} different cells; found {', '.join(cells) or 'none'}")
    held = {cell: FinishedCell.of(store.cell(cell)) for cell in cells}
    files = {cell: _meshes(store.path, one) for cell, one in held.items()}
    everywhere = [prompt for prompt in files[cells[0]] if all(prompt in found for found in files.values())]
    asked = {str(prompt) for one in held.values() for prompt in one.cell.samples["prompt"]}
    if not 1 <= cases <= len(everywhere):
        raise UsageError(
            f"{cases} cases were asked for, and {len(everywhere)} of {len(asked)} shapes became a mesh in all of "
            f"{', '.join(cells)}: ask for as many at most, or name other cells or a run of more shapes"
        )
    random = np.random.default_rng(seed)
    drawn = [everywhere[int(i)] for i in random.permutation(len(everywhere))[:cases]]
    order = [[cells[int(i)] for i in random.permutation(len(cells))] for _ in drawn]
    shown = tuple(Case(p, dict(zip(LETTERS, one, strict=False))) for p, one in zip(drawn, order, strict=True))
    labels = {cell: f"{one.cell.meta['label']} on {one.cell.meta['backbone']}" for cell, one in held.items()}
    plain = json.dumps([seed, sorted(cells), [asdict(case) for case in shown]])
    study = hashlib.sha256(plain.encode()).hexdigest()[:16]
    key = Key(study, seed, labels, len(asked) - len(everywhere), shown)
    base = str(held[cells[0]].cell.meta["baseline"])
    points = {case.prompt: condition_file(store.path, base, case.prompt) for case in shown}
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "questionnaire.html", folder / "key.json"]
    paths[0].write_text(_page(key, files, points), encoding="utf-8")
    paths[1].write_text(json.dumps(asdict(key), indent=1) + "\n", encoding="utf-8")
    return paths


def _meshes(run: Path, held: FinishedCell) -> dict[str, Path]:
    """The first mesh of each prompt."""
    found: dict[str, Path] = {}
    outputs = held.samples["output"].sort_index()
    for prompt, output in zip(outputs.index.get_level_values("prompt"), outputs, strict=True):
        if str(output).endswith(".ply"):
            found.setdefault(str(prompt), run / str(output))
    return found


def _page(key: Key, files: Mapping[str, Mapping[str, Path]], points: Mapping[str, Path]) -> str:
    cases = []
    for number, case in enumerate(key.cases, 1):
        tiles = [_tile("points", _picture(points[case.prompt], cloud))] if points[case.prompt].is_file() else []
        for letter, cell in case.cells.items():
            choice = f'<input type="radio" name="{number}" value="{letter}">{letter}'
            tiles.append(_tile(choice, _picture(files[cell][case.prompt], lambda axes, path: draw(axes, path, EDGE))))
        cases.append(f'<fieldset><legend>Case {number}</legend><div class="row">{"".join(tiles)}</div></fieldset>')
    template = string.Template(PAGE.read_text(encoding="utf-8"))
    return template.substitute(study=key.study, count=len(key.cases), cases="\n".join(cases))


def _tile(caption: str, picture: str) -> str:
    return f'<figure><label><img alt="" src="data:image/png;base64,{picture}"><span>{caption}</span></label></figure>'


def _picture(path: Path, paint: Callable[[Any, Path], None]) -> str:
    """A PNG without metadata, in base64."""
    with rc_context(STYLE):
        figure = Figure(figsize=(3, 3), dpi=110)
        axes: Any = figure.add_axes((0, 0, 1, 1), projection="3d")
        paint(axes, path)
        data = io.BytesIO()
        figure.savefig(data, format="png", metadata={"Software": None})
    return base64.b64encode(data.getvalue()).decode()


@dataclass(frozen=True)
class Votes:
    """Of one cell.

    Args:
        share: of all answers given, with an interval over participants.
    """

    label: str
    votes: int
    share: stats.Interval | None


@dataclass(frozen=True)
class Tally:
    """Votes by cell; ``unanswered`` counts cases that a participant left open."""

    participants: int
    unanswered: int
    votes: tuple[Votes, ...]


def tally(key: Path, answers: Sequence[Path]) -> Tally:
    """Count the answers of a study, a file a participant.

    Raises:
        UsageError: a file is no key or no answers, belongs to another study, is of a participant who is counted
            already, or names a case or a choice that there is not.
    """
    known = _read_key(key)
    chosen: dict[str, dict[int, str]] = {}
    for path in answers:
        participant, found = _read_answers(path, known)
        if participant in chosen:
            raise UsageError(f"{path} is of the participant {participant}, who is counted already; give each file once")
        chosen[participant] = found
    rows = [(who, case, cell) for who, found in chosen.items() for case, cell in found.items()]
    clusters = [(who, 0) for who, _, _ in rows]  # a person's cases are one cluster, even where there is one person
    index = pd.MultiIndex.from_tuples(clusters, names=["prompt", "repetition"]) if rows else None
    given = pd.Series([row[2] for row in rows], index, dtype=object)
    votes = tuple(
        Votes(label, int((given == cell).sum()), stats.mean((given == cell).astype(float)) if rows else None)
        for cell, label in known.labels.items()
    )
    return Tally(len(chosen), len(known.cases) * len(chosen) - len(rows), votes)


def _read_key(path: Path) -> Key:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        cases = tuple(Case(case["prompt"], dict(case["cells"])) for case in data.pop("cases"))
        return Key(cases=cases, **data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is no key of a study: {error}; give the key.json of `stride study export`") from error


def _read_answers(path: Path, key: Key) -> tuple[str, dict[int, str]]:
    """A participant and the cell chosen in each answered case."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        study, participant, given = str(data["study"]), str(data["participant"]), dict(data["answers"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} holds no answers: {error!r}; give files that the questionnaire saved") from error
    if study != key.study:
        raise UsageError(f"{path} answers the study {study}, and the key is of {key.study}; count them apart")
    cases = {str(number): case for number, case in enumerate(key.cases, 1)}
    wrong = [f"{number}: {letter!r}" for number, letter in given.items() if letter not in _choices(cases, number)]
    if wrong:
        raise UsageError(f"{path} has answers that the questionnaire does not offer: {', '.join(wrong)}")
    return participant, {int(number): cases[number].cells[letter] for number, letter in given.items()}


def _choices(cases: Mapping[str, Case], number: str) -> Mapping[str, str]:
    return cases[number].cells if number in cases else {}


def table(found: Tally) -> TextTable:
    """Votes as a table."""
    heads = (Column("label", "decoding", rank=0), Column("votes", "votes"), Column("share", "share of votes"))
    rows = [[one.label, str(one.votes), written(one.share, 3)] for one in found.votes]
    notes = [f"{found.unanswered} cases were left open", "[low, high]: 95 % interval over participants"]
    return TextTable(f"User study, {found.participants} participants", heads, rows, notes)
