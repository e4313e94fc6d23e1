"""A user study of made-up meshes: the page, its order, and votes counted by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stridebench.harness.errors import UsageError
from stridebench.harness.record.outputs import Mesh, save
from stridebench.harness.record.run_notes import condition_file
from stridebench.harness.record.store import Store
from stridebench.harness.synthetic import shapes
from stridebench.reports.papers import user_study as study
from tests.support.cli import stride
from tests.support.fake_store import empty, meta, record, step

SOLID = Mesh(
    np.array([[0.5, 0, 0], [-0.5, 0.4, 0], [-0.5, -0.4, 0], [0, 0, 0.6]]),
    np.array([[0, 1, 2], [0, 1, 3], [1, 2, 3], [2, 0, 3]]),
)
CELLS = ("alpha", "beta", "gamma")
LOST = 4
"""The shape without a mesh of gamma."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Six shapes of three cells, in a real store."""
    fake, folder = empty(), tmp_path_factory.mktemp("study") / "run"
    for cell in CELLS:
        fake.add(meta(cell, baseline="alpha", label=f"the {cell}", backbone="mesh"), [])
    real = Store.create(folder, fake.body)
    for cell in CELLS:
        for i in range(6):
            fields: dict[str, Any] = {"output": "mesh.ply"}
            if (cell, i) == ("gamma", LOST):
                fields = {"output": "", "status": "failed", "error": "cut"}
            real.write(cell, record(f"s{i}", [step()], **fields))
        real.seal(cell, fake.cell(cell).meta)
    save(SOLID, folder / "mesh")
    for i in range(6):
        file = condition_file(folder, "alpha", f"s{i}")
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, shapes.points(SOLID, 64, np.random.default_rng(i)))
    return Store.open(folder)


@pytest.fixture(scope="module")
def exported(run: Store, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    page, key = study.export(run, CELLS, tmp_path_factory.mktemp("out"), cases=5, seed=0)
    return page.read_text(), key


def answers(folder: Path, key: Path, name: str, chosen: dict[int, str], **changes: Any) -> Path:
    """The file of a participant who chose these cells."""
    key_data = json.loads(key.read_text())
    letters = {
        str(n): next(a for a, cell in key_data["cases"][n - 1]["cells"].items() if cell == wish)
        for n, wish in chosen.items()
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"study": key_data["study"], "participant": name, "answers": letters, **changes}))
    return path


def test_the_page_shows_every_choice_and_names_no_cell(exported: tuple[str, Path]) -> None:
    page, key = exported
    assert page.count("<fieldset>") == 5 and page.count('type="radio"') == 15
    assert page.count("data:image/png;base64,") == 20  # three meshes and the points
    words = re.sub(r"base64,[^\"]*", "", page)
    assert not [cell for cell in CELLS if cell in words] and "mesh.ply" not in words
    assert not re.search(r"(src|href)=\"(?!data:)", words)  # nothing is loaded from elsewhere
    assert not re.search(r"\$\w", words)
    assert set(json.loads(key.read_text())["labels"].values()) == {f"the {cell} on mesh" for cell in CELLS}


def test_the_seed_shuffles_the_order(run: Store, exported: tuple[str, Path], tmp_path: Path) -> None:
    page, key = exported
    again = study.export(run, CELLS, tmp_path / "again", cases=5, seed=0)
    assert (again[0].read_text(), again[1].read_text()) == (page, key.read_text())
    other = json.loads(study.export(run, CELLS, tmp_path / "other", cases=5, seed=1)[1].read_text())
    key_data = json.loads(key.read_text())
    assert other["cases"] != key_data["cases"] and other["study"] != key_data["study"]
    assert len({tuple(case["cells"].values()) for case in key_data["cases"]}) > 1
    assert {case["prompt"] for case in key_data["cases"]} == {f"s{i}" for i in range(6) if i != LOST}
    assert key_data["left_out"] == 1


def test_votes_are_counted_by_hand(exported: tuple[str, Path], tmp_path: Path) -> None:
    """Seven participants answer five cases, and the last leaves three open: 16 of 32 votes are for alpha."""
    _, key = exported
    chosen = [("beta", "alpha", "beta", "alpha", "beta")] * 5 + [("alpha",) * 5, ("alpha", "beta")]
    files = [answers(tmp_path, key, f"p{i}", dict(enumerate(one, 1))) for i, one in enumerate(chosen)]
    tally = study.tally(key, files)
    assert [one.votes for one in tally.votes] == [16, 16, 0]
    assert (tally.participants, tally.unanswered) == (7, 3)
    share = tally.votes[0].share
    assert share is not None and share.estimate == 0.5 and share.n == 7 and share.low is not None and share.low < 0.5
    alone = study.tally(key, files[:1]).votes[0].share
    assert alone is not None and (alone.n, alone.low) == (1, None)  # the cases of one person are one cluster


def test_export_and_tally_run_from_the_command_line(run: Store, tmp_path: Path) -> None:
    words = ("paper", "study", "export", run.path, "alph", "beta", "--out", tmp_path, "--cases", 2)
    assert stride(*words).code == 0 and (tmp_path / "questionnaire.html").exists()
    file = answers(tmp_path, tmp_path / "key.json", "one", {1: "alpha", 2: "beta"})
    tally = ("paper", "study", "tally", tmp_path / "key.json", file)
    printed = stride(*tally).out
    assert "the alpha on mesh" in printed and "0.500 (n=1)" in printed
    assert stride(*tally, "--json").document["votes"][1]["votes"] == 1


@pytest.mark.parametrize(
    ("cells", "cases", "message"),
    [
        (("alpha",), 2, "2 to 8 different cells; found alpha"),
        (("alpha", "alpha"), 2, "2 to 8 different cells"),
        (CELLS, 6, "6 cases were asked for, and 5 of 6 shapes became a mesh in all of"),
    ],
)
def test_a_study_that_cannot_be_made_is_refused(
    run: Store, tmp_path: Path, cells: tuple[str, ...], cases: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        study.export(run, cells, tmp_path / "no", cases)
    assert not (tmp_path / "no").exists()


def test_answers_that_cannot_be_counted_are_refused(exported: tuple[str, Path], tmp_path: Path) -> None:
    _, key = exported
    good = answers(tmp_path, key, "p", {1: "alpha"})
    other = answers(tmp_path, key, "q", {1: "alpha"}, study="0")
    wrong = answers(tmp_path, key, "r", {}, answers={"1": "D", "9": "A"})
    (tmp_path / "text.json").write_text("[]")
    for files, message in (
        ([good, good], "counted already"),
        ([other], "answers the study 0, and the key is of"),
        ([wrong], "does not offer: 1: 'D', 9: 'A'"),
        ([tmp_path / "text.json"], "holds no answers"),
    ):
        with pytest.raises(UsageError, match=message):
            study.tally(key, files)
    with pytest.raises(UsageError, match="is not a key of a study"):
        study.tally(good, [good])
