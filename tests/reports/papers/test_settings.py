"""The papers' suites have the authors' settings."""

from __future__ import annotations

import pytest

from stridebench.harness.plan import resolve
from tests import paper_settings
from tests.paper_settings import Setting, settings


def test_a_setting_is_the_authors_or_has_a_reason() -> None:
    commands = resolve.commands()
    for one in settings():
        assert one.suite_has, f"{one.name}: {one.suite} has no such setting"
        assert one.agrees or one.reason, f"{one.name}: {one.suite_has}, the authors' {one.authors} ({one.source})"
        assert one.source and one.suite in commands, one.name


def test_the_table_names_every_difference(capsys: pytest.CaptureFixture[str]) -> None:
    paper_settings.main()
    differing = sum(not one.agrees for one in settings())
    assert capsys.readouterr().out.endswith(f"{len(settings())} settings, {differing} differ\n")
    assert not Setting("t", "quick", [1], [2], "s", "").agrees
