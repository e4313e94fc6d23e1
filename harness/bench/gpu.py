"""All timings that we quote of a GPU, in one script and one file.

It times autoregressive decoding beside `generate` and beside the memory's bandwidth, passes by rows, every method of
two suites beside autoregressive decoding, weights in 8 and 4 bits, and the host's gap. Passes of fixed shapes are CUDA
graphs. Where there is no GPU the same code runs on CPU tensors, with a recorder in the graphs' place that checks shapes
and addresses; its times are of that check, and the file says so. The file is written again after each row, so that a
run that is killed keeps its rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from stridebench.harness.backbones.base import Adapter
from stridebench.harness.backbones.tiny import PREFIX
from stridebench.harness.bench import machine_profile
from stridebench.harness.bench.paired import LOOKUP, Result, build, compare, in_turn, prompt_ids
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.clock import Stopwatch, clock_for
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, decode
from stridebench.harness.core.method import Method
from stridebench.harness.core.models import Models
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import StrideError, UsageError
from stridebench.harness.plan import presets
from stridebench.harness.plan.cells import Cell, Plan, expand
from stridebench.harness.plan.suite import Overrides
from stridebench.harness.plan.suite import load as load_suite
from stridebench.harness.record.files import put
from stridebench.harness.record.provenance import machine
from stridebench.harness.run.passes import Threads, measure

SUITES = ("trees", "embedded")
RANDOM = "random-smollm2-135m"
"""Of the shape of SmolLM2-135M, where its weights cannot be had."""
TRAINED, SHAPED, OWN_RANDOM = "trained", "random, of the same shape", "random"
STAND_IN = "random, of a tiny stand-in"
RESERVE_S = 10.0
"""Seconds that a row may take once the time is over."""
NUCLEUS = Sampling(1.0, top_p=0.95)


@dataclass(frozen=True)
class Settings:
    """What is timed and for how long.

    Args:
        seconds: of the whole script.
        suites: whose methods are timed.
        whole: pictures and meshes are decoded whole, else up to ``tokens``.
        tiny: stand-ins in place of published models, as `stride run --tiny` has them.
    """

    device: str
    backbone: str = "smollm2-135m"
    dtype: str = "bf16"
    pairs: int = 6
    tokens: int = 64
    seconds: float = 540.0
    suites: tuple[str, ...] = SUITES
    whole: bool = True
    tiny: bool = False

    @classmethod
    def quick(cls, device: str, backbone: str, seconds: float) -> Settings:
        """One pair of short decodes of each kind, for a look at whether everything runs."""
        return cls(device, backbone, pairs=1, tokens=8, seconds=seconds, whole=False)


@dataclass
class Document:
    """The file.

    Args:
        path: written again after each row.
        head: what the rows were made on and with.
        rows: figures.
        left_out: what was not timed, and why.
    """

    path: Path
    head: dict[str, Any]
    until: float
    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[dict[str, str]] = field(default_factory=list)

    def add(self, section: str, weights: str, result: Result, **more: Any) -> None:
        """A row."""
        self.rows.append({"section": section, "weights": weights, **asdict(result), **more})
        self.write()

    def skip(self, section: str, name: str, reason: str) -> None:
        """What has no row."""
        self.left_out.append({"section": section, "name": name, "reason": reason})
        self.write()

    def write(self) -> None:
        """Write the file, whole or not at all."""
        body = {**self.head, "rows": self.rows, "left_out": self.left_out}
        put(self.path, json.dumps(body, indent=1).encode())

    @property
    def over(self) -> bool:
        """Whether no further row may begin."""
        return time.monotonic() > self.until - RESERVE_S


def run(settings: Settings, path: Path, say: Callable[[str], None]) -> Document:
    """Time everything and write the file.

    Raises:
        UsageError: the file is there already, or a suite is unknown.
    """
    if path.exists():
        raise UsageError(f"{path} exists; name another file with --out, so that no timing is lost")
    begin = time.monotonic()
    document = Document(path, _head(settings), begin + settings.seconds)
    document.write()
    with torch.inference_mode():
        for section, act in SECTIONS.items():
            say(section)
            try:
                act(settings, document)
            except StrideError as error:
                document.skip(section, "", str(error))
    document.head["seconds"] = round(time.monotonic() - begin, 1)
    document.write()
    return document


def _head(settings: Settings) -> dict[str, Any]:
    cuda = settings.device.startswith("cuda")
    name = torch.cuda.get_device_name(settings.device) if cuda else "none: CPU tensors"
    passes = "CUDA graphs" if cuda else "a recorder in the place of CUDA graphs: no time here is one of a GPU"
    return {"gpu": name, "passes": passes, "torch": torch.__version__, "machine": machine(), **asdict(settings)}


@cache
def _model(name: str, dtype: str, device: str, graphs: bool = True) -> tuple[Backbone, str]:
    """A backbone and what its weights are; random ones of the same shape where those of SmolLM2 cannot be had."""
    weights = OWN_RANDOM if "random" in presets.resolve(name).params.get("source", {}) else TRAINED
    try:
        backbone = presets.load(name, dtype, device)
    except StrideError:
        if not name.startswith("smollm2-135m"):
            raise
        backbone, weights = presets.load(name.replace("smollm2-135m", RANDOM), dtype, device), SHAPED
    if graphs and isinstance(backbone, Adapter):
        backbone.use_graphs()
    return backbone, weights


def _target(settings: Settings, graphs: bool = True, form: str = "") -> tuple[Backbone, str]:
    return _model(settings.backbone + form, settings.dtype, settings.device, graphs)


def _prompts(backbone: Backbone, count: int) -> list[list[int]]:
    """Of HumanEval; ids of no meaning for a model without a tokenizer."""
    try:
        return prompt_ids(backbone, count)
    except UsageError:
        most = backbone.capabilities.vocabulary
        return [
            [(7 * i + 11 * k) % most for k in range(min(96, backbone.capabilities.context // 4))] for i in range(count)
        ]


def _decoded(
    method: Method[Any],
    backbone: Backbone,
    load_drafter: Callable[[str], Backbone],
    prompt: Prompt,
    sampling: Sampling,
    budget: int,
    ends: bool = False,
) -> Decode:
    """One decode on the clock of the device; without ``ends`` the end of text is an ordinary token."""
    draws = SeededDraws(0, "gpu", prompt.id, 0, backbone.device)
    models = Models(backbone, load_drafter, prompt, Stopwatch(clock_for(backbone.device)))
    run = Run.of(models, sampling, budget, draws)
    run.eos = run.eos if ends else frozenset()
    return decode(method, run)


def _plain(
    settings: Settings, backbone: Backbone, method: Method[Any], sampling: Sampling
) -> Callable[[list[int]], Decode]:
    load = cache(partial(presets.drafter, backbone))
    return lambda ids: _decoded(method, backbone, load, Prompt("gpu", tokens=tuple(ids)), sampling, settings.tokens)


def profile(settings: Settings, document: Document) -> None:
    """Bandwidth, rates and launches of the device."""
    document.head["profile"] = machine_profile.measure(settings.device)


def equality(settings: Settings, document: Document) -> None:
    """Tokens of captured passes against those of plain ones, in fp32 at T = 0."""
    sides = [_model(settings.backbone, "fp32", settings.device, graphs) for graphs in (True, False)]
    ids = _prompts(sides[0][0], 1)[0]
    for name, params in (("autoregressive", {}), ("prompt_lookup", LOOKUP), ("sjd", {"window": 8})):
        tokens = [_plain(settings, side, build(name, params), Sampling(0.0))(ids).tokens for side, _ in sides]
        same = sum(a == b for a, b in zip(*tokens, strict=False)) / len(tokens[1])
        result = Result(f"{name}: share of equal tokens", same, 1.0, same, None, None, "share", "", "", 1)
        document.add("captured and plain passes", sides[0][1], result)


def autoregressive(settings: Settings, document: Document) -> None:
    """Tokens a second beside plain passes and `generate`, eager and compiled; bytes a second beside the bandwidth."""
    backbone, weights = _target(settings)
    prompts, decoder = _prompts(backbone, settings.pairs), build("autoregressive", {})
    ours = _plain(settings, backbone, decoder, Sampling(0.0))
    plain = _plain(settings, _target(settings, graphs=False)[0], decoder, Sampling(0.0))
    peers: dict[str, Callable[[list[int]], Sequence[int]]] = {"our plain passes": lambda ids: plain(ids).tokens}
    model = _peer(settings, weights)
    peers["generate, eager"] = partial(_generated, model, settings)
    if settings.device.startswith("cuda"):
        peers["generate, compiled"] = partial(_generated, model, settings, cache_implementation="static")
    else:
        document.skip("autoregressive", "generate, compiled", "transformers compiles `generate` on a GPU alone")
    rate = 0.0
    for name, peer in peers.items():
        if document.over:
            document.skip("autoregressive", name, "the time was over")
            continue
        rows = in_turn((lambda ids: ours(ids).tokens, peer), prompts)
        result = compare(f"autoregressive against {name}", rows, "tokens/s", None)
        document.add("autoregressive", weights, result)
        rate = max(rate, result.ours)
    read = sum(each.numel() * each.element_size() for each in {id(p): p for p in model.parameters()}.values())
    bandwidth = document.head.get("profile", {}).get("bandwidth_gb_s", {}).get("value")
    if bandwidth and rate:
        gb_s = read * rate / 1e9
        note = f"{read / 1e6:.0f} MB of weights a token; prefill is part of the time"
        result = Result(
            "bytes of weights a second", gb_s, bandwidth, gb_s / bandwidth, None, None, "GB/s", "", "", 1, note
        )
        document.add("autoregressive", weights, result)


def _generated(model: Any, settings: Settings, ids: list[int], **more: Any) -> Sequence[int]:
    limits = {"max_new_tokens": settings.tokens, "min_new_tokens": settings.tokens, "do_sample": False}
    tokens = torch.tensor([ids], device=settings.device)
    out: list[int] = model.generate(tokens, pad_token_id=0, **limits, **more)[0, len(ids) :].tolist()
    return out


def _peer(settings: Settings, weights: str) -> Any:
    """The same model in transformers; of random weights where ours are random."""
    from transformers import AutoModelForCausalLM

    from stridebench.harness.backbones.base import TYPES
    from stridebench.harness.backbones.checkpoints import sources, transformers_models

    name = RANDOM if weights == SHAPED else settings.backbone
    spec = presets.resolve(name)
    source = sources.parse(name, spec.params["source"])
    if source.kind == "random":
        model = transformers_models.make_random(name, source.fields, "sdpa")
    else:
        model = AutoModelForCausalLM.from_pretrained(
            presets.fetch(name), local_files_only=True, trust_remote_code=False
        )
    return model.to(device=settings.device, dtype=TYPES[settings.dtype]).eval()


def windows(settings: Settings, document: Document) -> None:
    """Milliseconds of a pass by its rows, captured and plain."""
    for graphs in (True, False):
        backbone, weights = _target(settings, graphs)
        prompt = Prompt("windows", tokens=tuple(_prompts(backbone, 1)[0]))
        passes = measure(backbone, prompt, Threads(torch.get_num_threads(), choose=False), busy=False)
        for rows, ms in passes.rows:
            first = passes.rows[0][1]
            name = f"{'captured' if graphs else 'plain'} pass of {rows} rows"
            document.add("passes", weights, Result(name, ms, first, ms / first, None, None, "ms", "", "", 1))


def quantised(settings: Settings, document: Document) -> None:
    """Tokens a second of autoregressive decoding with weights in 8 and 4 bits beside the model's type."""
    full, weights = _target(settings)
    prompts, decoder = _prompts(full, settings.pairs), build("autoregressive", {})
    for form in ("int8", "int4"):
        if document.over:
            document.skip("quantised", form, "the time was over")
            continue
        coarse = _target(settings, form=f":weights={form}")[0]
        sides = [_plain(settings, side, decoder, Sampling(0.0)) for side in (coarse, full)]
        rows = in_turn([lambda ids, side=side: side(ids).tokens for side in sides], prompts)  # type: ignore[misc]
        document.add("quantised", weights, compare(f"autoregressive {form}", rows, "tokens/s", None))


