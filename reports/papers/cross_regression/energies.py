"""Cross-Regression's energies: are they as Assumption 4.3 has them, and does smoothing gain what Theorem 4.4 says?

Symbols: E_k energy of draft k of a test, log p - log q in nats, before clipping and smoothing; mu, sigma its mean and
standard deviation; L drafts accepted a step; beta memory of the running mean. Theorem 4.4: E[L_beta] >= E[L_0] (1 + c
sigma / |mu| beta + O(beta^2)) with one c > 0 for all. There is no such c: L is at most gamma while sigma / |mu| has no
bound. What can be asked of a run is whether L_beta >= L_0, and which c its cells imply.
Source: Abulkhanov et al., Cross-Regression, section 4.3 and appendix B.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from harness.record import stats
from reports.papers.adt_tree.costs import KEYS, columns, cycles, named
from reports.papers.cross_regression.facts import METHOD, paired_ratio
from reports.papers.drawing import COLOURS, legend, save_each, side_by_side
from reports.papers.measured import Measured, written
from reports.summary import FinishedCell
from reports.text_table import UNMEASURED, TextTable, number

if TYPE_CHECKING:
    from harness.record.store import Cell, Store

IMPOSSIBLE = -1e29
"""Below it: of a draft that the target cannot emit, whose energy is minus infinity."""
LEAST = 10
"""Tests of a place below which its share of acceptances is not drawn."""
HEADS = (
    *("decoding", "drafts tested", "impossible", "mu, nat", "sigma, nat", "sigma / |mu|"),
    *("neighbours' correlation", "L, accepted a step", "L_beta / L_0", "implied c"),
)
NOTES = (
    "energies of all drafts that a step held against the target, reached or not; impossible: p = 0, left out of mu and "
    "sigma, which Assumption 4.3 wants finite; at T = 0 every other energy is 0",
    "neighbours' correlation: of E_k and E_(k+1) of one step, 0 under Assumption 4.3, which also has mu < 0",
    "L_beta / L_0: against the cell that differs in beta alone and has beta = 0, over prompts of both; its mu and "
    "sigma imply c = (L_beta / L_0 - 1) |mu| / (sigma beta)",
    "Theorem 4.4 as stated cannot hold: L is at most gamma, and sigma / |mu| unbounded. Its proof has the sign of the "
    "event turned round, and takes the variance of a mean for that of a sum; Tables 12 and 13 have L fall with beta at "
    "threshold 4. Only its direction is a claim that a run can check",
)


def energies(cell: Cell) -> pd.DataFrame:
    """A row a draft of counted outputs: its prompt and repetition, ``place`` in the test from 1, ``energy`` and
    ``following``, that of the next place (NaN behind the last); empty where none was stored."""
    found = cycles(cell)
    if "energies" not in found:
        return pd.DataFrame(columns=[*KEYS, "place", "energy", "following"])
    lists = [np.asarray(() if one is None else one, dtype=np.float64) for one in found["energies"]]
    sizes = [len(one) for one in lists]
    frame = found[KEYS].loc[found.index.repeat(sizes)].reset_index(drop=True)
    joined = np.concatenate([*lists, np.zeros(0)])
    after = np.concatenate([*(np.append(one[1:], np.nan) for one in lists if len(one)), np.zeros(0)])
    place = np.concatenate([*(np.arange(1, size + 1) for size in sizes), np.zeros(0)])
    return frame.assign(place=place.astype(int), energy=joined, following=after)


def sheet(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
    """Statistics of energies, a row a cell."""
    sheets = []
    for group in groups:
        rows = [line for name in named(group, (METHOD,)) if (line := _line(store, group, name)) is not None]
        if rows:
            title = f"Cross-Regression, Assumption 4.3 and Theorem 4.4 | measured on {group.title}"
            sheets.append(TextTable(title, columns(*HEADS), rows, list(NOTES)))
    return sheets


def _line(store: Store, group: Measured, name: str) -> list[str] | None:
    found = energies(store.cell(name))
    if found.empty:
        return None
    possible = found[found["energy"] > IMPOSSIBLE]
    mu, sigma = _moments(possible)
    both = possible[possible["following"] > IMPOSSIBLE]
    frame = FinishedCell.of(store.cell(name)).totals
    gains = _gain(store, group, name, frame)
    return [
        *(str(group.row(name)["label"]), str(len(found)), f"{1 - len(possible) / len(found):.1%}"),
        *(written(_mean(possible), 3), number(sigma, 3), number(sigma / abs(mu), 2) if mu else "-"),
        number(both["energy"].corr(both["following"]), 2) if sigma and len(both) > 2 else "-",
        *(written(stats.ratio(frame, "accepted", "steps")), *gains),
    ]


def _moments(possible: pd.DataFrame) -> tuple[float, float]:
    values = possible["energy"].to_numpy(dtype=np.float64)
    return (float(values.mean()), float(values.std())) if len(values) else (0.0, 0.0)


def _mean(possible: pd.DataFrame) -> stats.Interval | None:
    """Of the energies, with an interval over prompts."""
    by_output = possible.assign(one=1.0).groupby(KEYS)[["energy", "one"]].sum()
    return stats.ratio(by_output, "energy", "one") if len(by_output) else None


def _gain(store: Store, group: Measured, name: str, frame: pd.DataFrame) -> tuple[str, str]:
    """L_beta / L_0 and the implied c."""
    options = group.row(name)["options"]
    beta = float(options["beta"])
    if not beta:
        return "1", "-"
    base = next((str(n) for n, one in _others(group, options) if not float(one["beta"])), None)
    if base is None:
        return UNMEASURED, UNMEASURED
    ratio = paired_ratio(frame, FinishedCell.of(store.cell(base)).totals, "accepted", "steps")
    possible = energies(store.cell(base))
    mu, sigma = _moments(possible[possible["energy"] > IMPOSSIBLE])
    if ratio is None or not sigma:
        return written(ratio), "-"
    return written(ratio), f"{(ratio.estimate - 1) * abs(mu) / (sigma * beta):.2g}"


def _others(group: Measured, options: Mapping[str, Any]) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Cells that differ from these options in beta alone."""
    rest = {key: value for key, value in options.items() if key != "beta"}
    for name in named(group, (METHOD,)):
        theirs = group.row(name)["options"]
        if {key: value for key, value in theirs.items() if key != "beta"} == rest:
            yield name, theirs


