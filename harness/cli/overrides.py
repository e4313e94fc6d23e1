"""What `stride run` and `stridebench.run` replace in a suite, and the suite that results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from stridebench.harness.errors import UsageError
from stridebench.harness.machine.folders import cache_folder
from stridebench.harness.plan.suite import Overrides, Resolved, from_options, load, resolve_again
from stridebench.harness.plan.yaml_lines import parse
from stridebench.harness.record.files import fetched

NUMBERS = {"max_new_tokens": "--max-new-tokens", "repetitions": "--repetitions", "seed": "--seed"}
"""Keys of a suite that an option replaces by a number."""
ENTRIES = {"methods": "--method", "backbones": "--backbone", "tasks": "--task"}
"""Keys of a suite that an option replaces entry by entry."""
SWEEPS = {"temperature": "--temperature", "batch": "--batch"}
"""Keys of a suite that an option replaces by one value or several."""


ANY_TEXT = ("prompt_lookup", "lookahead")
"""Methods of prompts without a suite: those that need no drafter and no training."""


def read(arguments: Mapping[str, Any]) -> Overrides:
    """The values of the options; each error names its option.

    Raises:
        UsageError: a --set without a value, a text that is not YAML, or several files of prompts.
    """
    values: dict[str, Any] = {key: arguments[key] for key in NUMBERS if arguments[key] is not None}
    options = {**NUMBERS, **ENTRIES, **SWEEPS}
    for setting in arguments["settings"]:
        key, equals, text = setting.partition("=")
        if not equals:
            raise UsageError(f"--set {setting}: write KEY=VALUE, as in --set top_p=0.9")
        options[key] = f"--set {key}"
        values[key] = yaml_value(options[key], text)
    for key, option in ENTRIES.items():
        if arguments[key]:
            values[key] = [yaml_value(option, text) for text in arguments[key]]
            options[key] = option
    if files := arguments["prompts"]:
        if "tasks" in values:
            raise UsageError(f"--prompts is a task of its own; give it or {options['tasks']}, not both")
        if len(files) > 1:
            raise UsageError(f"--prompts is given {len(files)} times; put the prompts into one file")
        values["tasks"] = task_of(files[0])
        options["tasks"] = "--prompts"
    for key, option in SWEEPS.items():
        if arguments[key]:
            sweep = list(arguments[key])
            values[key] = sweep if key == "temperature" or len(sweep) > 1 else sweep[0]
            options[key] = option
    return Overrides(
        values,
        arguments["limit"],
        arguments["dtypes"],
        {key: options[key] for key in values},
        arguments.get("tiny", False),
        arguments.get("device", "cpu"),
        tuple(arguments.get("urls", ())),
    )


def executor_values(texts: Sequence[str]) -> dict[str, Any]:
    """The values of --executor-option.

    Raises:
        UsageError: one has no value, or a text that is not YAML.
    """
    values = {}
    for setting in texts:
        key, equals, text = setting.partition("=")
        if not equals:
            raise UsageError(f"--executor-option {setting}: write KEY=VALUE, as in --executor-option workers=4")
        values[key] = yaml_value(f"--executor-option {key}", text)
    return values


def task_of(prompts: Path | str) -> list[dict[str, str]]:
    """The entry of a suite that decodes a file of prompts, which may lie at a URL."""
    file = fetched(prompts, cache_folder() / "prompts") if isinstance(prompts, str) else prompts
    return [{"name": "prompts", "file": str(file.absolute())}]


def suite_of(name: str | None, overrides: Overrides, words: Mapping[str, str] = ENTRIES) -> Resolved:
    """The suite of that name, or one of the overrides alone.

    Args:
        words: what the user calls methods, backbones and tasks.

    Raises:
        UsageError: there is no such suite, the overrides are too few, or names or values are wrong.
    """
    if name is not None:
        return load(name, overrides)
    if overrides.options.get("tasks") in ("--prompts", "prompts"):
        overrides = replace(overrides, values={"methods": list(ANY_TEXT), "name": "prompts", **overrides.values})
    if absent := [word for key, word in words.items() if key not in overrides.values]:
        prompts = "prompts" if words["tasks"] == "tasks" else "--prompts FILE"
        instead = f"; beside {words['backbones']}, {prompts} is enough" if "backbones" in overrides.values else ""
        raise UsageError(f"name a suite (see `stride list suites`), or give {', '.join(absent)} too{instead}")
    return from_options(overrides)


def suite_to_run(
    name: str | None, overrides: Overrides, out: Path | str | None, resume: bool, words: Mapping[str, str] = ENTRIES
) -> Resolved:
    """The suite that is named, or that of the run in ``out`` where a resume names nothing else.

    Raises:
        UsageError: as `suite_of`; or the run does not say which suite it ran. StoreError: ``out`` holds no run.
    """
    nothing_named = name is None and not overrides.values and overrides.limit is None and not overrides.dtypes
    if not (resume and nothing_named and out is not None):
        return suite_of(name, overrides, words)
    from stridebench.harness.record.store import Store  # reads tables, which the start of the command line does without

    suite = Store.open(out).manifest.get("suite")
    if not suite:
        raise UsageError(f"{out} does not say which suite it ran; name the suite too")
    return resolve_again(suite)


def yaml_value(option: str, text: str) -> Any:
    """The value of an option that is YAML. UsageError: it is not."""
    try:
        return parse(text).data
    except yaml.YAMLError as error:
        raise UsageError(f"{option} {text!r} is not YAML: {getattr(error, 'problem', error)}") from error
