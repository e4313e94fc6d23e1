"""Two versions of this package to compare: git revisions, checkouts, or environments in which one is installed.

A revision is checked out into a temporary worktree, which is removed at the end. Each version runs in processes of its
own, so that neither imports a file of the other.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from stridebench.harness.errors import UsageError

PROBE = "import os, stridebench.harness as h, stridebench.harness.cli.main; print(os.path.realpath(h.__file__))"
"""A program that prints the place a version was imported from."""


@dataclass(frozen=True)
class Version:
    """A version of this package that can be started.

    Args:
        checkout: the folder that its packages are imported from, or None if they are installed.
        commit: of the checkout, or None if it is not one of git.
    """

    name: str
    python: Path
    checkout: Path | None = None
    commit: str | None = None
    changes: int = 0

    @property
    def words(self) -> str:
        """Describe it in one line."""
        commit = f"commit {self.commit[:12]}" if self.commit else str(self.checkout or self.python)
        files = "1 file" if self.changes == 1 else f"{self.changes} files"
        return f"{self.name}: {commit}" + (f" with uncommitted changes of {files}" if self.changes else "")

    def start(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run `stride` of this version with these words, and wait; both streams are kept as text."""
        return self._python("-m", "stridebench.harness.cli.main", *words)

    def check(self) -> None:
        """Check that the packages import, and from the right folder."""
        done = self._python("-c", PROBE)
        if done.returncode:
            raise UsageError(
                f"{self.name} does not import: {last_line(done.stderr)}. Mend it, or name another version."
            )
        file = Path(done.stdout.splitlines()[0]).resolve()
        if self.checkout is not None and not file.is_relative_to(self.checkout.resolve()):
            raise UsageError(f"{self.name} imports {file} instead of the packages of {self.checkout}")

    def _python(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = dict(os.environ)
        given = environment.pop("PYTHONPATH", "").split(os.pathsep)
        command = [str(self.python), "-P", *words]  # -P: the working folder is not imported from
        with tempfile.TemporaryDirectory(prefix="stride-ab-") as folder:
            if self.checkout is not None:
                link_packages(self.checkout, Path(folder))
                environment["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, given)])
            return subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment)


def link_packages(checkout: Path, folder: Path) -> None:
    """Link the packages of a checkout below ``folder`` under the names that an installation gives them."""
    package = folder / "stridebench"
    (package / "harness").mkdir(parents=True)
    for path in (checkout / "harness").glob("*"):
        if path.name != "api":  # it is the package itself
            (package / "harness" / path.name).symlink_to(path.resolve())
    for path in (*(checkout / "harness" / "api").glob("*"), *map(checkout.joinpath, ("methods", "tasks", "reports"))):
        if path.exists():
            (package / path.name).symlink_to(path.resolve())


@contextmanager
def versions(names: Sequence[str]) -> Iterator[list[Version]]:
    """The versions of these names, each of which imports.

    A name with a slash, or one that begins with a dot, is a path: a checkout, an environment (with bin/python) or an
    interpreter. Any other is a revision of the repository that the working folder belongs to.
    """
    with ExitStack() as stack:
        opened = [_at(name) if is_path(name) else stack.enter_context(_revision(name)) for name in names]
        for version in opened:
            version.check()
        yield opened


def is_path(name: str) -> bool:
    """Whether a name is that of a path; the others are revisions, such as a branch with a slash."""
    return name.startswith(".") or (os.sep in name and Path(name).exists())


def changed_files(folder: Path) -> int:
    """Return how many tracked files of a work tree differ from its commit; 0 if it is not one of git."""
    return len((_git(folder, "status", "--porcelain", "--untracked-files=no") or "").splitlines())


def last_line(text: str) -> str:
    """The last line that says something, without the command's name."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("stride: ") if lines else "it printed nothing"


def _at(name: str) -> Version:
    """Return the version at a path, or raise UsageError if there is none."""
    path = Path(name).absolute()
    if (path / "harness" / "__init__.py").is_file():
        commit = _git(path, "rev-parse", "HEAD") if (path / ".git").exists() else None
        return Version(name, Path(sys.executable), path, commit, changed_files(path) if commit else 0)
    for python in (path, path / "bin" / "python"):
        if python.is_file() and os.access(python, os.X_OK):
            return Version(name, python)
    raise UsageError(
        f"{name} is not a version to run: neither a checkout (a folder with harness/), nor an environment with "
        f"bin/python, nor an interpreter"
    )


@contextmanager
def _revision(name: str) -> Iterator[Version]:
    """A revision in a worktree that lasts as long as the context."""
    here = Path.cwd()
    root = _git(here, "rev-parse", "--show-toplevel")
    if root is None:
        raise UsageError(f"{name!r} would be a git revision, and {here} is in no repository; name folders instead")
    commit = _git(here, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if not commit:
        raise UsageError(f"{root} has no revision {name!r}; `git log` lists commits, and a path holds a slash")
    with tempfile.TemporaryDirectory(prefix="stride-ab-") as folder:
        place = Path(folder) / "checkout"
        done = _run_git(here, "-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", str(place), commit)
        try:
            if done.returncode:
                raise UsageError(f"git cannot check out {name}: {last_line(done.stderr)}")
            if not (place / "harness" / "__init__.py").is_file():
                raise UsageError(f"{name} of {root} holds no harness/; run this in a checkout of stridebench")
            yield Version(name, Path(sys.executable), place, commit)
        finally:
            _run_git(here, "worktree", "remove", "--force", str(place))


def _git(folder: Path, *words: str) -> str | None:
    """Return the standard output of git, or None if it fails."""
    done = _run_git(folder, *words)
    return None if done.returncode else done.stdout.strip()


def _run_git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", env=clean)
    except FileNotFoundError:
        return subprocess.CompletedProcess(command, 127, "", "git is not installed")
