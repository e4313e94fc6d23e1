"""Laws on disk: read where nothing that they rest on has changed, and enumerated again everywhere else."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.discover import load_all
from stridebench.harness.errors import EnumerationLimit, RunIncomplete
from stridebench.harness.plan import contract
from stridebench.harness.proof import catalogue, distance, kept_laws
from stridebench.harness.proof.cases import CASES, PUBLISHED, Case, cases_of, cases_to_verify, halves
from stridebench.harness.proof.catalogue import Piece, compute, joined, pieces
from stridebench.harness.proof.enumerate import EnumeratingDraws
from stridebench.harness.proof.kept_laws import LawKeeper, keeping, kept, sheet
from stridebench.harness.proof.mutants import mutants_of, try_mutant
from stridebench.harness.proof.prove import prove
from stridebench.harness.registry import METHODS
from tests.support.one_by_one import OneByOne, RankedChoice, register

FEW = tuple(case for case in CASES if case.outputs <= 8 and case.sampling.temperature > 0)[:2]
ROOT = Path(kept_laws.__file__).resolve().parents[2]
load_all()
APPROXIMATE = [item.claim for item in contract.settings_of("speculative")].index(Claim.APPROXIMATE)


def method(name: str = "speculative") -> Method[Any]:
    first: Method[Any] = METHODS.get(name).variants()[0]
    return first


def keeper(folder: Path, command: str, fresh: bool = False) -> LawKeeper:
    return LawKeeper(folder, fresh, command)


def proved(folder: Path, command: str, fresh: bool = False) -> LawKeeper:
    with keeping(keeper(folder, command, fresh)) as used:
        assert prove(method(), FEW, mutants=False).verdict == "exact"
    return used


class Pinned(OneByOne):
    """Each token is an answer of the pinned stream."""

    pinned = frozenset({"init"})

    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        return run.draws.categorical(p, "init")[0]


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a digest rests on is read anew in each test, whoever writes to this checkout meanwhile."""
    monkeypatch.setattr("stridebench.harness.IMPORTED", math.inf)
    kept_laws.digest.cache_clear()
    monkeypatch.setattr(distance, "_memos", [{}])
    yield
    kept_laws.digest.cache_clear()


