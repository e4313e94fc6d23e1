"""Copies of a decode's state, and keys by which equal states merge."""

from __future__ import annotations

import copy
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from stridebench.harness.core.canvas import Canvas
from stridebench.harness.core.session import Session
from stridebench.harness.errors import ContractError


def fork(thing: Any, memo: dict[int, Any]) -> Any:
    """A deep copy, some thirty times faster than `copy` for what a state usually holds."""
    if thing is None or isinstance(thing, int | float | str):
        return thing
    if id(thing) in memo:
        return memo[id(thing)]
    if isinstance(thing, Tensor):
        twin: Any = thing.clone()
    elif type(thing) in (list, tuple):
        twin = type(thing)(fork(item, memo) for item in thing)
    elif type(thing) is dict:
        twin = {fork(key, memo): fork(value, memo) for key, value in thing.items()}
    elif _plain_data(thing):
        twin = object.__new__(type(thing))
        memo[id(thing)] = twin
        vars(twin).update({name: fork(value, memo) for name, value in vars(thing).items()})
    else:
        twin = copy.deepcopy(thing, memo)
    memo[id(thing)] = twin
    return twin


def _plain_data(thing: Any) -> bool:
    """A dataclass whose state is in its attributes, without a ``__deepcopy__`` of its own."""
    return is_dataclass(thing) and hasattr(thing, "__dict__") and not hasattr(thing, "__deepcopy__")


def _values(thing: Any) -> list[Any]:
    """All that a dataclass holds: its fields, or all attributes by name where they are more than the fields."""
    names = [f.name for f in fields(thing)]
    attributes = getattr(thing, "__dict__", {})
    if len(attributes) > len(names):
        return sorted(attributes.items())
    return [getattr(thing, name) for name in names]


def freeze(thing: Any) -> Any:
    """A hashable key; floats are rounded so that equal distributions merge."""
    if isinstance(thing, Tensor):
        values = thing.double().mul(1e12).round() if thing.is_floating_point() else thing
        return (tuple(thing.shape), tuple(values.reshape(-1).tolist()))
    if isinstance(thing, Session):
        return (tuple(thing.tokens), thing.cached, freeze(thing.cache_state))
    if isinstance(thing, Canvas):
        return (tuple(sorted(thing.tokens.items())), freeze(thing.cache_state))
    if is_dataclass(thing) and not isinstance(thing, type):
        return (type(thing), *(freeze(value) for value in _values(thing)))
    if isinstance(thing, dict):
        return tuple((freeze(key), freeze(value)) for key, value in sorted(thing.items(), key=repr))
    if isinstance(thing, list | tuple):
        return tuple(freeze(item) for item in thing)
    if isinstance(thing, float):
        return round(thing, 12)
    if thing is None or isinstance(thing, int | str | bool | frozenset):
        return thing
    plain = getattr(type(thing), "__reduce__", None) == getattr(object, "__reduce__", None)
    if hasattr(thing, "__dict__") and not callable(thing) and plain:
        return (type(thing).__name__, freeze(vars(thing)))  # all of its state is in its attributes
    raise ContractError(f"a state holds a {type(thing).__name__}, which cannot be compared; use plain data")
