"""Runs in real stores for the tests of pages: an ordinary one, and one whose every text is an attack."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stridebench.harness.record.columns import Record
from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.outputs import Mesh, Output, Picture
from stridebench.harness.record.requests import Request
from stridebench.harness.record.store import Store
from tests.support.fake_store import GREEDY, FakeStore, empty, meta, record, step, suite

PAYLOAD = "\"'`></script></textarea></title><stride-attack onmouseover=alert(1) src=x>{{7*7}}%{x}\x1b[2J\u202e\x00&lt;"
"""Ends every kind of element and attribute that a page has."""
KEPT = ("-ar", "-pld", "-spec", "-sjdpp-0.25", "-sjdpp-1.0", "-bad", "-tree")
EMOJI = "שלום עולם \N{FAMILY}\N{ZERO WIDTH JOINER}\N{WOMAN} \N{THUMBS UP SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-6}"
SOLID = Mesh(
    np.array([[0.5, 0, 0], [-0.5, 0.4, 0], [-0.5, -0.4, 0], [0, 0, 0.6]]),
    np.array([[0, 1, 2], [0, 1, 3], [1, 2, 3], [2, 0, 3]]),
)


def stored(fake: FakeStore, folder: Path, unsealed: tuple[str, ...] = ()) -> Store:
    """A made-up run as a real one; the cells ``unsealed`` have records and are not finished."""
    planned = {name: {**cell, "status": "planned"} for name, cell in fake.body["cells"].items()}
    for name, records in fake.records.items():
        if name not in unsealed:
            planned[name]["expected"] = sum(not one.sample.warmup for one in records)
    store = Store.create(folder, {**fake.body, "cells": planned})
    for name, cell in fake.body["cells"].items():
        for one in fake.records.get(name, ()):
            store.write(name, one)
        if name not in unsealed:
            store.seal(name, fake.sealed_cells[name].meta if name in fake.sealed_cells else CellMeta.read(cell))
    return store


def ordinary(folder: Path, prompts: int = 6) -> Store:
    """Some cells of `fake_store.suite` with texts of tokens, a failure, and an audit."""
    fake = suite(prompts)
    for name in [name for name in fake.body["cells"] if not name.endswith(KEPT)]:
        del fake.body["cells"][name], fake.records[name], fake.sealed_cells[name]
    for name, records in fake.records.items():
        fake.records[name] = [_spoken(one) for one in records]
    first = fake.records["t0-pld"]
    first[0] = Record(replace(first[0].sample, status="failed", error="CUDA out of memory <b>"), first[0].steps)
    fake.sealed_cells["t1-pld"].facts.update(audit_log_e=0.3, audit_tokens=640, audit_visible_tv=0.1, audit_best="tilt")
    return stored(fake, folder)


def _spoken(one: Record) -> Record:
    pieces = tuple(f" w{token}" if token else "\n" for token in one.sample.tokens)
    asked = f"def {one.sample.prompt}():\n    return 1 < 2"
    return Record(replace(one.sample, pieces=pieces, text="".join(pieces), prompt_text=asked), one.steps)


def with_outputs(folder: Path) -> Store:
    """Three baselines: of pictures on a grid with ends of rows, of meshes, and of a transcript with its sound."""
    fake = empty()
    grid = {"rows": 2, "columns": 3, "stride": 4}
    fake.add(meta("pictures", role="baseline", baseline="pictures", modality="image", grid=grid, expected=2), [])
    fake.add(meta("meshes", role="baseline", baseline="meshes", modality="mesh", expected=1), [])
    heard = meta("heard", role="baseline", baseline="heard", modality="speech", expected=1)
    fake.add(heard, [record("p0", [step(1, 2)], text="good evening", pieces=("good", " evening"))])
    pixels = np.zeros((8, 12, 3), dtype=np.uint8)
    outputs: dict[str, Output] = {"pictures": Picture(pixels), "meshes": SOLID}
    store = Store.create(folder, fake.body)
    for cell, output in outputs.items():
        one = record("p0", [step(2, 2), step(0, 2), step(3, 3)])
        path = store.notes.keep_output(cell, one.sample, output)
        store.write(cell, Record(replace(one.sample, output=path), one.steps))
        if cell == "pictures":
            lost = record("p1", [step(2, 2), step(0, 2), step(3, 3)], output="../../etc/secret.png")
            store.write(cell, lost)
        store.seal(cell, fake.sealed_cells[cell].meta)
    store.notes.keep_sound("heard", "p0", np.sin(np.arange(16_000) / 20), 16_000, "good evening")
    store.write("heard", fake.records["heard"][0])
    store.seal("heard", fake.sealed_cells["heard"].meta)
    return store


def with_engines(folder: Path, text: str = "", sealed: bool = True) -> Store:
    """A plain decode and one with drafts of an engine, at T = 1; every free text is ``text`` where it is given.

    Args:
        sealed: whether the cell with drafts is finished.
    """
    fake = empty()
    facts: dict[str, Any] = {
        **{"engine": "table", "serve": text, "way": text, "backbone": text or "tabular", "dtype": "fp64"},
        **{"options": {text: text} if text else {}, "task": text or "tabular", "task_params": {}, "max_new_tokens": 8},
        **{"ignore_eos": True, "seed": 0, "concurrency": 1, "rate": 0.0, "load": "1", "expected": 3},
        "sampling": {**GREEDY, "temperature": 1.0},
    }
    plain, drafts = f"plain {text}".strip(), f"drafts {text}".strip()
    cells = {
        "plain": {**facts, "cell": "plain", "label": plain, "plain": "", "role": "plain"},
        "drafts": {**facts, "cell": "drafts", "label": drafts, "plain": plain, "role": "speculative"},
    }
    if text:
        fake.body["suite"] = {"name": text}
    store = Store.create(folder, {**fake.body, "engines": cells})
    for name, one in (("plain", 10), ("drafts", 5)):
        for number in range(3):
            store.write_request(name, _request(f"p{number}{text}", number, one, text, drafted=name == "drafts"))
        if name == "plain" or sealed:
            audit = {"verdict": "not refuted", "log_e": 0.4, "tokens": 16, "visible_tv": 0.2, "best": text or "p^0.9"}
            verdict = {"verdict": "not refuted", "audit": audit, "broken_identities": [text] if text else []}
            if name == "drafts":
                verdict |= {"same": 0.5, "pairs": 2, "plain_audit": audit}
                verdict["differences"] = [{"prompt": text or "p1", "at": 3, "margin": -0.5}]
            told = {"status": "done", "told": {text or "version": text or "1"}, "verdict": verdict}
            store.seal(name, CellMeta.read(cells[name] | told))
    return store


def _request(prompt: str, number: int, ms: int, text: str, drafted: bool) -> Request:
    start, arrivals = number * 100_000_000, tuple(ms * 1_000_000 * i for i in range(1, 5))
    good = Request(
        **{"prompt": prompt, "repetition": 0, "warmup": False, "status": "ok", "category": text, "seed": number},
        **{"prompt_tokens": 5, "tokens": (1, 2) * 4, "text": text or f"answer {number}", "output_tokens": 8},
        **{"finish": text or "length", "sent_ns": start, "ended_ns": start + arrivals[-1], "arrivals_ns": arrivals},
        chunk_tokens=(2, 2, 2, 2),
    )
    if number == 2:
        lost = {"text": None, "tokens": None, "output_tokens": None, "arrivals_ns": None, "chunk_tokens": None}
        return replace(good, status="failed", fault="timeout", error=text or "no answer within 1 s", **lost)  # type: ignore[arg-type]
    counts = {"draft_steps": 4, "drafted": 8, "accepted": 4, "histogram": (0, 4), "target_passes": 4}
    return replace(good, **counts) if drafted else good  # type: ignore[arg-type]


def hostile(folder: Path) -> Store:
    """A run whose every text from a model or a file is `PAYLOAD`."""
    fake = empty()
    fake.body["suite"] = {"name": PAYLOAD, "description": PAYLOAD}
    fake.body["provenance"] = {
        "argv": ["stride", PAYLOAD],
        "fingerprint": PAYLOAD,
        "machine": {"cpu": PAYLOAD, "cores": PAYLOAD, "threads": PAYLOAD, "gpus": [{"name": PAYLOAD}]},
        "git": {"commit": PAYLOAD, "dirty": True},
        "versions": {PAYLOAD: PAYLOAD},
        "environment": {PAYLOAD: PAYLOAD},
    }
    texts: dict[str, Any] = {
        **dict.fromkeys(("label", "method", "claim", "backbone", "dtype", "task", "modality", "device"), PAYLOAD),
        "source": f"arXiv:2211.17192 github.com/a/b {PAYLOAD}",
        "params": {PAYLOAD: PAYLOAD},
        "task_params": {PAYLOAD: PAYLOAD},
        "fingerprint": PAYLOAD,
        "expected": 8,
        "audit_log_e": 1.0,
        "audit_tokens": 8,
        "audit_visible_tv": 0.5,
        "audit_best": PAYLOAD,
        "set_scores": {PAYLOAD: {"value": None, "low": None, "high": None, "n": 0, "reason": PAYLOAD}},
        "sampling": {**GREEDY, "temperature": 1.0},
    }
    verdict = dict.fromkeys(("word", "case", "greedy", "note", "error"), PAYLOAD) | {"total_variation": 0.5}
    for cell, role in (("ar", "baseline"), ("m", "method")):
        changes = {"role": role, "baseline": "ar", "verdict": verdict, **texts}
        fake.add(meta(cell, **changes), [_hostile(i) for i in range(8)])
    fake.skip(meta("skipped", **texts), PAYLOAD)
    return stored(fake, folder)


def _hostile(number: int) -> Record:
    fields: dict[str, Any] = {
        "text": PAYLOAD,
        "prompt_text": PAYLOAD,
        "category": PAYLOAD,
        "pieces": (PAYLOAD, EMOJI),
        "scores": {PAYLOAD: 0.5},
        "regions": (PAYLOAD, PAYLOAD),
        "output": "" if number else PAYLOAD,
        "audit": {"reason": PAYLOAD},
    }
    failed = {"status": "failed", "error": PAYLOAD} if number == 7 else {}
    return record(f"{PAYLOAD} {number}", [step(1, 2)], **fields, **failed)


def shard(text: str) -> list[dict[str, Any]]:
    """The documents of a shard's script."""
    head, _, body = text.partition("(")
    assert head == "strideShard"
    documents: list[dict[str, Any]] = json.loads("[" + body.rstrip().removesuffix(");") + "]")[1]
    return documents