@pytest.mark.usefixtures("unchecked")
class TestSheets:
    def test_a_second_command_enumerates_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first = proved(tmp_path, "monday")
        assert (first.used, first.enumerated) == (0, 2 * len(FEW))  # the method's laws and the chain rule's
        (file,) = tmp_path.iterdir()
        assert file.suffix == ".json"
        for name in ("_enumerated", "reference_law"):
            monkeypatch.setattr(distance, name, None)
        kept_laws.digest.cache_clear()
        second = proved(tmp_path, "tuesday")
        assert (second.used, second.enumerated) == (2 * len(FEW), 0)

    def test_what_a_command_enumerated_itself_is_not_from_the_cache(self, tmp_path: Path) -> None:
        proved(tmp_path, "monday")
        again = proved(tmp_path, "monday")
        assert (again.used, again.enumerated) == (0, 0)

    def test_fresh_enumerates_again_and_keeps(self, tmp_path: Path) -> None:
        folder = tmp_path / "cache" / "laws"  # which the first command makes
        proved(folder, "monday")
        assert proved(folder, "tuesday", fresh=True).enumerated == 2 * len(FEW)
        assert proved(folder, "wednesday").used == 2 * len(FEW)

    @pytest.mark.parametrize("damage", ["byte", "cut", "empty"])
    def test_a_damaged_sheet_is_enumerated_again(self, tmp_path: Path, damage: str) -> None:
        proved(tmp_path, "monday")
        (file,) = tmp_path.iterdir()
        data = file.read_bytes()
        place = data.index(b"0.") + 3
        flipped = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        file.write_bytes({"byte": flipped, "cut": data[:-20], "empty": b""}[damage])
        assert proved(tmp_path, "tuesday").enumerated == 2 * len(FEW)
        assert proved(tmp_path, "wednesday").used == 2 * len(FEW)

    def test_a_kill_while_a_sheet_is_written_leaves_the_old_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        proved(tmp_path, "monday")
        (file,) = tmp_path.iterdir()
        before = file.read_bytes()
        monkeypatch.setattr(os, "replace", lambda a, b: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            proved(tmp_path, "tuesday", fresh=True)
        assert file.read_bytes() == before

    def test_a_folder_that_cannot_be_written_is_told_and_no_error(self, tmp_path: Path) -> None:
        (tmp_path / "laws").write_text("a file")
        used = proved(tmp_path / "laws", "monday")
        assert used.enumerated == 2 * len(FEW) and "laws" in used.trouble

    def test_a_bug_has_laws_of_its_own(self, tmp_path: Path) -> None:
        bug = method().mutants[0]
        with keeping(keeper(tmp_path, "monday")):
            clean = prove(method(), FEW, mutants=False)
            first = try_mutant(method(), bug, FEW, {})
        with keeping(keeper(tmp_path, "tuesday")) as used:
            assert try_mutant(method(), bug, FEW, {}) == first
        assert first.caught and clean.total_variation < 1e-12
        assert used.used and not used.enumerated
        assert len(list(tmp_path.iterdir())) == 2

    def test_proofs_with_other_answers_of_a_pinned_stream_have_laws_of_their_own(self, tmp_path: Path) -> None:
        starts = [EnumeratingDraws(pinned=Pinned.pinned, start=start) for start in range(4)]
        fresh = [distance.method_law(Pinned(), FEW[0], draws) for draws in starts]
        assert any(law != fresh[0] for law in fresh)
        with keeping(keeper(tmp_path, "monday")) as used, sheet(method()):
            assert [distance.method_law(Pinned(), FEW[0], draws) for draws in starts] == fresh
        assert used.enumerated == len(starts)

    def test_an_enumeration_that_is_too_wide_ends_in_the_same_error(self, tmp_path: Path) -> None:
        def wide() -> kept_laws.Law:
            raise EnumerationLimit("over 5 outcomes")

        for command in ("monday", "tuesday"):
            with (
                keeping(keeper(tmp_path, command)) as used,
                sheet(method()),
                pytest.raises(EnumerationLimit, match="5"),
            ):
                kept("what", wide)
        assert (used.used, used.enumerated) == (1, 0)


class TestSources:
    def test_a_changed_file_is_another_digest_and_other_packages_have_none(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = kept_laws.digest(("stridebench.methods.speculative",))
        assert before is not None and kept_laws.digest(("somebodys.method",)) is None
        (tmp_path / "more.py").write_text("")
        paths = kept_laws.files(())
        monkeypatch.setattr(kept_laws, "files", lambda modules: [*paths, tmp_path / "more.py"])
        kept_laws.digest.cache_clear()
        assert kept_laws.digest(("stridebench.methods.speculative",)) not in (before, None)

    def test_a_file_that_was_written_while_the_command_ran_is_not_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The file that is hashed may be newer than the module that runs."""
        written = (ROOT / "methods" / "speculative.py").stat().st_ctime
        monkeypatch.setattr("stridebench.harness.IMPORTED", written - 1)
        assert kept_laws.digest(("stridebench.methods.speculative",)) is None
        monkeypatch.setattr("stridebench.harness.IMPORTED", 1e10)  # a command of the year 2286
        kept_laws.digest.cache_clear()
        assert kept_laws.digest(("stridebench.methods.speculative",)) is not None
        used = keeper(tmp_path, "monday")
        with keeping(used), sheet(method()):
            kept("what", lambda: {(1,): 1.0})
            monkeypatch.setattr("stridebench.harness.IMPORTED", written - 1)
        assert list(tmp_path.iterdir()) == []
        assert "written since this command began" in used.trouble

    @pytest.mark.parametrize("name", ["speculative", "mulo_sd", "masked_diffusion", "eagle2"])
    def test_whatever_runs_in_a_proof_is_among_the_files(self, name: str) -> None:
        """Every function of ours that is called, by whichever way it was imported."""
        called: set[str] = set()

        def note(frame: FrameType, event: str, argument: Any) -> None:
            if event == "call":
                called.add(frame.f_code.co_filename)

        one = method(name)
        case = next(iter(cases_of(one)))
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            distance.distance(one, case)
        finally:
            sys.setprofile(before)
        ours = {path for path in called if path.startswith((f"{ROOT}/harness", f"{ROOT}/methods"))}
        known = {str(path.resolve()) for path in kept_laws.files((type(one).__module__,))}
        assert ours and ours <= known, ours - known


@pytest.mark.usefixtures("unchecked")
class TestProcesses:
    def test_two_processes_give_the_rows_of_one(self, tmp_path: Path) -> None:
        settings = {name: [method(name)] for name in ("prompt_lookup", "speculative")}
        asked = [Piece("setting", name) for name in settings] + [Piece("bug", "speculative", 1)]

        def rows(number: int) -> list[Any]:
            folder = tmp_path / str(number)
            done = list(catalogue.computed(asked, settings, 8, keeper(folder, "monday"), number))
            assert {one.piece for one in done} == set(asked) and not any(one.error for one in done)
            assert sum(one.enumerated for one in done) > 0
            rows = [next(one.row for one in done if one.piece == piece) for piece in asked]
            return [{key: value for key, value in (row or {}).items() if key != "seconds"} for row in rows]

        assert rows(1) == rows(2)

    @pytest.mark.parametrize("ending", ("killed", "stopped"))
    def test_a_killed_process_is_one_error_and_a_stop_waits_for_none(
        self, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def one(piece: Piece, *rest: Any) -> Any:
            if ending == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if piece.method == "speculative":
                raise KeyboardInterrupt
            time.sleep(600)

        monkeypatch.setattr(catalogue, "_one", one)
        pieces = [Piece("setting", "speculative"), Piece("setting", "prompt_lookup")]
        begin = time.monotonic()
        with pytest.raises(RunIncomplete if ending == "killed" else KeyboardInterrupt, match=r"--processes 1|^$"):
            list(catalogue.computed(pieces, {}, 8, keeper(tmp_path, "monday"), 2))
        assert time.monotonic() - begin < 600

    def test_each_piece_counts_its_own_laws(self, tmp_path: Path) -> None:
        settings = {name: [method(name)] for name in ("prompt_lookup", "speculative")}
        laws = keeper(tmp_path, "monday")
        done = list(catalogue.computed([Piece("setting", name) for name in settings], settings, 8, laws, 1))
        alone = [
            next(catalogue.computed([one.piece], settings, 8, keeper(tmp_path / one.piece.method, "monday"), 1))
            for one in done
        ]
        assert [(one.used, one.enumerated) for one in done] == [(one.used, one.enumerated) for one in alone]
        again = keeper(tmp_path, "tuesday")
        used = [one.used for one in catalogue.computed([one.piece for one in done], settings, 8, again, 1)]
        assert used == [one.enumerated for one in done] and all(used)

    def test_there_are_as_many_processes_as_processors_and_at_most_sixteen(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for cores in (3, 16, 64):
            allowed = {0: set(range(cores))}
            monkeypatch.setattr(os, "sched_getaffinity", allowed.__getitem__, raising=False)
            assert catalogue.processors() == min(cores, 16)

    def test_a_piece_that_fails_says_so(self, tmp_path: Path) -> None:
        (done,) = catalogue.computed([Piece("bug", "autoregressive", 99)], {}, 8, keeper(tmp_path, "monday"), 1)
        assert isinstance(done.error, IndexError) and done.row is None

    def test_the_floor_is_rounding(self) -> None:
        row = compute(Piece("floor", "autoregressive"), {}, 8)
        assert row["floor"] < 1e-12 and row["cases"] > 3


# The cases of a setting in two pieces, which two processes enumerate at the same time, and the row of both.


GREEDY_CASE, DRAWN_CASE = Case(2, 3, 19, Sampling(0.0)), CASES[0]
ROW = {"verdict": "exact", "total_variation": 1e-16, "case": "one", "hint": "", "seconds": 1.0, "planted": True}


@pytest.mark.parametrize("outputs", [None, 32])
def test_each_case_of_each_setting_is_in_one_piece(outputs: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, METHODS, "ranked_choice", RankedChoice)
    settings = {name: contract.settings_of(name) for name in METHODS}
    asked = set(pieces(settings, whole=False, bugs=False, outputs=outputs))
    for name, variants in settings.items():
        for index, method in enumerate(variants):
            cases = cases_to_verify(method, outputs)
            others, dear = halves(cases)
            assert sorted(map(str, (*others, *dear))) == sorted(map(str, cases))
            needed = bool(dear) and method.claim is not Claim.SAME_GREEDY
            assert Piece("setting", name, index) in asked and (Piece("dear", name, index) in asked) == needed


def test_both_rows_together_are_that_of_all_cases() -> None:
    settings = {"autoregressive": contract.settings_of("autoregressive")}
    row, dear = (compute(Piece(kind, "autoregressive"), settings, None) for kind in ("setting", "dear"))
    whole = joined(row, dear)
    assert whole["verdict"] == "exact" and whole["params"] == row["params"]
    assert whole["total_variation"] == max(row["total_variation"], dear["total_variation"]) < 1e-12


@pytest.mark.parametrize(
    ("piece", "bugs"),
    [
        (Piece("setting", "speculative"), True),
        (Piece("setting", "speculative", APPROXIMATE), False),  # next to an exact setting
        (Piece("setting", "zipar"), True),  # approximate, and no setting is exact
        (Piece("setting", "ranked_choice"), True),  # greedy, so no case branches
        (Piece("dear", "speculative"), False),
        (Piece("published", "speculative"), False),
    ],
)
def test_bugs_are_tried_in_one_piece_of_a_setting(piece: Piece, bugs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    register(monkeypatch, METHODS, "ranked_choice", RankedChoice)
    monkeypatch.setattr(catalogue, "prove", lambda *arguments: asked.append(arguments) or prove(arguments[1], ()))
    settings = {piece.method: contract.settings_of(piece.method)}
    compute(piece, settings, None)
    ((_, cases, mutants, effort, later, part),) = asked
    others, dear = halves(cases_to_verify(settings[piece.method][piece.index]))
    assert cases == {"setting": others, "dear": dear, "published": (PUBLISHED,)}[piece.kind]
    assert mutants == bugs and effort == (distance.QUICK if piece.kind == "published" else distance.WHOLE)
    assert part == ("dear" if piece.kind == "dear" else "")
    assert later == (dear if piece.kind == "setting" and piece.method == "speculative" else ())


@pytest.mark.parametrize(
    ("verdict", "total_variation", "case"),
    [("exact", 2e-16, "two"), ("exact", 0.0, "one"), ("broken", 0.3, "two"), ("unverified", None, "two")],
)
def test_the_worse_piece_decides(verdict: str, total_variation: float | None, case: str) -> None:
    dear = {"verdict": verdict, "total_variation": total_variation, "case": "two", "hint": "", "seconds": 2.0}
    row = joined(ROW, dear)
    assert (row["verdict"], row["case"], row["seconds"]) == (verdict, case, 3.0)
    assert joined(ROW, None) == ROW


def test_a_piece_with_a_distance_is_told_before_one_in_which_the_method_was_its_reference() -> None:
    undrafted = {**ROW, "verdict": "approximate", "total_variation": None}
    row = joined(undrafted, {**undrafted, "total_variation": 0.0, "case": "two"})
    assert (row["total_variation"], row["case"]) == (0.0, "two")


def test_a_mutant_that_the_first_piece_does_not_catch_is_tried_on_the_other() -> None:
    method = METHODS.get("speculative").variants()[0]
    assert not prove(method, [GREEDY_CASE]).catches
    proof = prove(method, [GREEDY_CASE], later=[DRAWN_CASE])
    assert proof.catches and [str(case) for case in proof.cases] == [str(GREEDY_CASE)]
    assert prove(method, [GREEDY_CASE], mutants=False, later=[DRAWN_CASE]).mutants == ()


def test_published_settings_and_injected_bugs_are_pieces_only_if_they_are_asked_for() -> None:
    settings = {name: contract.settings_of(name) for name in ("speculative", "zipar")}

    def kinds(**asked: bool) -> set[tuple[str, str, int]]:
        listed = pieces(settings, **asked)
        return {(one.kind, one.method, one.index) for one in listed if one.kind in ("bug", "published")}

    bugs = {("bug", name, index) for name in settings for index in range(len(mutants_of(name)))}
    assert bugs and kinds(whole=False, bugs=True) == bugs
    assert kinds(whole=True, bugs=False) == {("published", "speculative", 0)}  # no text fits a method of pictures
