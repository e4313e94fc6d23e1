"""A user study of meshes: a questionnaire that names no method, its key, and the count of its votes.

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
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from stridebench.harness.errors import UsageError
from stridebench.harness.record import stats
from stridebench.harness.record.run_notes import condition_file
from stridebench.harness.record.store import Store
from stridebench.reports.finished_cell import FinishedCell
from stridebench.reports.meshes import cloud, draw
from stridebench.reports.pareto import STYLE
from stridebench.reports.text_table import Column, TextTable, estimate_text

PAGE = Path(__file__).parents[1] / "data" / "study.html"
LETTERS = "ABCDEFGH"
"""Names of the choices of a case; a study compares as many cells at most."""
EDGE = 0.5
"""Width of the wireframe, in points."""


@dataclass(frozen=True)
class StudyCase:
    """A shape of the questionnaire.

    Args:
        cells: the cell that made the mesh of each letter.
    """

    prompt: str
    cells: Mapping[str, str]


@dataclass(frozen=True)
class StudyKey:
    """The facts that the questionnaire hides.

    Args:
        study: digest of the rest, which the answers name.
        labels: labels of the cells, as in tables.
        left_out: number of shapes that are not asked about, because a cell made no mesh of them.
        cases: in the order of the questionnaire.
    """

    study: str
    seed: int
    labels: Mapping[str, str]
    left_out: int
    cases: tuple[StudyCase, ...]


def export(store: Store, cells: Sequence[str], folder: Path, cases: int = 20, seed: int = 0) -> list[Path]:
    """Write questionnaire.html, which contains its pictures, and key.json. The same seed gives the same order."""
    if not 2 <= len(set(cells)) == len(cells) <= len(LETTERS):
        raise UsageError(f"a study compares 2 to {len(LETTERS)} different cells; found {', '.join(cells) or 'none'}")
    finished = {cell: FinishedCell.of(store.cell(cell)) for cell in cells}
    files = {cell: _meshes(store.path, samples) for cell, samples in finished.items()}
    shared = [prompt for prompt in files[cells[0]] if all(prompt in meshes for meshes in files.values())]
    prompts = {str(prompt) for one in finished.values() for prompt in one.cell.samples["prompt"]}
    if not 1 <= cases <= len(shared):
        raise UsageError(
            f"{cases} cases were asked for, and {len(shared)} of {len(prompts)} shapes became a mesh in all of "
            f"{', '.join(cells)}: ask for as many at most, or name other cells or a run of more shapes"
        )
    random = np.random.default_rng(seed)
    drawn = [shared[int(i)] for i in random.permutation(len(shared))[:cases]]
    orders = [[cells[int(i)] for i in random.permutation(len(cells))] for _ in drawn]
    asked_cases = tuple(
        StudyCase(p, dict(zip(LETTERS, order, strict=False))) for p, order in zip(drawn, orders, strict=True)
    )
    metas = {cell: samples.cell.meta for cell, samples in finished.items()}
    labels = {cell: f"{meta.label} on {meta.backbone}" for cell, meta in metas.items()}
    content = json.dumps([seed, sorted(cells), [asdict(case) for case in asked_cases]])
    study = hashlib.sha256(content.encode()).hexdigest()[:16]
    key = StudyKey(study, seed, labels, len(prompts) - len(shared), asked_cases)
    base = str(metas[cells[0]].baseline)
    points = {case.prompt: condition_file(store.path, base, case.prompt) for case in asked_cases}
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "questionnaire.html", folder / "key.json"]
    paths[0].write_text(_page(key, files, points), encoding="utf-8")
    paths[1].write_text(json.dumps(asdict(key), indent=1) + "\n", encoding="utf-8")
    return paths


def _meshes(run: Path, finished: FinishedCell) -> dict[str, Path]:
    """Return the first mesh of each prompt."""
    meshes: dict[str, Path] = {}
    outputs = finished.samples["output"].sort_index()
    for prompt, output in zip(outputs.index.get_level_values("prompt"), outputs, strict=True):
        if str(output).endswith(".ply"):
            meshes.setdefault(str(prompt), run / str(output))
    return meshes


def _page(key: StudyKey, files: Mapping[str, Mapping[str, Path]], points: Mapping[str, Path]) -> str:
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
    """Return a PNG without metadata, in base64."""
    with rc_context(STYLE):
        figure = Figure(figsize=(3, 3), dpi=110)
        axes: Any = figure.add_axes((0, 0, 1, 1), projection="3d")
        paint(axes, path)
        data = io.BytesIO()
        figure.savefig(data, format="png", metadata={"Software": None})
    return base64.b64encode(data.getvalue()).decode()


@dataclass(frozen=True)
class Votes:
    """Votes for one cell.

    Args:
        share: its share of all answers, with an interval over participants.
    """

    label: str
    votes: int
    share: stats.Interval | None
    cell: str = ""


@dataclass(frozen=True)
class VoteTally:
    """Votes by cell. ``unanswered`` counts the cases that participants left open."""

    participants: int
    unanswered: int
    votes: tuple[Votes, ...]


def tally(key: Path, answers: Sequence[Path]) -> VoteTally:
    """Count the answers of a study, one file a participant."""
    study = _read_key(key)
    chosen: dict[str, dict[int, str]] = {}
    for path in answers:
        participant, cells = _read_answers(path, study)
        if participant in chosen:
            raise UsageError(f"{path} is of the participant {participant}, who is counted already; give each file once")
        chosen[participant] = cells
    # The intervals resample clusters of "prompts": here one participant with all cases, even if there is only one.
    choices = [((who, 0), cell) for who, cells in chosen.items() for cell in cells.values()]
    names = ["prompt", "repetition"]
    index = pd.MultiIndex.from_tuples([cluster for cluster, _ in choices], names=names) if choices else None
    cell_chosen = pd.Series([cell for _, cell in choices], index, dtype=object)
    votes = []
    for cell, label in study.labels.items():
        voted = cell_chosen == cell
        votes.append(Votes(label, int(voted.sum()), stats.bounded_mean(voted.astype(float)) if choices else None, cell))
    return VoteTally(len(chosen), len(study.cases) * len(chosen) - len(choices), tuple(votes))


def _read_key(path: Path) -> StudyKey:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        cases = tuple(StudyCase(case["prompt"], dict(case["cells"])) for case in data.pop("cases"))
        return StudyKey(cases=cases, **data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is not a key of a study: {error}; give the key.json of `stride paper study export`"
        ) from error


def _read_answers(path: Path, key: StudyKey) -> tuple[str, dict[int, str]]:
    """Read the participant and the cell chosen in each answered case."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        study, participant, letters = str(data["study"]), str(data["participant"]), dict(data["answers"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} holds no answers: {error!r}; give files that the questionnaire saved") from error
    if study != key.study:
        raise UsageError(f"{path} answers the study {study}, and the key is of {key.study}; count them apart")
    cases = {str(number): case for number, case in enumerate(key.cases, 1)}
    wrong = [
        f"{number}: {letter!r}"
        for number, letter in letters.items()
        if number not in cases or letter not in cases[number].cells
    ]
    if wrong:
        raise UsageError(f"{path} has answers that the questionnaire does not offer: {', '.join(wrong)}")
    return participant, {int(number): cases[number].cells[letter] for number, letter in letters.items()}


def table(tally: VoteTally) -> TextTable:
    """Return the votes as a table."""
    columns = (Column("label", "decoding", rank=0), Column("votes", "votes"), Column("share", "share of votes"))
    rows = [[votes.label, str(votes.votes), estimate_text(votes.share, 3)] for votes in tally.votes]
    notes = [f"{tally.unanswered} cases were left open", "[low, high]: 95 % interval over participants"]
    return TextTable(f"User study, {tally.participants} participants", columns, rows, notes)
