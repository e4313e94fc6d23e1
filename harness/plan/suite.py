"""A suite file: YAML -> a frozen, resolved `Suite`; every error at once, each with its file and line."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError

from stridebench.harness.core.method import Method
from stridebench.harness.core.task import Sampling
from stridebench.harness.discover import suite_folder
from stridebench.harness.errors import UnknownNameError, UsageError, did_you_mean
from stridebench.harness.plan import engine_entries, names, tiny_suite
from stridebench.harness.plan.engine_entries import EngineUse
from stridebench.harness.plan.names import MethodUse, TaskUse, place_of
from stridebench.harness.plan.yaml_lines import Lines, Loc, parse

DType = Literal["fp32", "bf16", "fp16", "fp64"]


def _has_name(entry: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(entry.get("name"), str) or not entry["name"]:
        raise ValueError("an entry is a name, or a mapping with `name` and parameters")
    return entry


def _whole_number(name: str, least: int) -> PlainValidator:
    """One value, or several to sweep."""

    def check(value: Any) -> int | tuple[int, ...]:
        values = value if isinstance(value, list | tuple) and value else [value]
        if not all(isinstance(number, int) and not isinstance(number, bool) and number >= least for number in values):
            raise ValueError(f"{name} is a whole number from {least}, or a list of them to sweep")
        return tuple(values) if isinstance(value, list | tuple) else int(value)

    return PlainValidator(check)


TopK = Annotated[int | tuple[int, ...], _whole_number("top_k", 0)]
Batch = Annotated[int | tuple[int, ...], _whole_number("batch", 1)]
Named = Annotated[dict[str, Any], AfterValidator(_has_name)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Resources(_Strict):
    """Resources that a worker of a cluster needs to run the cells of a backbone.

    If ``gpus`` is not given: one if the run's device is a GPU, else none. If only one of several GPUs is used, say 1.
    """

    cpus: int = Field(1, ge=1)
    gpus: float | None = Field(None, ge=0)
    memory_gb: float | None = Field(None, gt=0, allow_inf_nan=False)


class BackboneEntry(_Strict):
    """A backbone and the types to run it in; if no type is named, the default of its adapter.

    ``max_new_tokens`` replaces the suite's and the tasks', for models that reason before they answer. Other keys are
    parameters of its adapter, such as ``weights: int4``, and become part of the name.
    """

    name: str = Field(min_length=1)
    dtype: tuple[DType, ...] = ()
    resources: Resources | None = None
    max_new_tokens: int | None = Field(None, ge=1)


class GreedyCheck(_Strict):
    """Size of the check of greedy equality in fp32 on a real backbone; 0 prompts: no check."""

    prompts: int = Field(2, ge=0)
    tokens: int = Field(32, ge=1)


class PaperEntry(_Strict):
    """The paper whose report a run ends with (`stridebench.reports.papers`), and the cells of its roles."""

    name: str
    roles: dict[str, dict[str, Any]] = Field(default_factory=dict)


def _by_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _unless_auto(value: Any) -> Any:
    return None if value == "auto" else value


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


class Suite(_Strict):
    """The suite as written in YAML, except methods and tasks, which are resolved separately.

    A list in place of a scalar is a sweep: every value in turn. ``methods: all`` and ``backbones: all``
    are everything registered, at its defaults. ``at`` in a method's entry limits it to some temperatures.
    ``beside`` in the file maps a backbone to those that run whenever it does, named on the command line or not.
    ``report`` names the paper's report that the run ends with. ``variants`` in the file maps a name to the keys that
    replace the file's when ``--only NAME`` chooses it.
    ``isolation: process`` runs the cells of methods in a worker process, ``none`` in the main one; not given: process
    for methods of other packages. The two limits are seconds of wall time; they hold for cells in a worker,
    and ``sample_limit_s`` for the scorer of every task.
    ``threads: auto``, the default, times passes with 1, 2, 4, ... threads once a backbone and takes the best.
    ``timing: off`` decodes without warm-up and shows no seconds, so that the workers of an executor may share a device.
    """

    name: str = "adhoc"
    description: str = ""
    methods: tuple[Named, ...] = Field(min_length=1)
    backbones: tuple[BackboneEntry, ...] = Field(min_length=1)
    tasks: tuple[Named, ...] = Field(min_length=1)
    temperature: tuple[float, ...] = Field((0.0,), min_length=1)
    top_k: TopK = 0
    top_p: float = Field(1.0, gt=0, le=1)
    order: Literal["temperature_first", "filter_first"] = "temperature_first"
    max_new_tokens: int = Field(64, ge=1)
    stop_at_eos: bool = True
    batch: Batch = 1
    repetitions: int = Field(1, ge=1)
    warmup: int = Field(1, ge=0)
    seed: int = 0
    prove: bool = True
    greedy_check: GreedyCheck = Field(default_factory=lambda: GreedyCheck(prompts=2, tokens=32))
    threads: Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(_unless_auto)] = None
    timing: bool = True
    isolation: Literal["process", "none"] | None = None
    sample_limit_s: float | None = Field(600, gt=0, allow_inf_nan=False)
    cell_limit_s: float | None = Field(None, gt=0, allow_inf_nan=False)
    report: Annotated[PaperEntry | None, BeforeValidator(_by_name)] = None

    @property
    def top_ks(self) -> tuple[int, ...]:
        """Every top-k of the suite."""
        return (self.top_k,) if isinstance(self.top_k, int) else self.top_k

    @property
    def batches(self) -> tuple[int, ...]:
        """Every batch of the suite: how many prompts are decoded in lock step (`stridebench.harness.core.batch`)."""
        return (self.batch,) if isinstance(self.batch, int) else self.batch


class Objective(_Strict):
    """Limits in milliseconds that a request must keep to count as good (goodput)."""

    ttft_ms: float | None = Field(None, gt=0, allow_inf_nan=False)
    tpot_ms: float | None = Field(None, gt=0, allow_inf_nan=False)


class Load(_Strict):
    """The loads that each engine gets: requests under way at once, and requests a second.

    A list in place of a scalar is a sweep. The arrivals of a rate are those of a Poisson process, drawn from the
    suite's seed and stored with each request.
    """

    concurrency: Annotated[tuple[Annotated[int, Field(ge=1)], ...], BeforeValidator(_listed)] = (1,)
    rate: Annotated[tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...], BeforeValidator(_listed)] = ()
    objective: Objective = Objective(ttft_ms=None, tpot_ms=None)


class EngineSuite(Suite):
    """A suite with engines and methods, or with engines alone.

    ``engines`` are entries of `harness.plan.engine_entries`; ``reference: false`` runs them without the backbone's
    weights, as texts, so that nothing is audited.
    """

    methods: tuple[Named, ...] = ()
    engines: tuple[Named, ...] = Field(min_length=1)
    load: Load = Field(default_factory=Load)
    reference: bool = True


def samplings(suite: Suite, use: TaskUse) -> Iterator[Sampling]:
    """Yield every temperature with every top-k; values of a task replace those of the suite."""
    rest = {"top_p": suite.top_p, "order": suite.order}
    for temperature in suite.temperature:
        for top_k in suite.top_ks:
            yield Sampling(**{**rest, "temperature": temperature, "top_k": top_k, **dict(use.sampling)})


@dataclasses.dataclass(frozen=True)
class Resolved:
    """A suite with every name looked up and every sweep unrolled."""

    suite: Suite
    uses: tuple[MethodUse, ...]
    tasks: tuple[TaskUse, ...]
    engines: tuple[EngineUse, ...] = ()

    @property
    def methods(self) -> tuple[Method[Any], ...]:
        """All methods, in order, without repeats."""
        return tuple(dict.fromkeys(use.method for use in self.uses))


@dataclasses.dataclass(frozen=True)
class Overrides:
    """Values of a suite that the command line replaces.

    Args:
        values: keys of the suite, replaced.
        limit: of every task, or None to keep theirs.
        dtypes: of every backbone; empty to keep theirs.
        options: the option that gave each key, for errors.
        tiny: tiny models of random weights stand in for published ones; see `tiny_suite`.
        device: that the suite will run on; it decides what ``dtype: native`` is.
        urls: addresses of running servers (`stridebench.harness.plan.engine_entries.at_urls`).
        only: the variant of the suite that runs; "" for the suite itself.
    """

    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    limit: int | None = None
    dtypes: tuple[str, ...] = ()
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tiny: bool = False
    device: str = "cpu"
    urls: tuple[str, ...] = ()
    only: str = ""

    def lines(self, path: str, node: yaml.Node | None) -> Lines:
        """Return the places that the values of a patched suite came from."""
        options = {key: self.options.get(key, f"{path} ({key})") for key in self.values}
        if self.limit is not None:
            options["tasks.limit"] = self.options.get("limit", "--limit")
        if self.dtypes:
            options["backbones.dtype"] = self.options.get("dtype", "--dtype")
        return Lines(path, node, options)

    def patch_entries(self, data: dict[str, Any]) -> None:
        """Set limit and dtypes in a suite's plain data, whose entries are in their long form."""
        changes: dict[str, dict[str, Any]] = {
            "tasks": {} if self.limit is None else {"limit": self.limit},
            "backbones": {"dtype": list(self.dtypes)} if self.dtypes else {},
        }
        for key, change in changes.items():
            if key in data:
                data[key] = [{**entry, **change} if isinstance(entry, dict) else entry for entry in data[key]]


