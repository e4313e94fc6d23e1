"""The enumerations of `stride verify`, in pieces that processes compute separately."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import Any, TypedDict

import torch

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.discover import declare_all
from stridebench.harness.errors import RunIncomplete, UsageError, said_by
from stridebench.harness.machine.surroundings import be_number
from stridebench.harness.plan import contract
from stridebench.harness.plan.lookup import build
from stridebench.harness.proof.cases import PUBLISHED, PUBLISHED_GREEDY, Case, cases_to_verify, halves
from stridebench.harness.proof.distance import QUICK, WHOLE, Effort, distance
from stridebench.harness.proof.kept_laws import LawKeeper, keeping, sheet
from stridebench.harness.proof.mutants import mutants_of, try_one
from stridebench.harness.proof.prove import BugRow, Proof, ProofRow, bug_row, prove
from stridebench.harness.registry import METHODS

Settings = Mapping[str, Sequence[Method[Any]]]
"""The variants of each method that are verified."""
FEW = 32
"""Largest number of outputs of a model that a quick proof enumerates."""


def settings_to_verify(name: str, values: Mapping[str, Any]) -> list[Any]:
    """Return the settings of a method to verify: the one of ``values``, or all that the method names.

    Raises:
        UsageError: the method or the setting does not exist.
    """
    if not values:
        return contract.settings_of(name)
    method = build(contract.class_of(METHODS, name), name, dict(values))
    if isinstance(method, list):
        raise UsageError("; ".join(text for _, text in method))
    contract.check(METHODS, name, method)
    return [method]


@dataclass(frozen=True)
class Piece:
    """One of the enumerations.

    Args:
        kind: "setting" (of ``settings``), "dear" (its cases that branch most), "published" (the defaults of a method),
            "bug" or "floor".
        index: of the setting, or of the method's injected bug.
    """

    kind: str
    method: str
    index: int = 0


def pieces(settings: Settings, whole: bool, bugs: bool, outputs: int | None = None) -> list[Piece]:
    """Return all enumerations in the order of the rows.

    Args:
        bugs: the injected bugs of each method too.
        outputs: largest number of outputs of a model, or None if any.
    """
    out: list[Piece] = []
    for name, variants in settings.items():
        for index, method in enumerate(variants):
            out.append(Piece("setting", name, index))
            if method.claim is not Claim.SAME_GREEDY and halves(cases_to_verify(method, outputs))[1]:
                out.append(Piece("dear", name, index))
        if whole and published(variants) is not None:
            out.append(Piece("published", name))
    if bugs:
        out += [Piece("bug", name, index) for name in settings for index in range(len(mutants_of(name)))]
    return [*out, Piece("floor", "autoregressive")]


def published(variants: Sequence[Method[Any]]) -> Method[Any] | None:
    """Return the published defaults of a method, or None if its variants have them or no text fits."""
    method: Method[Any] = contract.default_of(list(variants))
    if getattr(method, "drafter", "") == "self":
        method = replace(method, drafter="toy")  # type: ignore[type-var]  # the target never rejects its own drafts
    if method in variants or {Requirement.GRID, Requirement.BIDIRECTIONAL} & method.requirements:
        return None
    return method


class FloorRow(TypedDict):
    """The largest total variation of autoregressive decoding over its cases, and how many there are."""

    floor: float
    cases: int


def compute(piece: Piece, settings: Settings, outputs: int | None) -> ProofRow | BugRow | FloorRow:
    """Return the row of a piece.

    Args:
        outputs: largest number of outputs of a model, or None if any.

    Raises:
        ContractError: an injected bug does not fit the code that it is injected into.
    """
    if piece.kind == "floor":
        baseline = METHODS.get(piece.method)()
        with sheet(baseline):
            cases = cases_to_verify(baseline, outputs)
            return {"floor": max(distance(baseline, case) for case in cases), "cases": len(cases)}
    if piece.kind == "bug":
        bug = try_one(mutants_of(piece.method)[piece.index], METHODS.get(piece.method).variants())
        return {"mutant": True, "method": piece.method, **bug_row(bug)}
    if piece.kind == "published":
        method = published(settings[piece.method])
        assert method is not None  # `pieces` asks for no other
        case = PUBLISHED_GREEDY if method.claim is Claim.SAME_GREEDY else PUBLISHED
        return proof_of(piece.method, method, (case,), mutants=False, effort=QUICK)
    method = settings[piece.method][piece.index]
    others, dear = halves(cases_to_verify(method, outputs))
    if piece.kind == "dear":
        return proof_of(piece.method, method, dear, mutants=False, part="dear")
    # A bug is tried on approximate settings only if the method has no exact one, where any distance shows it.
    exact = any(one.claim is not Claim.APPROXIMATE for one in METHODS.get(piece.method).variants())
    mutants = method.claim is not Claim.APPROXIMATE or not exact
    return proof_of(piece.method, method, others, mutants, later=dear if method.claim is not Claim.SAME_GREEDY else ())


def joined(row: ProofRow, dear: ProofRow | None) -> ProofRow:
    """Return the row of a setting from those of its two pieces."""
    if dear is None:
        return row
    seconds = row["seconds"] + dear["seconds"]
    if "unverified" in (row["verdict"], dear["verdict"]):
        return {**(row if row["verdict"] == "unverified" else dear), "seconds": seconds}
    worst = max(row, dear, key=lambda one: -1 if one["total_variation"] is None else one["total_variation"])
    return {
        **row,
        "total_variation": worst["total_variation"],
        "case": worst["case"],
        "verdict": worst["verdict"],
        "hint": worst["hint"],
        "seconds": seconds,
    }


def proof_of(
    name: str,
    method: Any,
    cases: Sequence[Case],
    mutants: bool = True,
    effort: Effort = WHOLE,
    later: Sequence[Case] = (),
    part: str = "",
) -> ProofRow:
    """Return one row of the table: the verdict of a setting, its total variation, and its injected bugs (`prove`)."""
    begin = time.monotonic()
    try:
        plain = prove(method, cases, mutants, effort, later, part).plain(name)
    except Exception as error:  # a plugin may raise anything, and a setting may branch too much: its row says so
        plain = Proof(method, method.claim, None, said_by(error), "unverified").plain(name)
    return {**plain, "seconds": time.monotonic() - begin}


# The pieces of a catalogue, computed by several processes.


MOST = 16
"""Processes; beyond them the longest enumeration alone decides."""


@dataclass(frozen=True)
class Done:
    """A piece that is computed."""

    piece: Piece
    row: ProofRow | BugRow | FloorRow | None
    used: int
    enumerated: int
    trouble: str = ""
    error: Exception | None = None


def processors() -> int:
    """Return how many processors this process may use, 16 at most."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST, mine)


