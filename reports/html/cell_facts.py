"""Words and numbers of the page of a cell: claim, source, verdict, parameters, metrics."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
import yaml

from stridebench.harness.errors import printable, printable_line
from stridebench.harness.record.entries import CellMeta, Manifest, StoredVerdict
from stridebench.harness.record.metrics import METRICS, REFUTED, value
from stridebench.reports.engine_rows import engine_notes
from stridebench.reports.html.headline import COLUMNS, VERDICTS_OF_ENGINES, HeadlineEntry, entry, setting_of, verdict_of
from stridebench.reports.html.text import e_value, figure_of, signed, visible
from stridebench.reports.quality import title_of
from stridebench.reports.run_report import name_of
from stridebench.reports.tables import COLUMNS_OF_ENGINES
from stridebench.reports.text_table import Column, number

if TYPE_CHECKING:
    from stridebench.harness.record.cell_files import SealedCell
    from stridebench.harness.record.store import Store
    from stridebench.reports.finished_cell import FinishedCell


CLAIMS = {
    "SAME_LAW": "the same output distribution as the target, at every temperature",
    "SAME_GREEDY": "the same tokens as the target at T = 0",
    "DECLARED": "another output distribution, stated row by row",
    "APPROXIMATE": "another output distribution, by design",
}
WORDS = {
    "exact": "The output distribution was enumerated and equals the target's.",
    "approximate": "The method states another distribution. TV: its largest distance on small models.",
    "broken": "The method claims exactness and fails.",
    "unverified": "Neither exactness nor a distance could be shown.",
    "-": "No sample ended well, so the cell was not judged.",
}
_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})(?!\d)")
_GITHUB = re.compile(r"(?:^|\s)(github\.com/[\w.-]+/[\w.-]+)")


@dataclass(frozen=True)
class CellFacts:
    """A cell in words.

    Args:
        label, setting: as in the table of all cells.
        role: method, baseline or floor.
        claim, source: as the method states them; "" for an engine.
        source_link: address of a paper or repository that the source names; "" if it names none.
        verdict, variation, meaning: the word, its distance, and the meaning of the word.
        kind: the colour of an engine's verdict; "" for that of the word.
        evidence: the enumerations, comparisons and bets behind the verdict.
        params: of the method; of an engine, what it says of itself too.
        settings: of the cell.
        figures: title and estimate of the main metrics, in groups with a name.
        metrics: name, value, unit and formula of all.
        flags: what makes the figures doubtful.
        command: decodes this cell and what it is compared with again; "" if it needs files of the run's machine.
        differences: prompt, position and margin of the first tokens that differ from those of an engine's plain decode.
    """

    label: str
    setting: str
    role: str
    claim: str
    source: str
    source_link: str
    verdict: str
    variation: str
    meaning: str
    evidence: tuple[tuple[str, str], ...]
    params: tuple[tuple[str, str], ...]
    settings: tuple[tuple[str, str], ...]
    figures: tuple[tuple[str, tuple[tuple[str, HeadlineEntry], ...]], ...]
    metrics: tuple[tuple[str, str, str, str], ...]
    flags: tuple[str, ...]
    kind: str = ""
    command: str = ""
    differences: tuple[tuple[str, str, str], ...] = ()


def cell_facts(row: pd.Series[Any], finished: FinishedCell, no_curve: str = "") -> CellFacts:
    """Return the facts of a finished cell.

    Args:
        row: of the summary.
        no_curve: why the page has no curve of the e-value; "" if it has one or there was no audit.
    """
    meta, (word, variation) = finished.cell.meta, verdict_of(row)
    source = printable_line(meta.source or "")
    scores = [str(key)[:-4] for key in row.index if re.fullmatch(r"(score|set)\..*_low", str(key))]
    candidates = (*COLUMNS, *(Column(name, title_of(name)) for name in scores))
    figures = [(column, entry(row, column)) for column in candidates]
    return CellFacts(
        label=str(row["label"]),
        setting=setting_of(row),
        role=str(row["role"] or "method"),
        claim=CLAIMS.get(str(meta.claim), printable_line(str(meta.claim or "not stated"))),
        source=source,
        source_link=link_of(source),
        verdict=word,
        variation=variation,
        meaning=WORDS.get(word.split(" ")[0], ""),
        evidence=(*_evidence(row, meta), *([("no curve", no_curve)] if no_curve else [])),
        params=_pairs(meta.params),
        settings=_settings(meta),
        figures=_grouped([(column, item) for column, item in figures if item.order]),
        metrics=tuple(_metrics(finished)),
        flags=tuple(flag for flag in str(row["flags"]).split("; ") if flag),
        command=command_of(finished),
    )


GROUPS = {
    "Speed": ("speedup", "predicted", "ms_per_token", "drafter_c"),
    "Drafts": ("tau", "scr", "acceptance"),
    "Against plain decoding": ("audit", "agreement", "logprob_diff"),
}
"""Columns by group; all others are scores."""


def _grouped(
    figures: Sequence[tuple[Column, HeadlineEntry]],
) -> tuple[tuple[str, tuple[tuple[str, HeadlineEntry], ...]], ...]:
    known = {key for keys in GROUPS.values() for key in keys}
    groups = GROUPS | {"Scores": tuple(column.key for column, _ in figures if column.key not in known)}
    items = {column.key: (column.title, item) for column, item in figures}
    tiles_of = {name: tuple(items[key] for key in keys if key in items) for name, keys in groups.items()}
    return tuple((name, tiles) for name, tiles in tiles_of.items() if tiles)


def command_of(finished: FinishedCell) -> str:
    """Return the command that decodes a cell again with what it is compared with, or "" for prompts of a file."""
    meta = finished.cell.meta
    if meta.task == "prompts" or meta.plugin:
        return ""
    samples = finished.samples.index
    task = {"name": meta.task, **meta.task_params, "limit": samples.get_level_values("prompt").nunique()}
    task |= {"sampling": meta.sampling.stored(), "max_new_tokens": meta.max_new_tokens}
    repetitions = samples.get_level_values("repetition").nunique()
    task |= {"repetitions": repetitions} if repetitions > 1 else {}
    task |= {"chat": True} if meta.chat else {}
    words = ["stride", "run", "--method", _yaml({"name": meta.method, **meta.params}), "--backbone", meta.backbone]
    words += ["--dtype", meta.dtype, "--task", _yaml(task), "--seed", str(meta.seed)]
    words += ["--batch", str(meta.batch)] if meta.batch > 1 else []
    words += [] if meta.stop_at_eos else ["--set", "stop_at_eos=false"]
    return printable_line(shlex.join(words))


def _yaml(entry: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=10**6, allow_unicode=True)).strip()


TILES = ("tokens_per_second", "speedup", "length_per_draft_pooled", "length_per_pass_pooled", "ttft", "tpot", "audit")
DIFFERENCES = 20
"""First differences that a page lists."""
PLAIN = "A plain greedy decode. Decodes with drafts are compared with it."


def engine_facts(row: pd.Series[Any], cell: SealedCell, paired: str = "") -> CellFacts:
    """Return the facts of a finished cell of an engine.

    Args:
        row: of ``summarise_engines``.
        cell: with its requests.
        paired: the speed-up over requests that the plain decode has too, with its interval; "" if there is none.
    """
    meta, verdict = cell.meta, cell.meta.judged
    unknown = "unverified", PLAIN if meta.verdict else "The run has not judged it yet."
    kind, meaning = VERDICTS_OF_ENGINES.get(verdict.verdict, unknown)
    texts = {c: c.text(row) for c in COLUMNS_OF_ENGINES if c.key not in ("label", "verdict", "load")}
    measured = {column: signed(text) for column, text in texts.items() if text != "-"}
    metrics = [(column.title, text, "", column.help) for column, text in measured.items()]
    if paired:
        formula = "plain seconds a token over this cell's, over the same requests"
        metrics.append(("x plain, paired", paired, "", formula))
    tiles = {column.key: (column.title, HeadlineEntry(text, "", text)) for column, text in measured.items()}
    return CellFacts(
        label=printable_line(str(row["label"])),
        setting=setting_of(row),
        role="method",
        claim="",
        source="",
        source_link="",
        verdict=verdict.verdict or "-",
        variation="",
        meaning=meaning,
        evidence=_texts(_evidence_of_engine(verdict)),
        params=_texts(_engine(meta)),
        settings=_settings(meta),
        figures=(("", tuple(tiles[key] for key in TILES if key in tiles)),),
        metrics=tuple(metrics),
        flags=tuple(map(printable_line, engine_notes(cell.requests, meta))),
        kind=kind,
        differences=tuple(
            (printable_line(one.prompt), str(one.at), figure_of(one.margin, 3))
            for one in (verdict.differences or [])[:DIFFERENCES]
        ),
    )


def _evidence_of_engine(verdict: StoredVerdict) -> Iterator[tuple[str, str]]:
    if verdict.same is not None:
        yield "same as the plain decode", f"{verdict.same:.1%} of {verdict.pairs} outputs"
    if verdict.visible_share is not None:
        yield "share of differing outputs that 9 of 10 such checks see", f"{verdict.visible_share:.1%}"
    if verdict.floor is not None:
        yield "the plain decode made again", f"{verdict.floor:.1%} of its outputs are the same"
    if (departure := verdict.departure) is not None:
        yield "the plain decode's tokens lie below the reference's best logit by at most", figure_of(departure, 3)
    for audit, title in ((verdict.audit, "audit"), (verdict.plain_audit, "plain decode")):
        if audit:
            refutes = f"; {audit.threshold:g} refutes" if audit.threshold else ""
            yield f"e-value of the {title}", e_value(audit.log_e) + refutes
    if audit := verdict.audit:
        yield "audited tokens", figure_of(audit.tokens, 0)
        yield "strongest bet", audit.best
        yield "bias that 9 of 10 audits refute", visible(audit.visible_tv)
    if verdict.identities_checked:
        yield "requests whose numbers were compared with each other", str(verdict.identities_checked)
    for line in verdict.broken_identities:
        yield "contradiction", line


def _engine(meta: CellMeta) -> Iterator[tuple[str, str]]:
    yield "engine", meta.engine
    yield "drafts", _drafts(meta)
    yield "started server", meta.serve
    yield "way of drafting", meta.way
    told = {f"option {name}": item for name, item in meta.options.items()}
    told |= {f"told: {name}": item for name, item in meta.told.items()}
    yield from ((name, _value(item)) for name, item in told.items() if item not in (None, {}, ""))
    yield from ((f"counter {name}", number(count, 0)) for name, count in meta.growth.items())


def _drafts(meta: CellMeta) -> str:
    if meta.role == "speculative":
        return f"yes; its plain decode is {meta.plain}"
    return "this is the plain decode" + (", made again in another order" if meta.role == "floor" else "")


def _texts(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple((printable_line(name), printable_line(text)) for name, text in pairs if text)


def link_of(source: str) -> str:
    """The address of the first paper or repository that a source names; nothing else becomes a link."""
    if paper := _ARXIV.search(source):
        return f"https://arxiv.org/abs/{paper[1]}"
    if repository := _GITHUB.search(source):
        return f"https://{repository[1]}"
    return ""


def _evidence(row: pd.Series[Any], meta: CellMeta) -> list[tuple[str, str]]:
    verdict = meta.judged
    variation = verdict.total_variation
    pairs = [
        ("largest total variation", "" if variation is None else f"{variation:.3g}"),
        ("in the case", verdict.case or ""),
        ("greedy tokens", verdict.greedy or ""),
        ("note", verdict.note or ""),
        ("error", verdict.error or ""),
    ]
    for key, title in (("audit_log_e", "e-value of the audit"), ("audit_reason", "no audit")):
        if row.get(key) is not None and not pd.isna(row[key]):
            limit = f"{meta.audit_threshold or REFUTED:,.0f}"
            refuting = f"; broken from {limit} on, where a correct sampler gets once in {limit} audits"
            pairs.append((title, e_value(float(row[key])) + refuting if key == "audit_log_e" else str(row[key])))
    if row.get("audit_log_e") is not None and not pd.isna(row["audit_log_e"]):
        pairs.append(("audited tokens", figure_of(row.get("audit_tokens"), 0)))
        pairs.append(("strongest bet", str(row.get("audit_best") or "")))
        pairs.append(("bias that 9 of 10 audits refute", visible(row.get("audit_visible_tv"))))
    return list(_texts(pairs))


def _pairs(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((printable_line(str(name)), _value(item)) for name, item in values.items())


def _value(item: Any) -> str:
    return printable_line(item if isinstance(item, str) else json.dumps(item, ensure_ascii=False))


def _settings(meta: CellMeta) -> tuple[tuple[str, str], ...]:
    words = "backbone dtype task task_params sampling max_new_tokens batch ignore_eos seed device threads"
    stored = meta.stored()
    values = {name: stored[name] for name in words.split() if stored.get(name) not in (None, {}, "")}
    weights = {"weights": meta.fingerprint[:16]} if meta.fingerprint else {}
    return _pairs(values | weights | {"cell": meta.cell})


def _metrics(finished: FinishedCell) -> list[tuple[str, str, str, str]]:
    out = []
    for name, metric in METRICS.items():
        figure = value(metric, finished.figures)
        if figure is not None and figure == figure:
            out.append((name, signed(f"{figure:.4g}"), metric.unit, metric.formula))
    return out


# What a page says of a run as a whole: when, where and with what it was made, and how to make it again.


@dataclass(frozen=True)
class RunFacts:
    """A run in words.

    Args:
        name: of the suite, or of the folder of a run without one.
        created: when it began.
        facts: pairs of a name and a text.
        command: the command line that started it, without secrets; "" if it is not known.
        manifest: the manifest as JSON, without its cells.
    """

    name: str
    created: str
    description: str
    facts: tuple[tuple[str, str], ...]
    command: str
    manifest: str

    @staticmethod
    def of(store: Store) -> RunFacts:
        """The facts of a run's manifest."""
        manifest = store.manifest
        suite, source = manifest.suite, manifest.provenance
        rest = {key: value for key, value in manifest.stored().items() if key != "cells"}
        facts = _texts(_facts(manifest))
        return RunFacts(
            name=printable_line(name_of(store)),
            created=printable_line(manifest.created)[:19].replace("T", " "),
            description=printable_line(suite.description),
            facts=facts,
            command=printable_line(shlex.join(["stride", *source.argv[1:]]) if source.argv else ""),
            manifest=printable(json.dumps(rest, indent=1, ensure_ascii=False)),
        )


def _facts(manifest: Manifest) -> list[tuple[str, str]]:
    source = manifest.provenance
    machine, git = source.machine, source.git or {}
    gpus = [str(gpu.get("name")) for gpu in machine.get("gpus") or () if isinstance(gpu, dict)]
    memory, cores = machine.get("memory_bytes"), machine.get("cores")
    commit = str(git.get("commit") or "")[:12]
    return [
        ("started", f"{manifest.created[:19].replace('T', ' ')} UTC"),
        ("processor", f"{machine.get('cpu') or 'unknown'}{f', {cores} cores' if cores else ''}"),
        ("threads", str(machine.get("threads") or "")),
        ("memory", f"{memory / 2**30:.0f} GiB" if isinstance(memory, int) else ""),
        ("GPU", ", ".join(gpus)),
        ("machine", source.fingerprint or ""),
        ("commit", f"{commit}{', with changes' if git.get('dirty') else ''}" if commit else ""),
        ("versions", ", ".join(f"{name} {version}" for name, version in source.versions.items() if version)),
        ("environment", " ".join(f"{name}={value}" for name, value in source.environment.items())),
        ("schema", str(manifest.version)),
    ]
