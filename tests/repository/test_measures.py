"""Which mutants the tests kill."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.mutation import covering, mutants, trials

SPINE = """
if TYPE_CHECKING:
    import a
def f(x: int | None = 3) -> int | None:
    y: int = 2
    if x + 1 > 2:
        raise ValueError(f"{x + 3}")
    return x - 1
"""


def test_annotations_and_messages_are_not_mutated():
    begin, end = zip(*mutants.inert(SPINE), strict=True)
    lines = SPINE.splitlines()
    inert = sorted(lines[a - 1][b:d] for (a, b), (_, d) in zip(begin, end, strict=True))
    assert inert == ["TYPE_CHECKING", 'ValueError(f"{x + 3}")', "int", "int | None", "int | None"]


def test_a_sample_is_seeded_and_takes_each_place_once():
    population = [mutants.Mutant("a.py", f"op{k}", 0, line, 0) for line in range(20) for k in range(line + 1)]
    chosen = mutants.sample(population, 10, seed=3)
    assert chosen == mutants.sample(population, 10, seed=3) != mutants.sample(population, 10, seed=4)
    assert len({mutant.line for mutant in chosen}) == 10


def test_the_tests_of_the_mirroring_file_come_first_then_the_quickest_within_the_budget():
    mirror, other = "tests/harness/core/test_loop.py::a", "tests/methods/test_b.py::b"
    seconds = {mirror: 6.0, other: 0.1, "slow": 100.0, "medium": 5.0}
    assert covering.stages("harness/core/loop.py", seconds, seconds, 30.0) == [[mirror], [other, "medium"]]
    assert covering.stages("harness/core/loop.py", ["slow"], seconds, 30.0) == [["slow"]]
    assert covering.stages("harness/core/loop.py", [], seconds, 30.0) == []


def test_lines_of_a_fixture_are_covered_by_every_test_of_its_file():
    tests = {"x.py::a", "x.py::b", "y.py::c", "y.py::d"}
    assert covering.expanded(["x.py::a|setup", "y.py::c|run", ""], tests) == {"x.py::a", "x.py::b", "y.py::c"}


def test_lines_that_run_at_import_are_covered_by_every_test_of_their_module():
    covered = covering.Covering(seconds={"a": 1.0, "b": 1.0})
    file = "harness/core/loop.py"
    covered.tests[(file, 9)] |= {"a", "b", "failed"}
    covered.imported.add((file, 3))
    assert covered.of(mutants.Mutant(file, "op", 0, 3, 0)) == {"a", "b"}
    assert covered.of(mutants.Mutant(file, "op", 0, 4, 0)) == set()


def test_an_id_that_a_mutant_changed_is_no_failure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "test_x.py").write_text("import pytest\n@pytest.mark.parametrize('v', [2])\ndef test_a(v): pass\n")
    arguments = [*trials.PYTEST, "--rootdir", str(tree), "-c", str(tree / "pytest.ini")]
    (tree / "pytest.ini").write_text("[pytest]\n")
    assert pytest.main([*arguments, f"{tree}/test_x.py::test_a[3]"]) == 4
    tree.with_suffix(".log").write_text("".join(capfd.readouterr()))
    assert trials.absent(tree) == {"test_x.py::test_a"}


def test_the_lines_of_a_condition_are_those_of_its_statement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(covering, "ROOT", tmp_path)
    (tmp_path / "conditions.py").write_text("if (\n    a\n    and b\n):\n    c = [\n        1\n    ]\n")
    lines = [covering.statement("conditions.py", line) for line in range(1, 8)]
    assert lines == [range(1, 5)] * 4 + [range(5, 8)] * 3


RESULTS = json.loads((Path(mutants.__file__).parent / "results.json").read_text(encoding="utf-8"))


def test_92_in_100_mutants_were_killed_and_the_results_agree_with_each_other() -> None:
    outcomes = {outcome["key"]: outcome["outcome"] for outcome in RESULTS["outcomes"]}
    counts = Counter(outcomes.values())
    survivors = {key for key, outcome in outcomes.items() if outcome in ("survived", "uncovered")}
    assert len(RESULTS["outcomes"]) == len(outcomes) == RESULTS["sample"] == 300
    assert RESULTS["mutants"] == len(outcomes) - counts["invalid"] >= 290
    assert RESULTS["killed"] == counts["killed"] + counts["timeout"] == RESULTS["mutants"] - len(survivors)
    assert RESULTS["share"] == round(RESULTS["killed"] / RESULTS["mutants"], 4) >= 0.92
    assert {survivor["key"] for survivor in RESULTS["survivors"]} == survivors
    assert all(survivor["reason"] for survivor in RESULTS["survivors"])
    assert all(RESULTS[word] for word in ("commit", "commands", "machine", "cosmic_ray", "cpu_seconds"))
    killers = {outcome["killer"].partition("[")[0] for outcome in RESULTS["outcomes"] if outcome["killer"]}
    for killer in sorted(killers):
        file, *_, name = killer.split("::")
        assert f"def {name}(" in (mutants.ROOT / file).read_text(encoding="utf-8"), f"{killer} was renamed or removed"
