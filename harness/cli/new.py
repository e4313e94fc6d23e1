"""`stride new`: a package for a new method, or a file for the proof of a sampler."""

from __future__ import annotations

import keyword
import re
import shlex
from pathlib import Path

import click

from stridebench.harness.cli.main import say
from stridebench.harness.discover import declare_all
from stridebench.harness.errors import UsageError
from stridebench.harness.machine.extras import typed
from stridebench.harness.registry import METHODS

TEMPLATES = Path(__file__).parent / "templates"
FILES = {"pyproject.toml": "pyproject.toml", "method.py": "stride_{name}.py", "test_method.py": "tests/test_{name}.py"}
"""The templates, and the files that are written from them."""


@click.group(name="new")
def command() -> None:
    """Start a package for a new method, or a file that wraps a sampler to be proved.

    \b
    stride new method my_method
    stride new verifier my_sampler
    """


@command.command(name="method")
@click.argument("name")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the package. Default: stride-NAME.")
def method(name: str, out: Path | None) -> None:
    """Write a package with a method called NAME: its entry point, one file, and a test that passes.

    The method guesses that the last token comes again, and is exact. Change `step`; the test says whether the method is
    still exact. docs/method.md lists the classes and functions that a method may use.

    \b
    stride new method my_method
    stride new method my_method --out ~/code/my-method
    """
    declare_all()
    if keyword.iskeyword(name):
        raise UsageError(f"the method name {name!r} is a keyword of Python; take one such as my_method")
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        raise UsageError(f"the method name {name!r} is not lower_snake_case; take one such as my_method")
    if name in METHODS:
        raise UsageError(f"there is a method {name!r} already; take another name")
    folder = Path(f"stride-{name.replace('_', '-')}") if out is None else out
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already and not empty; name another folder with --out")
    for path in write_package(name, folder):
        say(f"wrote {path}")
    place = shlex.quote(str(folder))
    commands = (
        f"{typed('pip')} install -e {place} pytest",
        f"{typed('python')} -m pytest {place}",
        f"{typed('stride')} verify {name}",
        f"{typed('stride')} run --method {name} --backbone embedded-image --task emoji_scenes --limit 6    pictures",
        f"{typed('stride')} run --method {name} --backbone smollm2-135m --task humaneval --limit 6    text",
    )
    say("\n  ".join(("next:", *commands)))


@command.command(name="verifier")
@click.argument("name")
def verifier(name: str) -> None:
    """Write NAME.py, which wraps a function that accepts or resamples drafts; `stride verify NAME.py` proves it.

    It begins as rejection sampling, which is exact. docs/samplers.md shows public samplers written so.

    \b
    stride new verifier my_sampler
    """
    path = Path(f"{name}.py")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"{path} is not a file that Python can import; take a name such as my_sampler")
    if path.exists():
        raise UsageError(f"{path} is there already; take another name, or edit it")
    path.write_text(
        (TEMPLATES / "verifier.py.txt").read_text(encoding="utf-8").replace("@NAME@", name), encoding="utf-8"
    )
    say(f"wrote {path}\nnext:\n  {typed('stride')} verify {path}")


def write_package(name: str, folder: Path) -> list[Path]:
    """Write the package of a method into a folder, and return the files."""
    words = {"NAME": name, "DASHED": name.replace("_", "-"), "CLASS": _class_name(name)}
    paths = []
    for template, target in FILES.items():
        text = (TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
        for word, value in words.items():
            text = text.replace(f"@{word}@", value)
        path = folder / target.format(name=name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def _class_name(name: str) -> str:
    """Return the method's name in CamelCase, followed by Method if the template already uses that name."""
    camel = "".join(map(str.capitalize, name.split("_")))
    template = (TEMPLATES / "method.py.txt").read_text(encoding="utf-8")
    return f"{camel}Method" if re.search(rf"\b{camel}\b", template) else camel
