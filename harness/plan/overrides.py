"""The command line's part of a suite. It enters here, before anything is checked: `Overrides.patched`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from stridebench.harness.discover import PAIRS, plain
from stridebench.harness.errors import StrideError
from stridebench.harness.plan import contract, presets, tiny_suite
from stridebench.harness.plan.lookup import is_named
from stridebench.harness.plan.yaml_lines import Lines, load
from stridebench.harness.registry import ENGINES

BACKBONE_KEYS = ("name", "dtype", "resources", "max_new_tokens", "sampling")
"""Keys of a backbone's entry that are not parameters of its adapter."""
KINDS = ("methods", "backbones", "tasks")
"""Keys of a suite that hold named entries."""


@dataclass(frozen=True)
class Overrides:
    """Values of a suite that the command line replaces.

    Args:
        values: keys of the suite, replaced. ``KIND.NAME.KEY`` is a key of the entries of that name, such as
            ``tasks.coco.reference``.
        limit: of every task, or None to keep theirs.
        dtypes: of every backbone; empty to keep theirs.
        options: the option that gave each key, for errors.
        tiny: tiny models of random weights stand in for published ones; see `tiny_suite`.
        device: that the suite will run on; it decides what ``dtype: native`` is.
        urls: addresses of running servers: LABEL=URL, or URL if only one engine of the suite has an address.
        only: the variant of the suite that runs; "" for the suite itself.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    dtypes: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
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

    def patched(self, data: Mapping[str, Any], lines: Lines, problems: list[str]) -> dict[str, Any]:
        """Return a suite's plain data in its long form, with everything that the command line changes."""
        in_entries = {key: value for key, value in self.values.items() if key.partition(".")[0] in KINDS and "." in key}
        suite = _long_form({**data, **{key: self.values[key] for key in self.values if key not in in_entries}})
        for key, value in in_entries.items():
            _set_in_named(suite, key, value, self.options.get(key, key), problems)
        suite = _long_form(suite)  # a parameter of a backbone that was set is part of its name
        if "backbones" in self.values:
            suite["backbones"] = _with_settings(suite["backbones"], _long_form(data).get("backbones", ()))
        _add_companions(suite, lines, problems)
        if self.tiny:
            tiny_suite.shrink(suite)
            if "budget" in self.values:
                problems.append("--budget chooses prompts by time, and --tiny has few; leave out one of them")
        if self.limit is not None:
            if self.limit < 1:
                problems.append(f"{lines.at(('tasks', 'limit'))}: limit is {self.limit}; a whole number from 1")
            _set_in_entries(suite, "tasks", limit=max(self.limit, 1))
            if "budget" in self.values:
                problems.append("--limit and --budget both say how many prompts there are; give one of them")
            suite.pop("budget", None)
        if "repetitions" in self.values:
            _set_in_entries(suite, "tasks", repetitions=self.values["repetitions"])
        if self.dtypes:
            _set_in_entries(suite, "backbones", dtype=list(self.dtypes))
        _set_urls(suite, self.urls, problems)
        return suite


def _long_form(data: Mapping[str, Any]) -> dict[str, Any]:
    """Write out short forms: a name becomes a mapping, one entry a list, ``all`` every name that is here."""
    out = dict(data)
    if out.get("methods") in ("all", ["all"]):
        out["methods"] = contract.usable_names()
    if out.get("backbones") in ("all", ["all"]):
        out["backbones"] = [name for name, spec in presets.by_name().items() if spec.ready()]
    for key in (*KINDS, "engines"):
        if key in out:
            entries = out[key] if isinstance(out[key], list | tuple) else [out[key]]
            out[key] = [_named(entry, key) if isinstance(entry, str) else entry for entry in entries]
    if "backbones" in out:
        out["backbones"] = [_named_with_parameters(entry) for entry in out["backbones"]]
    return out


def _named(text: str, kind: str) -> dict[str, Any]:
    """Return the entry of a name, or of a method's label as tables print it: ``sjdpp reuse=M tau=0.25``."""
    name, *settings = re.split(r" +(?=\w+=)", text.strip()) if kind == "methods" else [text]
    pairs = [setting.partition("=") for setting in settings]
    texts = {key: f"[[{value[1:-1]}]]" if value[:1] == "(" else value for key, _, value in pairs}  # one tuple, no sweep
    try:
        return {"name": name, **{key: None if value == "None" else load(value) for key, value in texts.items()}}
    except yaml.YAMLError:
        return {"name": text}