NOTHING = Overrides()
ONLY = " --only "
"""Between the name of a suite and its variant, where a command is written."""


def shipped() -> dict[str, Path]:
    """Suites that we ship, by name: quick, nightly, all, papers/..."""
    folder = suite_folder()
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}


def commands() -> dict[str, Path]:
    """Suites that we ship and their variants, as `stride run` takes them: ``papers/sjdpp --only batch``."""
    return {
        f"{name}{ONLY}{variant}" if variant else name: path
        for name, path in shipped().items()
        for variant in ("", *(parse(path.read_text(encoding="utf-8")).data.get("variants") or ()))
    }


def of_command(text: str, overrides: Overrides = NOTHING) -> Resolved:
    """Load a suite by its text in `commands`; errors are those of `load`."""
    name, _, only = text.partition(ONLY)
    return load(name, dataclasses.replace(overrides, only=only))


def load(name: str, overrides: Overrides = NOTHING) -> Resolved:
    """A suite by name or by path, patched and then looked up.

    Raises:
        UsageError: the file is missing or malformed, or names or values are wrong; all of it at once.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        suites = shipped()
        if name not in suites and path.is_dir():
            raise UsageError(f"{name} is a folder and no suite; the folder of a model is given as --backbone {name}")
        if name not in suites:
            raise UnknownNameError("suite", name, suites)
        path = suites[name]
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the suite {path}: {error}") from error
    try:
        document = parse(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        raise UsageError(f"{path}:{line}: not YAML: {getattr(error, 'problem', error)}") from error
    if not isinstance(document.data, dict):
        raise UsageError(f"{path}:1: a suite is a mapping with methods, backbones and tasks")
    title = path.stem if path == Path(name) else name
    problems = [f"{path}:{again.line}: the key {again.key!r} is there twice" for again in document.repeated]
    data, node = document.data, document.node
    variants, nodes = data.pop("variants", {}), _children(node).get("variants")
    assert node is not None  # a mapping has a node
    if not isinstance(variants, dict) or not all(isinstance(keys, dict) for keys in variants.values()):
        problems.append(f"{path}:{nodes.start_mark.line + 1 if nodes else 1}: variants maps names to keys of a suite")
    elif overrides.only:
        if overrides.only not in variants:
            raise UnknownNameError(f"variant of {name}", overrides.only, variants)
        title, data = f"{title}_{overrides.only}", {**data, **variants[overrides.only]}
        pairs = {key.value: (key, value) for key, value in (*node.value, *_children(nodes)[overrides.only].value)}
        node = yaml.MappingNode(node.tag, list(pairs.values()), node.start_mark)
    return _resolve({"name": title, **data}, overrides, overrides.lines(str(path), node), problems)


def _children(node: yaml.Node | None) -> dict[str, yaml.Node]:
    return {key.value: value for key, value in node.value} if isinstance(node, yaml.MappingNode) else {}


def from_options(overrides: Overrides) -> Resolved:
    """A suite that is named by options alone.

    Raises:
        UsageError: one line for each thing that is wrong.
    """
    return _resolve({}, overrides, overrides.lines("command line", None), [])


def resolve(data: Mapping[str, Any], lines: Lines) -> Resolved:
    """Check a suite's plain data and look up every name.

    Raises:
        UsageError: one line for each thing that is wrong.
    """
    return _resolve(data, NOTHING, lines, [])


def resolve_again(data: Mapping[str, Any]) -> Resolved:
    """Look up the names of a suite that was dumped, as a worker in another process does."""
    return resolve(data, Lines(str(data["name"]), None))


def _resolve(data: Mapping[str, Any], overrides: Overrides, lines: Lines, problems: list[str]) -> Resolved:
    """Patch, check, look up; ``problems`` holds earlier errors, which are reported with the rest."""
    plain = names.normal({**data, **overrides.values})
    if "backbones" in overrides.values:
        plain["backbones"] = names.as_the_suite_has_them(plain["backbones"], names.normal(data).get("backbones", ()))
    names.companions(plain, lines, problems)
    overrides.patch_entries(plain)
    engine_entries.at_urls(plain, overrides.urls, problems)
    names.native_types(plain, overrides.device)
    if overrides.tiny:
        tiny_suite.shrink(plain)
    suite = _validated(plain, lines, problems)
    methods = names.methods(plain, lines, problems)
    tasks = names.tasks(plain, lines, problems)
    engines = engine_entries.uses(plain, lines, problems)
    dtypes = names.default_dtypes(plain, lines, problems)
    names.temperatures(plain, lines, problems)
    names.report(plain, lines, problems)
    if problems or suite is None:
        raise UsageError("\n".join(dict.fromkeys(problems)))
    entries = (e if e.dtype else e.model_copy(update={"dtype": (dtypes[e.name],)}) for e in suite.backbones)
    return Resolved(suite.model_copy(update={"backbones": tuple(entries)}), methods, tasks, engines)


def _validated(plain: Mapping[str, Any], lines: Lines, problems: list[str]) -> Suite | None:
    """Return the suite, or None after its faults were appended to ``problems``."""
    try:
        return (EngineSuite if "engines" in plain else Suite).model_validate(plain)
    except ValidationError as error:
        faults = error.errors()
    inside = {fault["loc"][0] for fault in faults if len(fault["loc"]) > 1}
    for fault in faults:
        if fault["type"] == "too_short" and fault["loc"][0] in inside:
            continue  # short only because the entries in it were refused
        loc = tuple(part for part in fault["loc"] if isinstance(part, int | str))
        problems.append(f"{lines.at(loc)}: {'.'.join(map(str, loc))}: {_say(fault, loc, plain)}")
    return None


def _say(fault: Any, loc: Loc, plain: Mapping[str, Any]) -> str:
    if fault["type"] == "extra_forbidden":
        inner = {"name", "dtype", "resources", *Resources.model_fields, "limit", "prompts", "tokens", "roles"}
        known_keys = EngineSuite.model_fields if len(loc) == 1 else inner
        key, nearest = str(loc[-1]), did_you_mean(str(loc[-1]), list(known_keys))
        return f"unknown key{place_of(key, plain if len(loc) == 1 else None) or nearest}"
    value = repr(fault["input"])
    return str(fault["msg"]) if fault["type"] == "missing" else f"{fault['msg']}; found {value[:80]}"
