"""The engines of a suite: each entry looked up and checked, every error with its file and line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stridebench.harness.core.engine import Engine
from stridebench.harness.errors import StrideError, did_you_mean
from stridebench.harness.plan import names
from stridebench.harness.plan.yaml_lines import Lines
from stridebench.harness.registry import ENGINES

KEYS = ("name", "label", "plain", "serve", "method", "backbones")
"""Keys of an entry that say how it is used; the others are options of the engine."""


@dataclass(frozen=True)
class EngineUse:
    """An engine and how a suite uses it.

    Args:
        name: its registered name.
        label: its name in tables, unlike every other.
        options: of the engine, by name.
        plain: the label of the entry that decodes without drafts with the same engine and model; "": this one does.
        serve: server to start (`harness.engines.serving.launch`): a name, or the path of a file; "": none is started.
            With a url too: it runs there.
        method: how that server speculates, a name of its file; ``synthetic=LENGTH`` accepts drafts by chance.
        backbones: those that it serves; empty: all of the suite.
    """

    name: str
    label: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    plain: str = ""
    serve: str = ""
    method: str = ""
    backbones: tuple[str, ...] = ()

    @property
    def synthetic(self) -> bool:
        """Whether drafts are accepted by chance: its tokens are not the model's, and its seconds are what counts."""
        return self.method.startswith("synthetic")

    @property
    def starts(self) -> bool:
        """Whether its server is started by the run."""
        return bool(self.serve) and not self.options.get("url")

    @property
    def kind(self) -> type[Engine]:
        """The engine's class."""
        kind: type[Engine] = ENGINES.get(self.name)
        return kind

    def make(self, **options: Any) -> Engine:
        """A new engine with the entry's options, and others in their place.

        Raises:
            ValueError: an option is wrong, which a suite's check would have said.
        """
        made = names.build(self.kind, self.name, {**self.options, **options})
        if isinstance(made, list):
            raise ValueError("; ".join(text for _, text in made))
        engine: Engine = made
        return engine

    @property
    def identity(self) -> dict[str, Any]:
        """What tells its cells from others; an address is not part of it, since a server may be started elsewhere."""
        options = {key: value for key, value in self.options.items() if key not in ("url", "timeout_s", "key_env")}
        return {"engine": self.name, "label": self.label, "options": options, "serve": self.serve, "way": self.method}


def uses(data: Mapping[str, Any], lines: Lines, problems: list[str]) -> tuple[EngineUse, ...]:
    """Return every entry of ``engines``, in order, and append faults to ``problems``."""
    entries = data.get("engines", ())
    if not isinstance(entries, list | tuple):
        return ()  # the schema says so
    out: list[EngineUse] = []
    for index, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            continue  # the schema says so
        where = ("engines", index)
        wrong = [key for key in KEYS if key != "backbones" and not isinstance(entry.get(key, ""), str)]
        problems += [f"{lines.at((*where, key))}: {key} is {entry[key]!r:.80}, not a text" for key in wrong]
        options = {key: value for key, value in entry.items() if key not in KEYS}
        try:
            kind = ENGINES.get(str(entry["name"]))
        except StrideError as error:
            problems.append(f"{lines.at(where)}: {error}")
            continue
        made = names.build(kind, str(entry["name"]), options)
        if isinstance(made, list):
            problems += [f"{lines.at((*where, key) if key else where)}: {text}" for key, text in made]
        if wrong:
            continue
        served = entry.get("backbones") or ()
        texts = {key: entry.get(key, "") for key in KEYS if key not in ("name", "label", "backbones")}
        label = str(entry.get("label") or entry["name"])
        listed = (served,) if isinstance(served, str) else tuple(served)
        out.append(EngineUse(str(entry["name"]), label, options, backbones=listed, **texts))
    _check_labels(out, lines, problems)
    return tuple(out)


def at_urls(data: dict[str, Any], urls: Sequence[str], problems: list[str]) -> None:
    """Set the addresses of running servers in a suite's plain data.

    Args:
        urls: of --url: LABEL=URL, or URL if only one entry is behind an address.
    """
    entries = [entry for entry in data.get("engines") or () if isinstance(entry, dict)]
    labels = {str(entry.get("label") or entry.get("name")): entry for entry in entries if _has_address(entry)}
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


def _has_address(entry: Mapping[str, Any]) -> bool:
    try:
        return bool(entry.get("serve")) or hasattr(ENGINES.get(str(entry.get("name"))), "url")
    except StrideError:
        return False  # an unknown engine, which ``uses`` says


def _check_labels(entries: list[EngineUse], lines: Lines, problems: list[str]) -> None:
    """Check that labels differ, and that ``plain`` names an entry of the same engine without a ``plain``."""
    labels = [use.label for use in entries]
    plain = {use.label: use for use in entries if not use.plain}
    for index, use in enumerate(entries):
        if labels.index(use.label) != index:
            problems.append(f"{lines.at(('engines', index))}: two engines are called {use.label!r}; give each a label")
        if use.plain and (use.plain not in plain or plain[use.plain].name != use.name):
            same = [label for label, entry in plain.items() if entry.name == use.name]
            hint = (
                did_you_mean(use.plain, same) or f"; write one of {', '.join(same) or 'none, there is no such entry'}"
            )
            where = lines.at(("engines", index, "plain"))
            problems.append(f"{where}: {use.plain!r} is not an entry of {use.name} without drafts{hint}")
