"""Suites of any form are planned, or refused with what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import strategies as st

from stridebench.harness.errors import StrideError, UsageError
from stridebench.harness.plan import resolve, suite
from stridebench.harness.plan.expand import expand
from tests.support.cli import stride
from tests.support.fuzz import SHORT_OR_LONG, assert_one_message, fuzz, plain, words

BASE: dict[str, Any] = {"methods": ["sjd"], "backbones": ["tabular"], "tasks": [{"name": "tabular", "limit": 1}]}
KEYS = [*suite.Suite.model_fields, "beside"]
NAMED = ("at", "backbones", "limit", "dtype", "sampling", "max_new_tokens", "drafter", "window", "file")
entries = st.builds(
    lambda name, more: {"name": name, **more},
    st.sampled_from(["sjd", "tabular", "speculative"]) | words,
    st.dictionaries(st.sampled_from(NAMED) | words, plain, max_size=2),
)
values = plain | entries | st.lists(entries | plain, max_size=3)
suites = st.dictionaries(st.sampled_from(KEYS) | words, values, max_size=3).map(lambda changes: BASE | changes)


def plan(data: dict[str, Any]) -> None:
    try:
        expand(resolve.resolve(data, resolve.Lines("test", None))).manifest()
    except StrideError as error:
        assert str(error)


@pytest.mark.parametrize(
    "change",
    [
        {"backbones": [{"name": ["sjd"]}]},
        {"backbones": [{"name": {"name": "tabular"}}]},
        {"backbones": ""},
        {"backbones": 3},
        {"methods": {"name": "sjd", "at": [{}]}},
        {"methods": {"name": "sjd", "at": "hot"}},
        {"methods": {"name": "sjd", "backbones": [[]]}},
        {"methods": {"name": "sjd", "backbones": {"name": None}}},
        {"methods": {"name": "sjd", 3: 3}},
        {"methods": {"name": ["sjd"]}},
        {"tasks": {"name": "tabular", None: 3}},
        {"beside": {"tabular": [[3]]}},
        {"beside": {"tabular": {"name": 3}}},
    ],
    ids=str,
)
def test_entries_of_another_type_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="test"):
        resolve.resolve(BASE | change, resolve.Lines("test", None))


@SHORT_OR_LONG
def test_a_suite_of_any_values_is_planned_or_refused(long: bool) -> None:
    fuzz(suites, plan, 150, long)


@SHORT_OR_LONG
def test_a_suite_of_any_text_is_planned_or_refused(tmp_path: Path, long: bool) -> None:
    """Texts are those of suites with a piece replaced, or of any characters."""
    path = tmp_path / "suite.yaml"

    def load(text: str) -> None:
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        assert_one_message(stride("run", path, "--dry-run"))

    written = suites.map(lambda data: yaml.safe_dump(data, allow_unicode=True))
    pieces = st.sampled_from(
        ["{", "[", "&a ", "*a", "!!python/object:os.system ", "\t", ": ", "- ", "\0", "---\n", "%"]
    )
    cut = st.builds(
        lambda text, at, piece: text[: at % len(text)] + piece + text[at % len(text) :],
        written,
        st.integers(0, 400),
        pieces,
    )
    fuzz(cut | st.text(), load, 40, long)
