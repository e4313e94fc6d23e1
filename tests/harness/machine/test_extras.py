"""The command that installs an extra works where the user is."""

from __future__ import annotations

import pytest

from stridebench.harness.machine import extras


def test_a_checkout_installs_its_own_extra(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.chdir(extras.CHECKOUT)
    assert extras.install_command("ray") == "pip install '.[ray]'"
    monkeypatch.chdir(tmp_path)
    assert extras.install_command("ray") == f"pip install '{extras.CHECKOUT}[ray]'"


def test_a_wheel_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(extras, "CHECKOUT", tmp_path)
    assert extras.install_command("ray") == "pip install 'stridebench[ray]'"


def test_a_wheel_of_a_checkout_names_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """As `pip install .` leaves it: the index has no such package."""
    source, installed = tmp_path / "a checkout", tmp_path / "site-packages"
    record = installed / "stridebench-0.1.0.dist-info" / "direct_url.json"
    record.parent.mkdir(parents=True)
    record.write_text(f'{{"url": "{source.as_uri()}", "dir_info": {{}}}}')
    monkeypatch.setattr(extras, "CHECKOUT", installed)
    assert extras.install_command("ray") == "pip install 'stridebench[ray]'"  # the checkout is gone
    source.mkdir()
    (source / "pyproject.toml").touch()
    assert extras.install_command("ray") == f"pip install '{source}[ray]'"
    monkeypatch.chdir(source)
    assert extras.install_command("ray") == "pip install '.[ray]'"