def host(settings: Settings, document: Document) -> None:
    """The host's gap: a step's wall time less the device's time in its passes."""
    backbone, weights = _target(settings)
    prompts = _prompts(backbone, settings.pairs)
    for name, params in (("autoregressive", {}), ("prompt_lookup", LOOKUP)):
        for sampling in (Sampling(0.0), NUCLEUS):
            if document.over:
                document.skip("host", name, "the time was over")
                continue
            one = _plain(settings, backbone, build(name, params), sampling)
            one(prompts[0])
            steps = [step for ids in prompts for step in one(ids).steps]
            wall = sum(step.wall_ns for step in steps) / 1e6 / len(steps)
            passes = sum(step.target_ns + step.draft_ns for step in steps) / 1e6 / len(steps)
            title = f"{name} T={sampling.temperature:g}: ms a step outside passes, beside those inside"
            gap = Result(
                title, wall - passes, passes, (wall - passes) / wall, None, None, "share", "", "", len(prompts)
            )
            document.add("host", weights, gap)


def methods(settings: Settings, document: Document) -> None:
    """Every method of the suites beside autoregressive decoding, by the cells' own prompts and sampling."""
    cells = [(plan, cell) for plan in plans(settings) for cell in plan.cells if cell.role == "method"]
    cells.sort(key=lambda entry: entry[1].group)
    for _, entries in groupby(cells, key=lambda entry: entry[1].group):
        _model.cache_clear()  # one backbone at a time
        for plan, cell in entries:
            reason = cell.skip or ("the time was over" if document.over else "")
            if not reason:
                try:
                    _method(settings, document, plan, cell)
                    continue
                except Exception as error:  # of a method that does not run here: the next one may
                    reason = f"{type(error).__name__}: {error}"
            document.skip("methods", cell.id, reason)


