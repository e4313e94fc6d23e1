"""The cases of a setting in two pieces, which two processes enumerate at the same time, and the row of both."""

from __future__ import annotations

from typing import Any

import pytest

from stridebench.harness.core.method import Claim
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.discover import load_all
from stridebench.harness.plan import contract
from stridebench.harness.proof.cases import CASES, Case, cases_to_verify, halves
from stridebench.harness.proof.catalogue import Piece, compute, joined, pieces
from stridebench.harness.proof.prove import prove
from stridebench.harness.registry import METHODS

load_all()
GREEDY_CASE, DRAWN_CASE = Case(2, 3, 19, Sampling(0.0)), CASES[0]
ROW: dict[str, Any] = {"verdict": "exact", "total_variation": 1e-16, "case": "one", "seconds": 1.0, "planted": True}


@pytest.mark.parametrize("outputs", [None, 32])
def test_each_case_of_each_setting_is_in_one_piece(outputs: int | None) -> None:
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
    ("dear", "expected"),
    [
        ({"verdict": "exact", "total_variation": 2e-16, "case": "two", "seconds": 2.0}, ("exact", "two", 3.0)),
        ({"verdict": "exact", "total_variation": 0.0, "case": "two", "seconds": 2.0}, ("exact", "one", 3.0)),
        ({"verdict": "broken", "total_variation": 0.3, "case": "two", "seconds": 2.0}, ("broken", "two", 3.0)),
        ({"verdict": "unverified", "total_variation": None, "case": "why", "seconds": 2.0}, ("unverified", "why", 3.0)),
        (None, ("exact", "one", 1.0)),
    ],
)
def test_the_worse_piece_decides(dear: dict[str, Any] | None, expected: tuple[Any, ...]) -> None:
    row = joined(ROW, dear)
    assert (row["verdict"], row["case"], row["seconds"]) == expected


def test_a_mutant_that_the_first_piece_does_not_catch_is_tried_on_the_other() -> None:
    method = METHODS.get("speculative").variants()[0]
    assert not prove(method, [GREEDY_CASE]).catches
    proof = prove(method, [GREEDY_CASE], later=[DRAWN_CASE])
    assert proof.catches and [str(case) for case in proof.cases] == [str(GREEDY_CASE)]
