"""Cross-Regression's energies: tests of Assumption 4.3 and of the gain of smoothing in Theorem 4.4.

Symbols: E_k energy of draft k of a test, log p - log q in nats, before clipping and smoothing; mu, sigma its mean and
standard deviation; L accepted drafts a step; beta memory of the running mean. Theorem 4.4: E[L_beta] >= E[L_0] (1 + c
sigma / |mu| beta + O(beta^2)) with one c > 0 for all. There is no such c: L is at most gamma while sigma / |mu| has no
bound. A run can show whether L_beta >= L_0, and which c its cells imply.
Source: Abulkhanov et al., Cross-Regression, section 4.3 and appendix B.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from stridebench.harness.record import stats
from stridebench.reports.papers.cross_regression.facts import METHOD, paired_ratio
from stridebench.reports.papers.drawing import COLOURS, legend, side_by_side
from stridebench.reports.papers.measured import KEYS, Measured, Run, cycles, plain
from stridebench.reports.papers.registry import figure, sheet
from stridebench.reports.summary import FinishedCell
from stridebench.reports.text_table import UNMEASURED, TextTable, estimate_text, number

if TYPE_CHECKING:
    from stridebench.harness.record.store import Cell, Store

IMPOSSIBLE = -1e29
"""Lower energies belong to drafts that the target cannot emit; their energy is minus infinity."""
LEAST = 10
"""Fewest tests of a place whose share of acceptances is drawn."""
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
    """Return one row a draft of counted outputs: prompt, repetition, ``place`` in the test from 1 and ``energy``.

    ``following`` is the energy of the next place, NaN after the last. Without stored energies the frame is empty.
    """
    steps = cycles(cell)
    if "energies" not in steps:
        return pd.DataFrame(columns=[*KEYS, "place", "energy", "following"])
    lists = [np.asarray(() if values is None else values, dtype=np.float64) for values in steps["energies"]]
    sizes = [len(values) for values in lists]
    frame = steps[KEYS].loc[steps.index.repeat(sizes)].reset_index(drop=True)
    step = np.repeat(np.arange(len(lists)), sizes)
    frame = frame.assign(place=1, energy=np.concatenate([*lists, np.zeros(0)]))
    frame["place"] = frame.groupby(step)["place"].cumsum()
    return frame.assign(following=frame.groupby(step)["energy"].shift(-1))


@sheet("cross_regression_energies")
def table(run: Run) -> Iterator[TextTable]:
    """Return statistics of energies, one row a cell."""
    for group in run.groups:
        lines = [line for name in group.cells(METHOD) if (line := _line(run.store, group, name)) is not None]
        title = f"Cross-Regression, Assumption 4.3 and Theorem 4.4 | measured on {group.title}"
        yield from plain(title, lines, NOTES)


def _line(store: Store, group: Measured, name: str) -> dict[str, str] | None:
    drafts = energies(store.cell(name))
    if drafts.empty:
        return None
    possible = drafts[drafts["energy"] > IMPOSSIBLE]
    mu, sigma = _moments(possible)
    neighbours = possible[possible["following"] > IMPOSSIBLE]
    frame = FinishedCell.of(store.cell(name)).totals
    ratio, c = _gain(store, group, name, frame)
    return {
        "decoding": group.label(name),
        "drafts tested": str(len(drafts)),
        "impossible": f"{1 - len(possible) / len(drafts):.1%}",
        "mu, nat": estimate_text(_mean(possible), 3),
        "sigma, nat": number(sigma, 3),
        "sigma / |mu|": number(sigma / abs(mu), 2) if mu else "-",
        "neighbours' correlation": (
            number(neighbours["energy"].corr(neighbours["following"]), 2) if sigma and len(neighbours) > 2 else "-"
        ),
        "L, accepted a step": estimate_text(stats.ratio(frame, "accepted", "steps")),
        "L_beta / L_0": ratio,
        "implied c": c,
    }


def _moments(possible: pd.DataFrame) -> tuple[float, float]:
    values = possible["energy"].to_numpy(dtype=np.float64)
    return (float(values.mean()), float(values.std())) if len(values) else (0.0, 0.0)


def _mean(possible: pd.DataFrame) -> stats.Interval | None:
    """Return the mean energy with an interval over prompts."""
    by_output = possible.assign(one=1.0).groupby(KEYS)[["energy", "one"]].sum()
    return stats.ratio(by_output, "energy", "one") if len(by_output) else None


def _gain(store: Store, group: Measured, name: str, frame: pd.DataFrame) -> tuple[str, str]:
    """Return L_beta / L_0 and the implied c, compared with the cell that differs in beta alone."""
    options = dict(group.row(name)["options"])
    beta = float(options["beta"])
    if not beta:
        return "1", "-"
    base = group.find(method=METHOD, **{**options, "beta": 0})
    if base is None:
        return UNMEASURED, UNMEASURED
    ratio = paired_ratio(frame, FinishedCell.of(store.cell(base)).totals, "accepted", "steps")
    drafts = energies(store.cell(base))
    mu, sigma = _moments(drafts[drafts["energy"] > IMPOSSIBLE])
    if ratio is None or not sigma:
        return estimate_text(ratio), "-"
    return estimate_text(ratio), f"{(ratio.estimate - 1) * abs(mu) / (sigma * beta):.2g}"


@figure("cross_regression_energies")
def draw(run: Run) -> Iterator[Figure]:
    """Draw mean energy and its deviation by place in the test, and the share of accepted tests."""
    for group in run.groups:
        cells = {name: drafts for name in group.cells(METHOD) if len(drafts := energies(run.store.cell(name)))}
        if not cells:
            continue
        drawn, (means, shares) = side_by_side(2, "Energies by place in the test", group.title)
        for colour, (name, drafts) in zip(COLOURS, cells.items(), strict=False):
            by_place = drafts[drafts["energy"] > IMPOSSIBLE].groupby("place")["energy"]
            mean, deviation = by_place.mean(), by_place.std(ddof=0)
            means.plot(mean.index, mean, color=colour, marker="o", ms=3, label=group.label(name))
            means.fill_between(mean.index, mean - deviation, mean + deviation, color=colour, alpha=0.12, lw=0)
            accepted, tested = (cycles(run.store.cell(name))[key].to_numpy() for key in ("accepted", "tested"))
            places = [k for k in range(1, int(tested.max(initial=0)) + 1) if (tested >= k).sum() >= LEAST]
            shares.plot(places, [(accepted >= k).sum() / (tested >= k).sum() for k in places], color=colour)
        means.axhline(0, color="0.8", lw=1, zorder=0)
        means.set_ylabel("energy and its deviation, nat")
        shares.set(ylabel=f"accepted / tested ({LEAST} tests or more)", ylim=(0, 1.05))
        for axes in (means, shares):
            axes.set_xlabel("place k of the draft in the test")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend(drawn, means)
        yield drawn
