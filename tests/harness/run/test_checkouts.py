"""Two versions of the code: revisions in worktrees, folders and environments, each in processes of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stridebench.harness.errors import UsageError
from stridebench.harness.run.checkouts import versions

MAIN = """\
import sys
from stridebench.harness import __version__
if __name__ == "__main__":
    print(__version__, sys.argv[1:])
"""


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", folder, *identity, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def write(folder: Path, version: str) -> Path:
    """The packages of a version, as far as starting one needs them."""
    (folder / "harness" / "cli").mkdir(parents=True, exist_ok=True)
    (folder / "harness" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    (folder / "harness" / "cli" / "__init__.py").touch()
    (folder / "harness" / "cli" / "main.py").write_text(MAIN)
    return folder


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two commits, the first of which is tagged."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    for version in ("one", "two"):
        git(write(folder, version), "add", ".")
        git(folder, "commit", "-q", "-m", version)
        git(folder, "tag", f"v/{version}")
    monkeypatch.chdir(folder)
    return folder


def test_each_revision_starts_its_own_code_and_leaves_no_worktree(repository: Path) -> None:
    with versions(["v/one", "HEAD"]) as sides:
        answers = [side.start(["run", "quick"]).stdout.strip() for side in sides]
        places = [side.checkout for side in sides]
        assert [side.commit for side in sides] == [git(repository, "rev-parse", name) for name in ("v/one", "HEAD")]
    assert answers == ["one ['run', 'quick']", "two ['run', 'quick']"]
    assert not any(place.exists() for place in places) and git(repository, "worktree", "list").count("\n") == 0


def test_a_folder_is_run_as_it_is_with_its_uncommitted_changes(repository: Path) -> None:
    write(repository, "three")
    with versions(["."]) as (side,):
        assert side.start([]).stdout.startswith("three")
        assert side.changes == 1 and side.words.endswith("with uncommitted changes of 1 file")


def test_an_interpreter_runs_what_is_installed_in_it(tmp_path: Path) -> None:
    with versions([sys.executable]) as (side,):
        assert (side.checkout, side.words) == (None, f"{sys.executable}: {sys.executable}")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text("#!/bin/sh\necho no such module >&2; exit 1\n")
    (tmp_path / "bin" / "python").chmod(0o755)
    with pytest.raises(UsageError, match="does not import: no such module"), versions([str(tmp_path)]):
        pass


WRONG = {"no-such-branch": "no revision 'no-such-branch'", "--help": "no revision '--help'", "./docs": "not a version"}


@pytest.mark.parametrize("name", WRONG)
def test_a_name_of_nothing_is_one_message(repository: Path, name: str) -> None:
    (repository / "docs").mkdir()
    with pytest.raises(UsageError, match=WRONG[name]), versions([name]):
        pass


def test_a_version_that_does_not_import_is_one_message_and_its_worktree_goes(repository: Path) -> None:
    (repository / "harness" / "__init__.py").write_text("import no_such_package\n")
    git(repository, "commit", "-qam", "broken")
    with pytest.raises(UsageError, match=r"HEAD does not import: .*no_such_package"), versions(["HEAD"]):
        pass
    assert git(repository, "worktree", "list").count("\n") == 0


def test_another_project_and_no_repository_are_one_message(repository: Path, tmp_path: Path, monkeypatch) -> None:
    git(repository, "rm", "-rq", "harness")
    git(repository, "commit", "-qm", "empty", "--allow-empty")
    with pytest.raises(UsageError, match="holds no harness/"), versions(["HEAD"]):
        pass
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is in no repository"), versions(["HEAD"]):
        pass
