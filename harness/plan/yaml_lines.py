"""YAML within limits, with the line of each value, so that errors can name it. All YAML is read here."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from stridebench.harness.errors import UsageError

Loc = tuple[int | str, ...]
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's reader if it is installed, since it is ten times as fast."""
DEPTH, NODES, CHARACTERS = 40, 20_000, 4_000_000
"""Limits of a document, its aliases expanded in the first two. A suite needs far less."""
DIGITS = 400
"""Limit of a whole number; Python refuses to print one of over 4,300 digits."""


@dataclasses.dataclass(frozen=True)
class YamlDocument:
    """A YAML text: its tree of nodes with their lines, its data, and the keys that a mapping holds twice."""

    node: yaml.Node | None
    data: Any
    repeated: tuple[RepeatedKey, ...]


@dataclasses.dataclass(frozen=True)
class RepeatedKey:
    """A key that a mapping holds for the second time; YAML itself would take the last in silence."""

    line: int
    key: str


def parse(text: str) -> YamlDocument:
    """Read a YAML text, or raise YAMLError if it is not YAML, or is nested or expanded beyond the limits."""
    if len(text) > CHARACTERS:
        raise yaml.MarkedYAMLError(problem=f"over {CHARACTERS:,} characters")
    depth = 0
    for event in yaml.parse(text, Loader=LOADER):  # takes no recursion, unlike what reads the tree
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH:
            raise _refused(event, f"nested deeper than {DEPTH} levels")
    loader = LOADER(text)
    try:
        node = loader.get_single_node()
        _refuse_expansion(node)
        repeated = tuple(repeated_keys(node))
        return YamlDocument(node, None if node is None else _data(loader, node), repeated)
    finally:
        loader.dispose()


def load(text: str) -> Any:
    """Return the data of a YAML text.

    Raises:
        YAMLError: as `parse`.
    """
    return parse(text).data


def option_value(option: str, text: str) -> Any:
    """Return the value of an option that is written as YAML, or raise UsageError if it is not valid YAML."""
    try:
        document = parse(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{option} {text!r} is not YAML: {getattr(error, 'problem', error)}") from error
    if document.repeated:
        raise UsageError(f"{option} {text!r} has the key {document.repeated[0].key!r} twice; keep one")
    return document.data


def option_texts(option: str, texts: Sequence[str], example: str) -> dict[str, str]:
    """Return the texts of an option that is written ``KEY=VALUE``, once for each key."""
    values: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"{option} {text}: write KEY=VALUE, as in {option} {example}")
        if key in values:
            raise UsageError(f"{option} gives {key} twice, {values[key]!r} and {value!r}; keep one")
        values[key] = value
    return values


def option_settings(option: str, texts: Sequence[str], example: str) -> dict[str, object]:
    """Return the values of an option that is written ``KEY=VALUE``, once for each key; values are YAML."""
    return {key: option_value(f"{option} {key}", text) for key, text in option_texts(option, texts, example).items()}


def _refuse_expansion(node: yaml.Node | None) -> None:
    """Refuse a tree whose aliases form a circle or expand to too many nodes."""
    count, stack = 0, [] if node is None else [(node, 1)]
    while stack:
        count += 1
        current, depth = stack.pop()
        if depth > 2 * DEPTH:
            raise _refused(current, "an alias stands for a list or mapping that holds it")
        if count > NODES:
            raise _refused(current, f"over {NODES:,} values with its aliases expanded")
        if current.tag == "tag:yaml.org,2002:int" and len(current.value) > DIGITS:
            raise _refused(current, f"a number of {len(current.value):,} digits")
        if isinstance(current, yaml.MappingNode):
            for key, _ in current.value:
                if isinstance(key, yaml.CollectionNode):
                    raise _refused(key, "a key that is a list or a mapping")
        children = current.value if isinstance(current, yaml.CollectionNode) else ()
        for child in children:
            stack += [(part, depth + 1) for part in (child if isinstance(child, tuple) else (child,))]


def _data(loader: Any, node: yaml.Node) -> Any:
    """Return the data of a tree, or raise YAMLError if a value has the form of a number or a date, but is not one."""
    try:
        return loader.construct_document(node)
    except ValueError as error:
        for scalar in _scalars(node):
            try:
                LOADER("").construct_document(scalar)
            except ValueError:
                raise _refused(scalar, f"{scalar.value[:40]!r} is not a value: {error}") from error
        raise


def _scalars(node: yaml.Node) -> Iterator[yaml.Node]:
    if not isinstance(node, yaml.CollectionNode):
        yield node
        return
    for child in node.value:
        for part in child if isinstance(child, tuple) else (child,):
            yield from _scalars(part)


def _refused(where: Any, problem: str) -> yaml.YAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=where.start_mark)


@dataclasses.dataclass(frozen=True)
class Lines:
    """The place that a value came from: the line of a YAML file, or an option of the command line.

    Args:
        node: its tree, or None without a file.
        options: the option that gave a key; for a key of every entry of a list, such as ``tasks.limit``, the list's
            key comes first.
    """

    path: str
    node: yaml.Node | None
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def at(self, loc: Loc) -> str:
        """The option that gave ``loc``, or ``file:line`` of the deepest part of it that the file holds."""
        keys = [str(part) for part in loc if isinstance(part, str)]
        for depth in (2, 1):
            option = self.options.get(".".join(keys[:depth]))
            if option is not None:
                return option
        if self.node is None:
            named = ".".join(str(part) for part in loc if part != "")  # "": of the entry as a whole
            return f"{self.path} ({named})"
        node, line = self.node, self.node.start_mark.line
        for part in loc:
            following = _child(node, part)
            if following is None:
                break
            node, line = following, following.start_mark.line
        return f"{self.path}:{line + 1}"


def _child(node: yaml.Node, part: int | str) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == str(part)), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        entry: yaml.Node = node.value[part]
        return entry
    return None


def repeated_keys(node: yaml.Node | None) -> Iterator[RepeatedKey]:
    """Each key that a mapping of the tree holds twice."""
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            if key.value in keys:
                yield RepeatedKey(key.start_mark.line + 1, str(key.value))
            keys.add(key.value)
            yield from repeated_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from repeated_keys(value)