def computed(
    pieces: Sequence[Piece], settings: Settings, outputs: int | None, keeper: LawKeeper, processes: int
) -> Iterator[Done]:
    """Yield each piece when it is done. Methods of other packages are enumerated in this process."""
    pooled = [piece for piece in pieces if not METHODS.from_plugin(piece.method)]
    here = [piece for piece in pieces if METHODS.from_plugin(piece.method)]
    processes = min(processes, len(pooled))
    if processes < 2:
        pooled, here = [], list(pieces)
    else:
        yield from _in_pool(sorted(pooled, key=_order), _Share(settings, outputs, keeper), processes)
    for piece in here:
        yield _one(piece, settings, outputs, keeper)


def _order(piece: Piece) -> int:
    """Put long ones first, so that none of them ends alone; bugs last, since they ask for laws of the settings."""
    return ("published", "dear", "setting", "floor", "bug").index(piece.kind)


@dataclass(frozen=True)
class _Share:
    """What every process needs."""

    settings: Settings
    outputs: int | None
    keeper: LawKeeper


_share: _Share | None = None


def _in_pool(pieces: Sequence[Piece], share: _Share, processes: int) -> Iterator[Done]:
    start = "fork" if sys.platform == "linux" else "spawn"  # a fork has torch already
    context = multiprocessing.get_context(start)
    stop = context.Event()
    pool = ProcessPoolExecutor(processes, context, _begin, (share, os.getpid(), stop, context.Value("i", 0)))
    try:
        futures: list[Future[Done]] = [pool.submit(_piece, piece) for piece in pieces]
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool as error:
        raise RunIncomplete(
            f"one of {processes} processes was killed, perhaps for memory. The laws that were finished are kept: run "
            f"the same command again, with --processes {max(1, processes // 2)} where memory is short."
        ) from error
    except BaseException:  # ^C, or a piece whose error ends the command: nobody waits for the others
        stop.set()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(share: _Share, parent: int, stop: Event, counter: Synchronized[int]) -> None:
    """Set up a new process: one thread, one core, ^C ignored, and an end with its parent or with ``stop``."""
    global _share
    with counter.get_lock():
        be_number(counter.value)
        counter.value += 1
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent, stop), daemon=True).start()
    declare_all()
    _share = replace(share, keeper=replace(share.keeper, sheets={}))
    gc.freeze()  # no collection looks at the imported modules


def _end_with(parent: int, stop: Event) -> None:
    while os.getppid() == parent and not stop.wait(0.5):
        pass
    os._exit(1)


def _piece(piece: Piece) -> Done:
    assert _share is not None
    return _one(piece, _share.settings, _share.outputs, _share.keeper)


def _one(piece: Piece, settings: Settings, outputs: int | None, keeper: LawKeeper) -> Done:
    used, enumerated = keeper.used, keeper.enumerated
    row, failure = None, None
    with keeping(keeper):
        try:
            row = compute(piece, settings, outputs)
        except Exception as error:  # the command decides whether it matters
            failure = error
    counts = keeper.used - used, keeper.enumerated - enumerated
    return Done(piece, row, *counts, keeper.trouble, failure)
