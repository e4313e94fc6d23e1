"""The command `stride`: a verb is imported when it is used; an error becomes one message and an exit code."""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, TextIO

import click

from stridebench.harness import __version__
from stridebench.harness.errors import (
    GraphWarning,
    PluginWarning,
    StrideError,
    UsageError,
    WeightsWarning,
    did_you_mean,
    printable,
)
from stridebench.harness.machine.exits import exits_are_told
from stridebench.harness.machine.quiet import open_closed_streams
from stridebench.harness.record.entries import json_values

VERBS = {
    "list": "methods, tasks, backbones, suites, engines, or the matrix of methods and backbones",
    "fetch": "download and convert a backbone's weights, once",
    "run": "decode a suite's prompts with its methods, and store every step",
    "serve": "start an engine's server, wait until it answers, and stop it with its children",
    "watch": "acceptance and latency of a running server over hours, and when they moved",
    "import": "acceptance out of other tools' results, and their known flaws",
    "train": "train weights from a recipe: resumable, seeded, with its CPU hours",
    "report": "tables and a Pareto plot of a run",
    "new": "a package for a method of your own, whose tests pass",
    "verify": "exact output distributions by enumeration, and the injected bugs they catch",
    "audit": "bets against a sampler: were these tokens drawn from the model's distribution",
    "compare": "paired differences between runs, the strongest evidence first",
    "query": "SQL over the cells, samples and steps of any number of runs",
    "show": "one cell of a run, or one of its outputs",
    "view": "the pages of all runs of a folder, in a browser",
    "export": "a cell's outputs, or engines' acceptance, in the layout of another tool",
    "attach": "results of an official evaluation as scores of a cell",
    "study": "a questionnaire about the meshes of a run, and the count of its votes",
    "baseline": "store a run's counts, which a gate compares with",
    "gate": "pass, fail or inconclusive against a baseline, on counts",
    "ab": "two versions of the code run a suite in turns: what differs, which is faster",
    "nightly": "run, gate and history of a suite, with one exit code",
    "history": "figures night by night, and the commits where they changed",
    "layers": "what an adapter changes in a model's hidden rows, layer by layer",
    "papers": "each table and figure of the papers: whether this machine can make it, and if not, why",
    "cost": "operations and GPU hours of training: a paper's table beside ours",
    "predict": "a stored run's speed-ups on another machine, by its counts, its host's time and a profile",
    "doctor": "what this machine has, and what is missing",
}


GROUPS = {
    "First run": ("run", "report", "view", "show", "list", "fetch", "doctor"),
    "Results": ("compare", "query", "history", "export", "attach", "study"),
    "Is it the same sampler": ("verify", "audit"),
    "Engines": ("serve", "watch", "import"),
    "Gate": ("baseline", "gate", "nightly"),
    "Your own methods and weights": ("new", "train", "layers"),
    "Papers and costs": ("papers", "cost", "predict"),
}
"""The verbs as `stride --help` shows them; a verb that no group names stands under "More"."""


READING = ("list", "papers", "report", "show", "query", "compare", "cost", "predict", "layers")
"""Verbs that only show: their exit code is no verdict."""

MODULES = {"import": "import_results"}
"""Verbs whose module has another name."""