def figure(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Mean energy and its deviation by place in the test, and the chance that a place is accepted."""

    def draw(group: Measured) -> Figure | None:
        held = {name: found for name in named(group, (METHOD,)) if len(found := energies(store.cell(name)))}
        held = {name: found[found["energy"] > IMPOSSIBLE] for name, found in held.items()}
        held = dict(list(held.items())[: len(COLOURS)])
        if not held:
            return None
        drawn, (means, kept) = side_by_side(2, group, "Energies by place in the test")
        for colour, (name, found) in zip(COLOURS, held.items(), strict=False):
            label, by_place = str(group.row(name)["label"]), found.groupby("place")["energy"]
            mean, deviation = by_place.mean(), by_place.std(ddof=0)
            means.plot(mean.index, mean, color=colour, marker="o", ms=3, label=label)
            means.fill_between(mean.index, mean - deviation, mean + deviation, color=colour, alpha=0.12, lw=0)
            accepted, tested = (cycles(store.cell(name))[key].to_numpy() for key in ("accepted", "tested"))
            places = [k for k in range(1, int(tested.max(initial=0)) + 1) if (tested >= k).sum() >= LEAST]
            kept.plot(places, [(accepted >= k).sum() / (tested >= k).sum() for k in places], color=colour)
        means.axhline(0, color="0.8", lw=1, zorder=0)
        means.set_ylabel("energy and its deviation, nat")
        kept.set(ylabel=f"accepted / tested ({LEAST} tests or more)", ylim=(0, 1.05))
        for axes in (means, kept):
            axes.set_xlabel("place k of the draft in the test")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend(drawn, means)
        return drawn

    return save_each(groups, outdir, "energies", draw)
