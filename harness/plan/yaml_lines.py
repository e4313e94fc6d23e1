"""Finding the line of a value in a YAML file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import yaml

Loc = tuple[int | str, ...]


@dataclasses.dataclass(frozen=True)
class Lines:
    """Finds the line of a value in a YAML file."""

    path: str
    node: yaml.Node | None
    overridden: frozenset[str] = frozenset()

    def at(self, loc: Loc) -> str:
        """``file:line`` of the deepest part of ``loc`` that the file holds."""
        if self.node is None or (loc and loc[0] in self.overridden):
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
        found: yaml.Node = node.value[part]
        return found
    return None


def repeated_keys(node: yaml.Node | None) -> Iterator[tuple[int, str]]:
    """(line, key) of each key that a mapping holds twice; YAML itself would take the last in silence."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                yield key.start_mark.line + 1, str(key.value)
            seen.add(key.value)
            yield from repeated_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from repeated_keys(value)
