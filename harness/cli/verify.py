"""`stride verify`: exact output distributions, and the injected bugs that they catch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from stridebench.harness.cli.main import json_option
from stridebench.harness.discover import declare_all
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS

FIXED, RANDOM = ("quick", "fresh", "processes"), ("seed", "budget")
"""Options of the fixed cases, and of random ones."""


@click.command(name="verify")
@click.argument("methods", nargs=-1, metavar="[METHOD | FILE.py[:FUNCTION] | FOLDER/]...")
@click.option("--param", "-p", "params", multiple=True, metavar="KEY=VALUE", help="Verify this setting only.")
@click.option("--quick", is_flag=True, help="Only the smaller models.")
@click.option("--fresh", is_flag=True, help="Enumerate again what earlier commands have enumerated.")
@click.option("--processes", type=click.IntRange(1), metavar="N", help="By default one a processor, 16 at most.")
@click.option(
    "--random", "number", type=click.IntRange(1), metavar="N", help="N random cases instead of the fixed ones."
)
@click.option("--seed", type=click.IntRange(0), help="With --random: which cases. Default: 0.")
@click.option(
    "--budget",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="With --random: no case begins after it. Default: 600.",
)
@json_option("[{method, params, claim, total_variation, ...}, {mutant, method, why, ...}]")
def command(**options: Any) -> None:
    """Enumerate every outcome of a decode on small random models, and print the total variation to the target.

    An exact method must stay below 1e-12. Each injected bug, a one-line change of the real code, must exceed 1e-3.
    Laws are kept in the cache. They are enumerated again when a file that they rest on has changed.
    Random cases vary the prompt, the vocabulary, the length, the sampling and the batch; equal seeds give equal cases.
    The functions of FILE.py that @stridebench.sampler marks, or of all files of a folder, are samplers of other
    projects; each is enumerated over all drafts and draws of a cycle: see `stride new verifier --help`.
    Exit codes: 1 a claim of exactness fails or an injected bug is not caught, 4 a method could not be enumerated.

    \b
    stride verify
    stride verify sjd sjdpp
    stride verify sjdpp -p reuse=paper -p tau=0.25
    stride verify --random 20 --seed 7
    stride verify my_sampler.py
    """
    files = [name for name in options["methods"] if name.endswith(".py") or ".py:" in name or os.sep in name]
    if files:
        _samplers(files, options)
        return
    if options["params"] and not options["methods"]:
        raise UsageError("-p sets a parameter of a method; name the method too")
    if options["number"] and (others := _given(options, FIXED)):
        raise UsageError(f"{others[0]} is for the fixed cases; leave out {others[0]} or --random")
    if not options["number"] and (others := _given(options, RANDOM)):
        raise UsageError(f"{others[0]} is for random cases; add --random N")
    declare_all()
    for name in options["methods"]:
        METHODS.check(name)
    from stridebench.harness.cli.verifying import verify  # imports torch

    verify(**options)


def _samplers(files: list[str], options: dict[str, Any]) -> None:
    """Prove the samplers of files; no other argument goes with them but --json."""
    others = [name for name in options["methods"] if name not in files]
    others += _given(options, (*FIXED, *RANDOM))
    others += ["-p"] * bool(options["params"]) + ["--random"] * bool(options["number"])
    if others:
        raise UsageError(f"{others[0]} does not go with the file {files[0]}; verify files alone, or with --json")
    from stridebench.harness.cli.verifying import verify_samplers

    verify_samplers(files, options["as_json"])


def _given(options: dict[str, Any], names: Sequence[str]) -> list[str]:
    return [f"--{name}" for name in names if options[name] is not None and options[name] is not False]
