"""The command that installs an extra works where the user is."""

from __future__ import annotations

import pytest

from harness.platform import extras


def test_a_checkout_installs_its_own_extra(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.chdir(extras.CHECKOUT)
    assert extras.install_command("ray") == "pip install '.[ray]'"
    monkeypatch.chdir(tmp_path)
    assert extras.install_command("ray") == f"pip install '{extras.CHECKOUT}[ray]'"


def test_a_wheel_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(extras, "CHECKOUT", tmp_path)
    assert extras.install_command("ray") == "pip install 'stridebench[ray]'"
