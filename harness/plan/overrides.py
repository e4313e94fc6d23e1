"""The suite that a run decodes: a named one, one that is given entry by entry, or that of the run which is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from stridebench.harness.errors import UsageError
from stridebench.harness.machine.folders import cache_folder
from stridebench.harness.plan.suite import Overrides, Resolved, from_options, load, resolve_again
from stridebench.harness.plan.yaml_lines import parse
from stridebench.harness.record.files import fetched

ENTRIES = {"methods": "--method", "backbones": "--backbone", "tasks": "--task"}
"""Keys of a suite that an option of the command line replaces entry by entry."""
ANY_TEXT = ("prompt_lookup", "lookahead")
"""Methods that decode prompts if no suite is named: those that need neither a drafter nor training."""


def task_of(prompts: Path | str) -> list[dict[str, str]]:
    """Return the entry of a suite that decodes a file of prompts, which may lie at a URL."""
    file = fetched(prompts, cache_folder() / "prompts") if isinstance(prompts, str) else prompts
    return [{"name": "prompts", "file": str(file.absolute())}]


def suite_of(name: str | None, overrides: Overrides, words: Mapping[str, str] = ENTRIES) -> Resolved:
    """Return the suite of that name, or one that consists of the overrides alone.

    Args:
        words: what the user calls methods, backbones and tasks.

    Raises:
        UsageError: there is no such suite, the overrides are too few, or names or values are wrong.
    """
    if name is not None:
        return load(name, overrides)
    if overrides.only:
        raise UsageError(f"--only {overrides.only} chooses a variant of a suite; name the suite too")
    if overrides.options.get("tasks") in ("--prompts", "prompts"):
        overrides = replace(overrides, values={"methods": list(ANY_TEXT), "name": "prompts", **overrides.values})
    if absent := [word for key, word in words.items() if key not in overrides.values]:
        prompts = "prompts" if words["tasks"] == "tasks" else "--prompts FILE"
        instead = f"; with {words['backbones']}, {prompts} is enough" if "backbones" in overrides.values else ""
        raise UsageError(f"name a suite (see `stride list suites`), or give {', '.join(absent)} too{instead}")
    return from_options(overrides)


def suite_to_run(
    name: str | None, overrides: Overrides, out: Path | str | None, resume: bool, words: Mapping[str, str] = ENTRIES
) -> Resolved:
    """Return the named suite, or that of the run in ``out`` if a resume names nothing else.

    Raises:
        UsageError: as `suite_of`; or the run does not say which suite it ran. StoreError: ``out`` holds no run.
    """
    nothing_named = (
        name is None
        and not overrides.values
        and not overrides.only
        and overrides.limit is None
        and not overrides.dtypes
    )
    if not (resume and nothing_named and out is not None):
        return suite_of(name, overrides, words)
    from stridebench.harness.record.store import Store  # imports pandas, which a list or a dry run does not need

    suite = Store.open(out).manifest.suite
    if not suite.model_fields_set:
        raise UsageError(f"{out} does not say which suite it ran; name the suite too")
    return resolve_again(suite.stored())


def yaml_value(option: str, text: str) -> Any:
    """Return the value of an option that is written as YAML.

    Raises:
        UsageError: it is not valid YAML.
    """
    try:
        return parse(text).data
    except yaml.YAMLError as error:
        raise UsageError(f"{option} {text!r} is not YAML: {getattr(error, 'problem', error)}") from error


def settings(option: str, texts: tuple[str, ...], example: str) -> dict[str, Any]:
    """Return the values of an option that is written ``KEY=VALUE`` and may be repeated; values are YAML.

    Raises:
        UsageError: a text has no value, or one that is not valid YAML.
    """
    values = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"{option} {text}: write KEY=VALUE, as in {option} {example}")
        values[key] = yaml_value(f"{option} {key}", value)
    return values
