"""The batch sweep of SJD++: throughput, tables and the report of papers/sjdpp_batch."""

from __future__ import annotations

import pytest

from stridebench.harness.plan import resolve
from stridebench.harness.record.metrics import METRICS as FIGURES
from stridebench.harness.record.metrics import totals, value
from stridebench.reports.papers.sjdpp_figures import break_even
from stridebench.reports.summary import summarise
from stridebench.reports.tables import text_tables
from tests.support.fake_store import FakeStore, empty, meta, record, step
from tests.support.paper_runs import assert_page


def test_the_batch_suite_sweeps_batches_of_the_jacobi_family() -> None:
    batch_suite = resolve.of_command("papers/sjdpp --only batch").suite
    assert batch_suite.batches == (1, 2, 4, 8) and [entry.name for entry in batch_suite.backbones] == ["embedded-image"]


def swept(name: str = "papers/sjdpp_batch") -> FakeStore:
    """Batches of 1 and 2, four prompts: AR of four steps of 10 ms, SJD of two of 12 ms; in a batch of two, twice that.

    Every other row of a batch takes one step more, alone.
    """
    store = empty()
    store.body["suite"] = {"name": name, "report": name.removeprefix("papers/")}
    for batch in (1, 2):
        for label, ms, accepted in (("autoregressive", 10.0, (0,) * 4), ("sjd", 12.0, (1, 1))):
            records = []
            for place in range(4):
                cost = ms if batch == 1 else (20.0 if label == "autoregressive" else 36.0)
                steps = [step(one, one, ms=cost, served=batch) for one in accepted]
                late = [step(0, 0, ms=ms, served=1)] if place % 2 else []
                records.append(record(f"p{place}", [*steps, *late], agreement=None))
            role = "baseline" if label == "autoregressive" else "method"
            base = f"autoregressive-{batch}"
            same = {"role": role, "label": label, "method": label, "batch": batch, "baseline": base}
            store.add(meta(f"{label}-{batch}", **same), records)
    return store


def test_throughput_shares_a_lock_step_among_its_rows() -> None:
    """18 tokens: two batches of two take 2 x (2 x 36 + 12) ms, the rows alone 4 x 24 + 2 x 12 ms."""
    rates = {}
    for batch in (1, 2):
        cell = swept().cell(f"sjd-{batch}")
        rates[batch] = value(FIGURES["throughput"], totals(cell.samples, cell.steps))
    assert rates == {1: pytest.approx(18 / 0.120), 2: pytest.approx(18 / 0.168)}


def test_a_table_has_a_column_for_the_batch_only_where_it_differs() -> None:
    frame = summarise(swept())  # type: ignore[arg-type]  # what reports read of a store
    (sweep,), (one,), (two,) = (list(text_tables(rows)) for rows in (frame, frame[:2], frame[2:]))
    titles = [[column.title for column in sheet.columns] for sheet in (sweep, one, two)]
    assert [("B" in column_titles, "tokens/s of the batch" in column_titles) for column_titles in titles] == [
        (True, True),
        (False, False),
        (False, True),
    ]
    assert [sheet.title.rpartition(", ")[2] for sheet in (sweep, one, two)] == ["64 tokens", "batch 1", "batch 2"]
    assert [row[titles[0].index("B")] for row in sweep.rows] == ["1", "1", "2", "2"]


@pytest.mark.parametrize(
    ("speedups", "end"),
    [
        ((2.0, 1.5, 1.2, 0.8), 2**2.5),
        ((2.0, 1.5, 1.2, 1.1), None),
        ((0.9, 0.8, 0.7, 0.6), 1.0),
        ((1.2, 0.9, 1.2, 0.8), 2**2.5),
        ((1.2, 1.1, 1.0, 0.8), 4.0),
    ],
)
def test_a_speed_up_ends_where_it_last_crosses_one(speedups: tuple[float, ...], end: float | None) -> None:
    assert break_even((1, 2, 4, 8), speedups) == (None if end is None else pytest.approx(end))


@pytest.mark.slow
def test_the_page_is_what_it_was() -> None:
    assert_page(swept(), "sjdpp_batch")


PROMPTS = 6


def add(store: FakeStore, name: str, accepted: int, ms: float, length: int, **changes: object) -> None:
    outputs = [record(f"p{n}", [step(accepted, 3, ms=ms)] * 4, prompt_tokens=length) for n in range(PROMPTS)]
    outputs += [record("p0", [step(accepted, 3, ms=ms)], prompt_tokens=7, warmup=True)] * (PROMPTS + 1)
    store.add(meta(name, **changes), outputs)


def lengths() -> FakeStore:
    store = empty()
    store.body["suite"] = {"name": "context", "report": "context"}
    for length, accepted in ((256, 3), (4096, 1)):
        task = f"long_context length={length}"
        add(store, f"ar-{length}", 0, 10, length, task=task, role="baseline", baseline=f"ar-{length}")
        method = {"label": "lookup", "method": "prompt_lookup", "baseline": f"ar-{length}"}
        add(store, f"lookup-{length}", accepted, 20, length, task=task, **method)
    return store


def formats() -> FakeStore:
    store = empty()
    store.body["suite"] = {"name": "quantized", "report": "quantized"}
    for form, accepted in (("", 3), (":weights=int4", 2)):
        backbone, cost = f"m{form}", {"quantisation_kl": 0.05, "quantisation_agreement": 0.9} if form else {}
        add(store, f"ar{form}", 0, 10, 7, backbone=backbone, role="baseline", baseline=f"ar{form}", label="ar", **cost)
        method = {"label": "lookup", "method": "prompt_lookup", "baseline": f"ar{form}", **cost}
        add(store, f"lookup{form}", accepted, 20, 7, backbone=backbone, **method)
    return store


@pytest.mark.slow
@pytest.mark.parametrize("store", [lengths(), formats()], ids=["context", "quantized"])
def test_a_page_is_what_it_was(store: FakeStore, request: pytest.FixtureRequest) -> None:
    """A method has a row for each prompt length, and one for each format beside what rounding costs."""
    assert_page(store, str(request.node.callspec.id))
