"""The pieces of a catalogue, computed by several processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event

import torch

from stridebench.harness.discover import declare_all
from stridebench.harness.errors import RunIncomplete
from stridebench.harness.machine.surroundings import be_number
from stridebench.harness.proof.catalogue import FloorRow, Piece, Settings, compute
from stridebench.harness.proof.kept_laws import LawKeeper, keeping
from stridebench.harness.proof.prove import BugRow, ProofRow
from stridebench.harness.registry import METHODS

MOST = 16
"""Processes; beyond them the longest enumeration alone decides."""


@dataclass(frozen=True)
class Done:
    """A piece that is computed.

    Args:
        row: the result, or None if it failed.
        error: the exception if it failed.
    """

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
    ours = [piece for piece in pieces if not METHODS.from_plugin(piece.method)]
    theirs = [piece for piece in pieces if METHODS.from_plugin(piece.method)]
    processes = min(processes, len(ours))
    if processes < 2:
        ours, theirs = [], list(pieces)
    else:
        yield from _in_pool(sorted(ours, key=_order), _Share(settings, outputs, keeper), processes)
    for piece in theirs:
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
    """Set up a new process: one thread, one core, ^C ignored, and an end with its parent or with ``stop``.

    Args:
        counter: of the processes that have begun.
    """
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
