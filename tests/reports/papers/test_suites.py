"""Reports of suites of questions: by prompt length, and by the format of the target's weights."""

from __future__ import annotations

import pytest

from tests.support.fake_store import FakeStore, empty, meta, record, step
from tests.support.paper_runs import assert_page

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
