"""The workflow files of examples/ci: valid by the vendored schemas and by actionlint where it is installed, and every
command and option of ours exists.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
import yaml

from stridebench.harness.cli.main import VERBS, stride

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "ci"
GITHUB = ("audit-packages.yml", "github-nightly.yml", "github-pull-request.yml", "github-server.yml")
SCHEMAS = {"vendor.github-workflows": GITHUB, "vendor.gitlab-ci": ("gitlab-ci.yml",)}
FILES = sorted(sum(SCHEMAS.values(), ()))


def check(paths: Sequence[Path], schema: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema]
    transform = ["--data-transform", "gitlab-ci"] if "gitlab" in schema else []
    return subprocess.run([*command, *transform, *map(str, paths)], capture_output=True, text=True)


def commands(path: Path) -> list[list[str]]:
    """Every command line of `stride` in a file, its comments included."""
    lines = re.findall(r"(?:run: |^ +- |#   |: )(stride [a-z].*)$", path.read_text(), flags=re.MULTILINE)
    return [shlex.split(line) for line in lines]


def options_of(command: click.Command | None) -> set[str]:
    assert command is not None
    return {option for parameter in command.params for option in parameter.opts}


def test_each_file_is_checked() -> None:
    assert sorted(path.name for path in FOLDER.glob("*.yml")) == FILES


@pytest.mark.parametrize("schema", SCHEMAS)
def test_workflows_are_valid_by_their_schema_and_wrong_ones_are_noticed(schema: str, tmp_path: Path) -> None:
    paths = [FOLDER / name for name in SCHEMAS[schema]]
    done = check(paths, schema)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = [tmp_path / path.name for path in paths]
    for path, copy in zip(paths, wrong, strict=True):
        copy.write_text(path.read_text().replace("runs-on:", "runs_on:").replace("when: always", "when: 7"))
    done = check(wrong, schema)
    assert done.returncode == 1 and all(path.name in done.stdout for path in wrong), done.stdout


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="no program actionlint on the path")
@pytest.mark.parametrize("name", GITHUB)
def test_actionlint_finds_nothing_in_a_workflow_and_notices_a_wrong_one(name: str, tmp_path: Path) -> None:
    wrong = tmp_path / name
    wrong.write_text((FOLDER / name).read_text().replace("runs-on:", "runs_on:"))
    for path, code in ((FOLDER / name, 0), (wrong, 1)):
        done = subprocess.run(["actionlint", str(path)], capture_output=True, text=True)
        assert done.returncode == code, done.stdout


@pytest.mark.parametrize("name", [name for name in FILES if name != "audit-packages.yml"])
def test_commands_name_verbs_and_options_that_exist(name: str) -> None:
    lines = commands(FOLDER / name)
    assert lines
    for _, verb, *words in lines:
        assert verb in VERBS
        command = stride.get_command(click.Context(stride), verb)
        if isinstance(command, click.Group):
            command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None
        options = options_of(command)
        if command.name == "nightly":  # takes the options of `stride run` too
            options |= options_of(stride.get_command(click.Context(stride), "run"))
        assert {word.split("=")[0] for word in words if word.startswith("--")} <= options


def test_a_night_that_fails_keeps_its_history() -> None:
    """`actions/cache` saves nothing of a job that failed, so the save is a step of its own, after the night."""
    steps = yaml.safe_load((FOLDER / "github-nightly.yml").read_text())["jobs"]["nightly"]["steps"]
    used = [str(step.get("uses", step.get("run", ""))).partition("@")[0] for step in steps]
    save = steps[used.index("actions/cache/save")]
    night = next(place for place, text in enumerate(used) if text.startswith("stride gate nightly"))
    assert used.index("actions/cache/restore") < night < used.index("actions/cache/save")
    assert save["if"] == "${{ !cancelled() }}" and save["with"]["path"] == "nights"


@pytest.mark.parametrize("name", ["github-nightly.yml", "gitlab-ci.yml"])
def test_a_night_draws_random_cases_anew(name: str) -> None:
    (words,) = (words for words in commands(FOLDER / name) if words[1:3] == ["verify", "--random"])
    assert words[words.index("--seed") + 1] == "$(date -u +%Y%m%d)" and "--budget" in words
