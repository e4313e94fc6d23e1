"""Verbs that list, that read stored runs or that refuse a name start without torch or plots."""

from __future__ import annotations

import json
import subprocess
import sys
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
SHOWN = """
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
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            main()
        except SystemExit as end:
            assert not end.code, (words, end.code)
    heavy = [name for name in ("torch", "transformers", "jaxtyping", "pandas") if name in sys.modules]
    shown[name] = {"out": out.getvalue(), "heavy": heavy}
print(json.dumps(shown))
"""


def shown(environment: dict[str, str], *options: str) -> dict[str, Any]:
    """Return what every verb prints and the heavy libraries that are imported then, from one process."""
    command = [sys.executable, "-c", SHOWN, json.dumps(VERBS), *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.slow
def test_verbs_that_list_import_no_heavy_library_and_show_what_the_registries_say(stride_env):
    """`python -m tests.catalogue --write` renews the catalogue that they read."""
    light, full = shown(stride_env), shown(stride_env, "every module")
    assert {name: light[name]["heavy"] for name in VERBS} == {key: [] for key in VERBS}
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
IMPORTED = """
import contextlib, io, json, sys
from stridebench.harness.cli.main import main
shown = {}
for name, words in json.loads(sys.argv[1]).items():
    sys.argv = ["stride", *words]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            main()
        except SystemExit as end:
            heavy = [module for module in ("torch", "transformers", "matplotlib") if module in sys.modules]
            shown[name] = [end.code or 0, heavy]
import stridebench.harness.audit.verdict  # draws the curve of e-values of a page
shown["report"][1] += ["torch"] * ("torch" in sys.modules)
print(json.dumps(shown))
"""


@pytest.mark.slow
def test_reading_a_stored_run_or_refusing_a_name_imports_neither_torch_nor_plots(tmp_path, stride_env):
    store = stored(tiny(), tmp_path / "RUN")
    report = RunReport(store)
    report.write(store.path / "report")
    append(tmp_path / "HISTORY", report.frame.to_dict("records"), store)
    command = [sys.executable, "-c", IMPORTED, json.dumps(STORED)]
    done = subprocess.run(command, env=stride_env, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert {name: heavy for name, (_, heavy) in shown.items()} == {key: [] for key in STORED}
    assert {name: code == 2 for name, (code, _) in shown.items()} == {key: key.startswith("no ") for key in STORED}
