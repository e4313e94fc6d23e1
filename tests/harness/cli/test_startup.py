"""Verbs that list, that read stored runs or that refuse a name start without torch or plots."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stridebench.harness.cli.main import only_lists
from stridebench.reports.run_report import RunReport, append
from tests import catalogue
from tests.support.fake_store import tiny
from tests.support.page_runs import stored

VERBS = {
    "list": ("list", "--json"),
    "matrix": ("list", "matrix", "--json"),
    "dry run": ("run", "quick", "--dry-run", "--json"),
    "tiny": ("run", "quick", "--tiny", "--dry-run"),
    "papers": ("paper", "list", "--json"),
    "help": ("verify", "--help"),
}
PROGRAM = """
import contextlib, io, json, sys
if "every module" in sys.argv:
    from stridebench.harness import discover
    discover.load_all()
    from tests import catalogue  # which imports all that registers something
    document = catalogue.written(catalogue.built())
else:
    document = None
from stridebench.harness.cli.main import main
shown = {"catalogue": document}
for name, words in json.loads(sys.argv[1]).items():
    sys.argv = ["stride", *words]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    heavy = [name for name in ("torch", "transformers", "matplotlib", "jaxtyping", "pandas") if name in sys.modules]
    shown[name] = {"code": code, "out": out.getvalue(), "heavy": heavy}
if "report" in shown:
    import stridebench.harness.audit.verdict  # draws the curve of e-values of a page
    shown["report"]["heavy"] += ["torch"] * ("torch" in sys.modules)
print(json.dumps(shown))
"""


def shown(verbs: dict[str, Any], environment: dict[str, str], folder: Path, *options: str) -> dict[str, Any]:
    """Return what every verb prints and the heavy libraries that are imported then, from one process."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(verbs), *options]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.slow
def test_verbs_that_list_import_no_heavy_library_and_show_what_the_registries_say(stride_env, tmp_path):
    """`python -m tests.catalogue --write` renews the catalogue that they read."""
    light, full = shown(VERBS, stride_env, tmp_path), shown(VERBS, stride_env, tmp_path, "every module")
    assert {name: (light[name]["heavy"], light[name]["code"]) for name in VERBS} == {key: ([], 0) for key in VERBS}
    assert "torch" in full["list"]["heavy"]
    assert {name: light[name]["out"] for name in VERBS} == {name: full[name]["out"] for name in VERBS}
    assert all(light[name]["out"] for name in VERBS)
    assert full["catalogue"] == catalogue.FILE.read_text(encoding="utf-8"), "see this test's docstring"


def test_command_lines_that_only_list_are_recognised():
    assert (
        only_lists(["list"])
        and only_lists(["paper", "list"])
        and only_lists(["run", "quick", "--dry-run"])
        and only_lists(["doctor", "-h"])
    )
    assert not only_lists([]) and not only_lists(["run", "quick"]) and not only_lists(["report", "list"])


STORED = {
    "report": ("report", "RUN"),
    "report json": ("report", "RUN", "--json"),
    "against": ("report", "RUN", "--against", "RUN"),
    "show": ("show", "RUN"),
    "cell": ("show", "RUN", "m"),
    "query": ("query", "select count(*) as n from cells", "RUN"),
    "gate make": ("gate", "make", "RUN", "--out", "BASELINE"),
    "gate check": ("gate", "check", "RUN", "--baseline", "BASELINE"),
    "history": ("gate", "history", "HISTORY", "--json"),
    "no run": ("report", "RUN/none"),
    "no cell": ("show", "RUN", "nothing"),
    "no suite": ("run", "nothing"),
    "no method": ("run", "quick", "--method", "nothing"),
    "no baseline": ("gate", "check", "RUN", "--baseline", "RUN/none"),
    "no audited run": ("audit", "RUN/none"),
    "no verified method": ("verify", "nothing"),
    "no results": ("exchange", "import", "RUN/none"),
    "no recipe": ("train", "backbone", "nothing"),
    "no engine suite": ("engine", "run", "nothing"),
    "no weights": ("fetch", "nothing"),
}
"""Commands that read a stored run, and those that refuse a path or a name."""


@pytest.mark.slow
def test_reading_a_stored_run_or_refusing_a_name_imports_neither_torch_nor_plots(tmp_path, stride_env):
    store = stored(tiny(), tmp_path / "RUN")
    report = RunReport(store)
    report.write(store.path / "report")
    append(tmp_path / "HISTORY", report.frame.to_dict("records"), store)
    told = shown(STORED, stride_env, tmp_path)
    heavy = {name: {"torch", "transformers", "matplotlib"}.intersection(told[name]["heavy"]) for name in STORED}
    assert heavy == {name: set() for name in STORED}
    assert {name: told[name]["code"] == 2 for name in STORED} == {name: name.startswith("no ") for name in STORED}
