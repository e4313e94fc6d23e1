"""The wheel, and packages of third parties: built, installed and run as a user would, without a network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from email import message_from_string
from pathlib import Path
from typing import Any

import pytest

import stridebench.harness

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"harness", "methods", "tasks", "reports"}
PLUGINS = ROOT / "tests" / "plugins"
STRIDE = "import sys; from stridebench.harness.cli.main import main; sys.exit(main())"
FACADE = "import stridebench as s; print(s.__version__, s.run.__code__.co_filename)"
OFFLINE = ("--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check", "--quiet")


def call(*command: str | Path, cwd: Path, path: tuple[Path, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run with nothing on PYTHONPATH but ``path``."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path:
        environment["PYTHONPATH"] = os.pathsep.join(map(str, path))
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )


def succeed(*command: str | Path, cwd: Path, path: tuple[Path, ...] = ()) -> str:
    done = call(*command, cwd=cwd, path=path)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_of(method: str) -> tuple[str, ...]:
    """Arguments of the smallest run of a method."""
    where = ("--backbone", "tabular", "--task", "tabular", "--limit", "2", "--max-new-tokens", "4")
    return ("run", "--method", method, *where, "--json")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, source = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("source")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    succeed(sys.executable, "-m", "pip", "wheel", *OFFLINE, "--wheel-dir", folder, source, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def members(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (member,) = [entry for entry in archive.namelist() if entry.endswith(f".dist-info/{name}")]
        return archive.read(member).decode()


def test_wheel_holds_every_file_of_the_packages(wheel):
    """Presets, suites, data and decisions too, so that a file ignored by mistake is noticed."""
    here = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    installed = {f"stridebench/{name}".replace("/harness/api/", "/") for name in here}
    assert {member for member in members(wheel) if ".dist-info/" not in member} == installed


def test_metadata_states_version_python_licence_and_extras(wheel):
    described = message_from_string(metadata(wheel, "METADATA"))
    assert described["Name"] == "stridebench"
    assert described["Version"] == stridebench.harness.__version__
    assert described["Requires-Python"] == ">=3.11"
    assert described["License-Expression"] == "Apache-2.0"
    extras = {"browser", "dev", "docs", "engines", "gpu", "html", "image", "query", "ray", "slurm", "speech", "train"}
    assert set(described.get_all("Provides-Extra", [])) == extras
    assert "stride = stridebench.harness.cli.main:main" in metadata(wheel, "entry_points.txt")
    assert "Apache License" in metadata(wheel, "licenses/LICENSE")


@pytest.mark.release
def test_wheel_runs_in_an_empty_environment_and_another_folder(wheel, tmp_path):
    """A .pth file adds the folders of the dependencies; .pth files in these folders are not followed."""
    home, elsewhere = tmp_path / "venv", tmp_path / "elsewhere"
    elsewhere.mkdir()
    succeed(sys.executable, "-m", "venv", "--without-pip", home, cwd=tmp_path)
    python = home / "bin" / "python"
    succeed(sys.executable, "-m", "pip", "--python", python, "install", *OFFLINE, wheel, cwd=elsewhere)
    site = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(home)}))
    dependencies = {folder for folder in sys.path if Path(folder).name in ("site-packages", "dist-packages")}
    (site / "lent.pth").write_text("\n".join(sorted(dependencies)) + "\n")

    files = "import stridebench.harness as h, stridebench.tasks as t; print(h.__file__, t.__file__)"
    where = succeed(python, "-c", files, cwd=elsewhere)
    assert all(Path(file).is_relative_to(site) for file in where.split())
    shown = succeed(python, "-c", FACADE, cwd=elsewhere).split()
    assert shown == [stridebench.harness.__version__, str(site / "stridebench" / "running.py")]
    listed = json.loads(succeed(home / "bin" / "stride", "list", "--json", cwd=elsewhere))
    kinds = {entry["kind"] for entry in listed}
    assert {"method", "task", "backbone", "suite"} <= kinds
    assert "autoregressive" in {entry["name"] for entry in listed}
    assert list(elsewhere.iterdir()) == []
    ran = json.loads(succeed(home / "bin" / "stride", *run_of("autoregressive"), cwd=elsewhere))
    assert (ran["failed"], ran["skipped"]) == (0, 0)
    assert ran["done"] >= 1


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each plugin, with the plugin installed in it by pip."""
    folders = {}
    for plugin in ("one_by_one", "second_jacobi"):
        folder = folders[plugin] = tmp_path_factory.mktemp(plugin)
        source = shutil.copytree(PLUGINS / plugin, tmp_path_factory.mktemp("source") / plugin)
        succeed(sys.executable, "-m", "pip", "install", *OFFLINE, "--target", folder, source, cwd=folder)
    return folders


def stride(*arguments: str, cwd: Path, plugin: Path) -> subprocess.CompletedProcess[str]:
    options = ("-W", "always::DeprecationWarning")
    return call(sys.executable, *options, "-c", STRIDE, *arguments, cwd=cwd, path=(plugin, ROOT))


def document(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.release
def test_a_method_of_another_package_is_listed_with_its_origin_and_runs_without_a_warning(installed, tmp_path):
    listed = document(stride("list", "methods", "--json", cwd=tmp_path, plugin=installed["one_by_one"]))
    entries = {row["name"]: row for row in listed}
    assert entries["one_by_one"]["kind"] == "method" and "autoregressive" in entries
    assert "stride-one-by-one 1.2.3" in json.dumps(entries["one_by_one"])
    done = stride(*run_of("one_by_one"), cwd=tmp_path, plugin=installed["one_by_one"])
    result = document(done)
    assert result["done"] >= 1
    assert result["failed"] == result["skipped"] == 0
    assert "stride_one_by_one.py" not in done.stderr


@pytest.mark.release
def test_a_plugin_with_a_duplicate_name_is_one_clear_error(installed, tmp_path):
    done = stride("list", "methods", "--json", cwd=tmp_path, plugin=installed["second_jacobi"])
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert "two methods are called 'jacobi'" in done.stderr
    assert "stride-second-jacobi" in done.stderr or "stride_second_jacobi" in done.stderr
    assert "Traceback" not in done.stderr