def _named_with_parameters(entry: Any) -> Any:
    """``{name: NAME, weights: int4}`` as ``{name: "NAME:weights=int4"}``; an entry at fault stays as it is."""
    if not is_named(entry) or not (extra := {key: entry[key] for key in entry if key not in BACKBONE_KEYS}):
        return entry
    pairs = ",".join(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in extra.items())
    try:
        known = set(extra) <= set(presets.parameters(presets.resolve(entry["name"])))
    except StrideError:
        return entry
    if (
        not known
        or not PAIRS.fullmatch(pairs)
        or not all(isinstance(value, str | int | float) for value in extra.values())
    ):
        return entry
    joint = "," if plain(entry["name"]) != entry["name"] else ":"
    kept = {key: value for key, value in entry.items() if key in BACKBONE_KEYS}
    return {**kept, "name": f"{entry['name']}{joint}{pairs}"}


def _with_settings(chosen: Sequence[Any], written: Sequence[Any]) -> list[Any]:
    """Give backbones that the command line chose by a bare name the parameters that the suite gives that model.

    ``--backbone NAME`` of a suite with ``{name: NAME, chat: true}`` takes that entry, unless one has NAME alone.
    """
    entries = {entry["name"]: entry for entry in reversed(written) if is_named(entry)}
    bare = {plain(name): entry for name, entry in entries.items() if plain(name) != name}
    return [
        bare.get(entry["name"], entry)
        if is_named(entry) and len(entry) == 1 and entry["name"] not in entries
        else entry
        for entry in chosen
    ]


def _add_companions(suite: dict[str, Any], lines: Lines, problems: list[str]) -> None:
    """Add the backbones that run whenever one of the suite does, as the file says."""
    companions = suite.pop("beside", {})
    if not isinstance(companions, dict) or not all(isinstance(names, list) for names in companions.values()):
        problems.append(
            f"{lines.at(('beside',))}: beside is {companions!r}; "
            f"map a backbone to a list of those that run whenever it does"
        )
        return
    names = [entry["name"] for entry in suite.get("backbones", ()) if is_named(entry)]
    added = dict.fromkeys(str(other) for name in names for other in companions.get(name, ()) if other not in names)
    if added:
        suite["backbones"] = [*suite["backbones"], *({"name": name} for name in added)]


def _set_in_entries(suite: dict[str, Any], kind: str, **change: Any) -> None:
    """Change a key of every entry of a kind."""
    if kind in suite:
        suite[kind] = [{**entry, **change} if isinstance(entry, dict) else entry for entry in suite[kind]]


def _set_in_named(suite: dict[str, Any], path: str, value: Any, option: str, problems: list[str]) -> None:
    """Change a key of every entry of a name; ``path`` is KIND.NAME.KEY, where a name may have points of its own."""
    kind, _, rest = path.partition(".")
    name, _, key = rest.rpartition(".")
    entries = suite.get(kind, [])
    names = dict.fromkeys(str(entry["name"]) for entry in entries if is_named(entry))
    if not key or name not in names:
        problems.append(
            f"{option}: write {kind}.NAME.KEY=VALUE, where NAME is one of the suite's {kind}: {', '.join(names)}"
        )
        return
    suite[kind] = [{**entry, key: value} if is_named(entry) and entry["name"] == name else entry for entry in entries]


def _set_urls(suite: dict[str, Any], urls: Sequence[str], problems: list[str]) -> None:
    """Set the addresses of running servers: LABEL=URL, or URL if only one engine of the suite has an address."""
    labels = {}
    for entry in suite.get("engines") or () if urls else ():
        try:
            if isinstance(entry, dict) and (entry.get("serve") or hasattr(ENGINES.get(str(entry.get("name"))), "url")):
                labels[str(entry.get("label") or entry.get("name"))] = entry
        except StrideError:
            continue  # an unknown engine, which its entry reports
    for text in urls:
        label, equals, url = text.partition("=")
        if not equals or "://" in label:
            label, url = (next(iter(labels)) if len(labels) == 1 else ""), text
        if label not in labels:
            problems.append(
                f"--url {text}: write LABEL=URL, where LABEL is an engine of the suite behind an address: "
                f"{', '.join(labels) or 'it has none'}"
            )
            continue
        labels[label]["url"] = url