class Verbs(click.Group):
    """Each verb is `command` of stridebench.harness.cli.VERB."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"stridebench.harness.cli.{MODULES.get(cmd_name, cmd_name)}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            ctx.fail(f"there is no verb {args[0]!r}{did_you_mean(args[0], VERBS) or '.'} Verbs: {', '.join(VERBS)}.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        named = [verb for verbs in GROUPS.values() for verb in verbs]
        groups = {**GROUPS, "More": tuple(verb for verb in VERBS if verb not in named)}
        width = max(map(len, VERBS))
        for title, verbs in groups.items():
            if verbs:
                with formatter.section(title):
                    formatter.write_dl([(verb.ljust(width), VERBS[verb]) for verb in verbs])


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="stride")
def stride() -> None:
    """Benchmark parallel decoding: how fast, how good, and is it still the same sampler.

    \b
    stride run quick                        a real model: a verdict a method, a table, a plot
    stride verify                           exact output distributions of every method
    stride run --method sjd --backbone tabular --task tabular
    stride VERB --help                      examples for each verb

    Exit codes: 0 done or pass, 1 fail, 2 usage or error, 3 run incomplete, 4 inconclusive.
    """


def say(text: str, err: bool = False) -> None:
    """Print a text with control characters as escapes: the name of a file, of a cell or of a plugin may hold any."""
    click.echo(printable(text), err=err)


def emit(document: Any) -> None:
    """One strict JSON document on standard output."""
    click.echo(json.dumps(json_values(document), indent=1, allow_nan=False))


def only_lists(arguments: Sequence[str]) -> bool:
    """Whether a command line prints texts alone: a list, the cells of a run, or help."""
    verb, options = arguments[:1], set(arguments[1:])
    return (
        verb in (["list"], ["papers"])
        or (verb == ["run"] and "--dry-run" in options)
        or bool(options & {"--help", "-h"})
    )


def _show_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """As Python shows an error that nothing caught, with control characters as escapes."""
    say("".join(traceback.format_exception(kind, error, trace)).rstrip(), err=True)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Warnings of ours (a plugin that is left out, ...) in one line; others as Python shows them."""
    own = issubclass(category, PluginWarning | WeightsWarning | GraphWarning)
    text = f"stride: warning: {printable(str(message))}" if own else None
    click.echo(text or printable(warnings.formatwarning(message, category, filename, lineno).rstrip()), err=True)


def _check_current_folder() -> None:
    """Refuse a current folder that was removed: libraries cannot be loaded there, and no relative path has a place.

    Raises:
        UsageError: the current folder is gone.
    """
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UsageError("the current folder is no longer there; change to another and run again") from error


def _out_of_memory(error: Exception) -> bool:
    """Whether memory is used up: Python's, a device's, or that for the pages of a library under `ulimit -v`."""
    unmapped = isinstance(error, ImportError) and "failed to map segment" in str(error)
    return unmapped or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def without_reader(arguments: Sequence[str]) -> int:
    """End quietly where nobody reads the output; return the exit code, which is no success unless the verb only reads.

    Otherwise `stride gate | head -1` would pass with its verdict unsaid.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError):
        os.dup2(null, 1)  # what is left to print is thrown away
    if only_lists(arguments) or arguments[:1] in [[verb] for verb in READING]:
        return 0
    with suppress(OSError):
        click.echo("stride: nobody reads the output any more; what a run has finished is kept", err=True)
    with suppress(OSError):
        sys.stderr.flush()
    return 3


def main() -> None:
    """Entry point."""
    open_closed_streams()
    for noisy in ("TRANSFORMERS_VERBOSITY", "HF_HUB_VERBOSITY"):
        os.environ.setdefault(noisy, "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore", module=r"(transformers|torch|gguf)\b.*")
    warnings.showwarning = _show_warning
    sys.excepthook = _show_error
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the name of a file may hold any byte
    try:
        _check_current_folder()
        with exits_are_told():
            sys.exit(stride.main(standalone_mode=False) or 0)
    except StrideError as error:
        say(f"stride: {error}", err=True)
        sys.exit(error.exit_code)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.exceptions.Abort):
        click.echo("stride: interrupted; what was finished is kept", err=True)
        sys.exit(3)
    except BrokenPipeError:
        sys.exit(without_reader(sys.argv[1:]))
    except OSError as error:
        say(f"stride: {error}. Check the path, its permissions and the room on the disk.", err=True)
        sys.exit(2)
    except Exception as error:
        if not _out_of_memory(error):
            raise
        click.echo("stride: out of memory; take a smaller backbone, fewer tokens, or bf16", err=True)
        sys.exit(3)


if __name__ == "__main__":
    main()
