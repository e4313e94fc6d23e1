"""The pages of engines: their tables, the page of a cell with its requests, and texts that stay text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stridebench.harness.record.run_folders import run_folders
from stridebench.reports.html import page
from stridebench.reports.html.headline import VERDICTS_OF_ENGINES
from stridebench.reports.html.server import Library
from stridebench.reports.tables import COLUMNS_OF_ENGINES
from tests.support import page_runs
from tests.support.parsed_page import parsed, samples_in


@pytest.fixture(autouse=True)
def without_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stridebench.reports.html.text.write", lambda folder: None)


@pytest.fixture()
def made(tmp_path: Path) -> Path:
    page.write([page_runs.with_engines(tmp_path / "run")], tmp_path / "out")
    return tmp_path / "out"


def test_the_table_of_engines_opens_their_pages(made: Path) -> None:
    index = parsed(made / "index.html")
    links = {attributes.get("href") for tag, attributes in index.elements if tag == "a"}
    assert {"cells/plain.html", "cells/drafts.html"} <= links
    assert re.search(r"2\s+cells of engines", index.text) and re.search(r"4\s+requests", index.text)
    assert re.search(r"2\s+failed requests", index.text)
    assert "No cell is finished yet" not in index.text


def test_the_page_of_a_cell_says_verdict_acceptance_and_latencies(made: Path) -> None:
    text = parsed(made / "cells" / "drafts.html").text
    for words in (
        VERDICTS_OF_ENGINES["not refuted"][1],
        "its plain decode",
        "one request at a time",
        "1 x timeout: no answer within 1 s",
        "50.0% of 2 outputs",
        "Acceptance by position",
        "Time to the first token",
        "Requests in time",
    ):
        assert words in text, words
    assert re.search(r"length a draft\s*2.00\s*1 \+ accepted", text)
    assert re.search(r"x plain, paired\s*2.00 \(n=2\)", text)  # 40 ms against 20 ms, twice


def test_a_plain_decode_has_no_acceptance(made: Path) -> None:
    text = parsed(made / "cells" / "plain.html").text
    assert "this is the plain decode" in text and "Acceptance by position" not in text


def test_every_request_has_a_row_and_a_document(made: Path) -> None:
    data = samples_in(made / "cells" / "drafts.html")
    assert data["count"] == 3 and [document["text"] for document in data["documents"]] == ["answer 0", "answer 1", ""]
    row = dict(zip(data["names"], data["rows"][0][1:], strict=True))
    assert row == {
        **{"prompt": "p0", "repetition": 0, "status": "ok", "tokens": 8, "TTFT ms": 5.0, "TPOT ms": 2.5},
        **{"seconds": 0.02, "drafted": 8, "accepted": 4, "length a draft": 2.0, "length a pass": 2.0},
        **{"finish": "length", "output": "answer 0"},
    }
    assert data["rows"][2][3] == "timeout" and data["documents"][2]["error"] == "no answer within 1 s"


def test_an_unfinished_cell_is_named_and_its_run_goes_on(tmp_path: Path) -> None:
    store = page_runs.with_engines(tmp_path / "run", sealed=False)
    text = parsed(page.write([store], tmp_path / "out")).text
    assert re.search(r"unfinished\s*1\s*no answer within 1 s\s*drafts on tabular", text)
    assert not (tmp_path / "out" / "cells" / "drafts.html").exists()
    entry = next(one for one in run_folders(tmp_path) if one.name == "run")
    assert (entry.finished, entry.planned) == (1, 2)
    assert Library(tmp_path, tmp_path / "site").state(("run",)) == "1+3"


def test_a_finished_run_of_engines_does_not_go_on(tmp_path: Path) -> None:
    page_runs.with_engines(tmp_path / "run")
    assert Library(tmp_path, tmp_path / "site").state(("run",)) == ""


def test_every_verdict_and_column_of_an_engine_is_explained() -> None:
    assert all(column.help for column in COLUMNS_OF_ENGINES if column.key not in ("label", "verdict"))
    source = Path("harness/engines/serving/verdict.py").read_text(encoding="utf-8")
    said = set(re.findall(r'return (?:str\()?"([a-z ]+)"|else "([a-z ]+)"|"verdict": "([a-z ]+)"', source))
    assert {word for words in said for word in words if word} <= set(VERDICTS_OF_ENGINES)
