"""The recipes of clusters under examples/: their files parse, and the commands in them are ones that stride has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from stridebench.harness.cli.run import command, executor_values
from stridebench.harness.plan.expand import expand
from stridebench.harness.plan.resolve import load
from stridebench.harness.run.workers.pool import check

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
JOB = yaml.safe_load((EXAMPLES / "kuberay" / "rayjob.yaml").read_text())
SBATCH = (EXAMPLES / "slurm" / "run.sbatch").read_text().replace("\\\n", " ")
COMMANDS = [JOB["spec"]["entrypoint"], *re.findall(r"^stride run .*$", SBATCH, re.MULTILINE)]


@pytest.mark.parametrize("text", COMMANDS)
def test_the_commands_of_the_recipes_are_ones_that_stride_has(text: str) -> None:
    words = shlex.split(text)
    assert words[:2] == ["stride", "run"]
    options = command.make_context("run", words[2:]).params
    check(options["executor"], executor_values(options["executor_options"]))
    assert Path(options["name"]).name == "suite.yaml"


def test_the_suite_of_the_recipes_has_cells_that_run() -> None:
    plan = expand(load(str(EXAMPLES / "suite.yaml")))
    assert len(plan.runnable) == len(plan.cells) > 10 and not plan.suite.suite.timing


def test_the_job_of_kuberay_names_one_image_and_the_secret_of_its_readme() -> None:
    text, readme = ((EXAMPLES / "kuberay" / name).read_text() for name in ("rayjob.yaml", "README.md"))
    assert JOB["kind"] == "RayJob" and set(re.findall(r"image: (\S+)", text)) == {"stridebench:latest"}
    assert set(re.findall(r"secretRef: \{name: ([\w-]+)", text)) == set(re.findall(r"secret generic ([\w-]+)", readme))


def test_an_unknown_option_of_a_recipe_would_be_seen() -> None:
    with pytest.raises(click.UsageError):
        command.make_context("run", ["suite.yaml", "--no-such-option"])
