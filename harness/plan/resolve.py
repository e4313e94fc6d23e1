"""Reads a suite from a file, a stored run or the command line, with its variant and the user's overrides."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from stridebench.harness.core.method import Method
from stridebench.harness.discover import suite_folder
from stridebench.harness.errors import UnknownNameError, UsageError, did_you_mean
from stridebench.harness.machine.surroundings import cache_folder
from stridebench.harness.plan.entries import EngineUse, MethodUse, Resources, TaskUse
from stridebench.harness.plan.lookup import parameters_of_backbone, place_of
from stridebench.harness.plan.overrides import Overrides
from stridebench.harness.plan.suite import ANY_TEXT, ENTRIES, EngineSuite, Suite
from stridebench.harness.plan.yaml_lines import Lines, Loc, parse
from stridebench.harness.record.remote import fetched


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
    if not isinstance(variants, dict) or not all(
        isinstance(name, str) and isinstance(keys, dict) for name, keys in variants.items()
    ):
        line = nodes.start_mark.line + 1 if nodes else 1
        problems.append(f"{path}:{line}: variants maps names to keys of a suite; quote a name that is a number")
    elif overrides.only:
        if overrides.only not in variants:
            raise UnknownNameError(f"variant of {name}", overrides.only, variants)
        title, data = f"{title}_{overrides.only}", {**data, **variants[overrides.only]}
        pairs = {key.value: (key, value) for key, value in (*node.value, *_children(nodes)[overrides.only].value)}
        node = yaml.MappingNode(node.tag, list(pairs.values()), node.start_mark)
    return _resolve({"name": title, **data}, overrides, overrides.lines(str(path), node), problems)


def _children(node: yaml.Node | None) -> dict[str, yaml.Node]:
    return {key.value: value for key, value in node.value} if isinstance(node, yaml.MappingNode) else {}


def resolve(data: Mapping[str, Any], lines: Lines, overrides: Overrides = NOTHING) -> Resolved:
    """Check a suite's plain data and look up every name."""
    return _resolve(data, overrides, lines, [])


def resolve_again(data: Mapping[str, Any], overrides: Overrides = NOTHING) -> Resolved:
    """Look up the names of a suite that was dumped, as a worker in another process does.

    Options of the command line may have left entries idle, such as those of a temperature that they removed.
    """
    name = str(data["name"])
    return resolve(data, Lines(name, None, dict.fromkeys(("temperature", "backbones", "tasks"), name)), overrides)


def task_of(prompts: Path | str) -> list[dict[str, str]]:
    """Return the entry of a suite that decodes a file of prompts, which may lie at a URL."""
    file = fetched(prompts, cache_folder() / "prompts") if isinstance(prompts, str) else prompts
    return [{"name": "prompts", "file": str(file.absolute())}]


def suite_to_run(
    name: str | None, overrides: Overrides, out: Path | str | None, resume: bool, words: Mapping[str, str] = ENTRIES
) -> Resolved:
    """Return the named suite, that of the run in ``out`` if a resume names nothing else, or the overrides alone.

    Raises:
        UsageError: there is no such suite, the overrides are too few, names or values are wrong, or the run does not
            say which suite it ran. StoreError: ``out`` holds no run.
    """
    if name is not None:
        return load(name, overrides)
    if overrides.only:
        raise UsageError(f"--only {overrides.only} chooses a variant of a suite; name the suite too")
    nothing_named = not overrides.values and overrides.limit is None and not overrides.dtypes
    if resume and nothing_named and out is not None:
        from stridebench.harness.record.store import Store  # imports pandas, which a list or a dry run does not need

        suite = Store.open(out).manifest.suite
        if overrides.tiny:
            raise UsageError(f"--tiny changes a suite, and {out} has its own: leave out --tiny, or name the suite too")
        if suite.model_fields_set:
            return resolve_again(suite.stored(), Overrides(urls=overrides.urls))
        raise UsageError(f"{out} does not say which suite it ran; name the suite too")
    if overrides.options.get("tasks") in ("--prompts", "prompts"):
        overrides = replace(overrides, values={"methods": list(ANY_TEXT), "name": "prompts", **overrides.values})
    if absent := [word for key, word in words.items() if key not in overrides.values]:
        prompts = "prompts" if words["tasks"] == "tasks" else "--prompts FILE"
        instead = f"; with {words['backbones']}, {prompts} is enough" if "backbones" in overrides.values else ""
        raise UsageError(f"name a suite (see `stride list suites`), or give {', '.join(absent)} too{instead}")
    return _resolve({}, overrides, overrides.lines("command line", None), [])


def _resolve(data: Mapping[str, Any], overrides: Overrides, lines: Lines, problems: list[str]) -> Resolved:
    """Patch and check; ``problems`` holds earlier errors, which are reported with the rest."""
    plain = overrides.patched(data, lines, problems)
    context = {"device": overrides.device, "options": lines.options}
    suite: Suite | None = None
    try:
        suite = (EngineSuite if "engines" in plain else Suite).model_validate(plain, context=context)
    except ValidationError as error:
        faults = error.errors()
        inside = {fault["loc"][0] for fault in faults if len(fault["loc"]) > 1}
        for fault in faults:
            if fault["type"] == "too_short" and fault["loc"][0] in inside:
                continue  # short only because the entries in it were refused
            loc = tuple(part for part in fault["loc"] if isinstance(part, int | str))
            problems.append(f"{lines.at(loc)}: {_say(fault, loc, plain)}")
    if problems or suite is None:
        raise UsageError("\n".join(dict.fromkeys(problems)))
    return Resolved(
        suite,
        tuple(dict.fromkeys(use for entry in suite.methods for use in entry.uses)),
        tuple(dict.fromkeys(use for entry in suite.tasks for use in entry.uses)),
        tuple(entry.use for entry in suite.engines) if isinstance(suite, EngineSuite) else (),
    )


def _say(fault: Any, loc: Loc, plain: Mapping[str, Any]) -> str:
    message, where = str(fault["msg"]).removeprefix("Value error, "), ".".join(map(str, loc))
    if fault["type"] == "entry":
        return message
    if fault["type"] == "model_type":
        return f"{where}: an entry is a name, or a mapping with `name` and parameters; found {fault['input']!r:.80}"
    if fault["type"] == "missing":
        return f"{where}: {message}"
    if fault["type"] == "extra_forbidden":
        inner = {
            "name",
            "dtype",
            "resources",
            "sampling",
            *Resources.model_fields,
            "limit",
            "prompts",
            "tokens",
            "roles",
        }
        key, nearest = str(loc[-1]), did_you_mean(str(loc[-1]), EngineSuite.model_fields if len(loc) == 1 else inner)
        place = place_of(key, plain if len(loc) == 1 else None)
        if loc[0] == "backbones" and "a backbone's entry" in place:
            place = parameters_of_backbone(plain["backbones"][loc[1]])
        return f"{where}: unknown key{place or nearest}"
    return f"{where}: {message}; found {fault['input']!r:.80}"
