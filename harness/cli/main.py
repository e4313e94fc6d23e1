"""The command `stride`: a verb is imported when it is used, and an error becomes one message and an exit code."""

from __future__ import annotations

import importlib
import io
import json
import math
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
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
from stridebench.harness.machine.surroundings import exits_are_told, open_closed_streams
from stridebench.harness.record.outputs import json_values

GROUPS = {
    "Run and look": {
        "run": "decode a suite's prompts with its methods, and store every step",
        "show": "one cell of a run, or one of its outputs",
        "report": "tables, plots and pages of a run, or its differences from another",
        "view": "the pages of all runs of a folder, in a browser",
        "list": "methods, tasks, backbones, suites, engines, or what runs on what",
        "fetch": "download and convert the weights of a backbone, once",
        "doctor": "this machine, its versions, and missing weights and extras",
        "query": "SQL over the cells, samples and steps of any number of runs",
    },
    "Prove": {
        "verify": "exact output distributions by enumeration, and injected bugs",
        "audit": "bets that tokens were not drawn from the model's distribution",
    },
    "Gate": {
        "gate": "a run against a baseline; two versions in turns; nightly runs",
    },
    "Extend": {
        "engine": "run, start and watch the servers of other projects",
        "exchange": "import, export and attach the results of other tools",
        "train": "train weights from a recipe: resumable, seeded, with its CPU hours",
        "new": "a package for your method, with tests that pass",
        "paper": "tables and costs of the papers; speed-ups on other machines",
    },
}
"""The verbs with their summaries, as `stride --help` shows them."""
VERBS = {verb: summary for verbs in GROUPS.values() for verb, summary in verbs.items()}
READING = ("list", "report", "show", "query", "paper")
"""Verbs that only show: their exit code is not a verdict. `paper study` also writes votes into a run."""


class LazyGroup(click.Group):
    """A group whose verbs may lie in modules that are imported when they are used.

    Args:
        modules: for each verb the name of its module in stridebench.harness.cli, which defines ``command``, or a name
            behind a colon.
    """

    def __init__(self, *args: Any, modules: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._modules = dict(modules or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *self._modules]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return super().get_command(ctx, cmd_name)
        module, _, name = self._modules[cmd_name].partition(":")
        command: click.Command = getattr(
            importlib.import_module(f"stridebench.harness.cli.{module}"), name or "command"
        )
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        verbs = self.list_commands(ctx)
        if args and args[0] not in verbs and not args[0].startswith("-"):
            ctx.fail(f"there is no verb {args[0]!r}{did_you_mean(args[0], verbs) or '.'} Verbs: {', '.join(verbs)}.")
        return super().resolve_command(ctx, args)


class Verbs(LazyGroup):
    """The verbs of `stride`, which its help shows in groups."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, VERBS))
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(verb.ljust(width), summary) for verb, summary in verbs.items()])


@click.group(
    cls=Verbs,
    modules={verb: verb for verb in VERBS} | {"fetch": "stored:fetch"},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="stride")
def stride() -> None:
    """Benchmark parallel decoding: how fast, how good, and is it exact.

    \b
    stride run demo       a minute without a download: a verdict a method, a table, a plot
    stride run quick      the same with a real model, in four minutes
    stride verify         exact output distributions of every method
    stride VERB --help    examples for each verb

    Exit codes: 0 pass, 1 fail, 2 error, 3 incomplete, 4 inconclusive.
    """


class LocalPath(click.Path):
    """A path on this machine; a URL is refused, since only runs can lie at one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and "://" in value:
            self.fail(f"{value} is a URL, and only runs can lie at one; name a path on this machine", param, ctx)
        return super().convert(value, param, ctx)


class FiniteRange(click.FloatRange):
    """A range of numbers without nan, which no comparison refuses, and infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


def json_option(form: str) -> Callable[[Any], Any]:
    """Return the option --json of a verb that prints one document of this form."""
    return click.option("--json", "as_json", is_flag=True, help=f"One JSON document: {form}.")


def say(text: str, err: bool = False) -> None:
    """Print a text with control characters as escapes; the name of a file, of a cell or of a plugin may hold any."""
    click.echo(printable(text), err=err)


def add_to_step_summary(text: str) -> None:
    """Append Markdown to the step summary, if this runs in a workflow of GitHub."""
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(text + "\n")


def emit(document: Any) -> None:
    """Print one strict JSON document on standard output."""
    click.echo(json.dumps(json_values(document), indent=1, allow_nan=False))


def only_lists(arguments: Sequence[str]) -> bool:
    """Return whether a command line only lists: what there is, the cells of a run, or help."""
    verb, options = list(arguments[:2]), set(arguments[1:])
    return (
        verb[:1] == ["list"]
        or verb == ["paper", "list"]
        or (verb[:1] == ["run"] and "--dry-run" in options)
        or bool(options & {"--help", "-h"})
    )


def _show_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught exception as Python does, but escape control characters."""
    say("".join(traceback.format_exception(kind, error, trace)).rstrip(), err=True)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print warnings of this package (a plugin that is left out, ...) in one line, and others as Python does."""
    stride_warning = issubclass(category, PluginWarning | WeightsWarning | GraphWarning)
    text = f"stride: warning: {printable(str(message))}" if stride_warning else None
    click.echo(text or printable(warnings.formatwarning(message, category, filename, lineno).rstrip()), err=True)


def _out_of_memory(error: Exception) -> bool:
    """Return whether memory is used up: Python's, a device's, or that for the pages of a library under `ulimit -v`."""
    unmapped = isinstance(error, ImportError) and "failed to map segment" in str(error)
    return unmapped or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def without_reader(arguments: Sequence[str]) -> int:
    """End quietly after the reader of the output has gone, and return the exit code: 0 if the verb only reads, else 3.

    Otherwise `stride gate check ... | head -1` would pass although its verdict was never printed.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError):
        os.dup2(null, 1)  # the rest of the output is thrown away
    reads = any(arguments[:1] == [verb] for verb in READING) and arguments[:2] != ["paper", "study"]
    if only_lists(arguments) or reads:
        return 0
    with suppress(OSError):
        click.echo("stride: nobody reads the output any more; finished outputs of a run are kept", err=True)
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
        try:
            os.getcwd()
        except FileNotFoundError as error:
            raise UsageError("the current folder was removed; change to another and run again") from error
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
        click.echo("stride: interrupted; finished outputs are kept", err=True)
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