def plans(settings: Settings) -> list[Plan]:
    """The plan of each suite."""
    return [expand(load_suite(suite, Overrides(tiny=settings.tiny))) for suite in settings.suites]


def _method(settings: Settings, document: Document, plan: Plan, cell: Cell) -> None:
    backbone = _model(cell.backbone, cell.dtype, settings.device)[0]
    load = cache(partial(presets.drafter, backbone))
    prompts, baseline = plan.prompts[cell.task][: settings.pairs], build("autoregressive", {})
    uncut = settings.whole and presets.resolve(cell.backbone).modality() in ("image", "mesh")
    budget = cell.max_new_tokens if uncut else min(cell.max_new_tokens, settings.tokens)
    steps: list[Any] = []

    def rate(method: Method[Any], keep: bool, index: int) -> Sequence[int]:
        ends = cell.stop_at_eos
        done = _decoded(method, backbone, load, prompts[index], cell.sampling, budget, ends)
        steps.extend(done.steps if keep else ())
        return done.tokens

    indices = [[index] for index in range(len(prompts))]
    sides = (lambda at: rate(cell.method, True, at[0]), lambda at: rate(baseline, False, at[0]))
    result = compare(cell.label, in_turn(sides, indices), "tokens/s", None)
    wall = sum(step.wall_ns for step in steps)
    inside = sum(step.target_ns + step.draft_ns for step in steps)
    emitted = sum(step.emitted - step.overshoot for step in steps) / len(steps)
    more = {"ms_a_step": wall / len(steps) / 1e6, "host_share": 1 - inside / wall, "tau": emitted}
    sampled = {"backbone": cell.backbone, "dtype": cell.dtype, "temperature": cell.sampling.temperature}
    weights = STAND_IN if cell.backbone.startswith(PREFIX) else TRAINED
    document.add("methods", weights, replace(result, note=f"{cell.task.name}; {result.note}"), **more, **sampled)


SECTIONS: dict[str, Callable[[Settings, Document], None]] = {
    "profile": profile,
    "captured and plain passes": equality,
    "autoregressive": autoregressive,
    "passes": windows,
    "host": host,
    "quantised": quantised,
    "methods": methods,
}
"""In this order, so that a short time leaves out methods first."""


def table(document: Document) -> Iterator[tuple[str, ...]]:
    """Rows of a printed table: section, name, ours, peer, ratio, unit, weights."""
    for row in document.rows:
        low, high = row["low"], row["high"]
        interval = "" if low is None or pd.isna(low) else f" [{low:.2f}, {high:.2f}]"
        peer = "" if row["peer"] is None else f"{row['peer']:.3g}"
        name = row["name"] + (f", {row['backbone']}, T={row['temperature']:g}" if "backbone" in row else "")
        yield (
            row["section"],
            name,
            f"{row['ours']:.3g}",
            peer,
            f"{row['ratio']:.2f}{interval}",
            row["unit"],
            row["weights"],
        )
