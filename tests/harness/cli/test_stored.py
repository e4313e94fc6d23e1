"""Runs and weights on this machine: `stride list runs`, `stride list weights`, and their removal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stridebench.harness.backbones.checkpoints import sources
from stridebench.harness.cli.stored import size_words, time_words
from stridebench.harness.errors import StoreError
from stridebench.harness.plan import presets
from stridebench.harness.record.files import encode
from stridebench.harness.record.run_folders import run_folders
from tests.support.cli import refused, stride

SMALL = ("--backbone", "tabular", "--task", "{name: tabular, prompts_count: 2}", "--max-new-tokens", "4", "-t", "1")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stored") / "run"
    assert stride("run", "--method", "prompt_lookup", *SMALL, "--out", path).code == 0
    return path


@pytest.fixture
def runs(run: Path, tmp_path: Path) -> Path:
    """Three runs that began on the first, second and third of a month, and what is none."""
    folder = tmp_path / "runs"
    for day in (1, 2, 3):
        shutil.copytree(run, folder / f"night-{day}")
        manifest = folder / f"night-{day}" / "manifest.json"
        body = json.loads(manifest.read_text())
        body |= {"created": f"2026-01-0{day}T02:00:00+00:00"}
        manifest.write_bytes(encode({key: value for key, value in body.items() if key != "sha256"}, indent=1))
    (folder / "notes").mkdir()
    (folder / "notes" / "text").write_text("mine")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_runs_are_listed_with_size_duration_cells_and_verdicts(runs: Path, run: Path) -> None:
    done = stride("list", "runs", runs)
    assert done.code == 0 and done.out.startswith(f"3 runs in {runs}, ")
    lines = [line for line in done.out.splitlines() if "night-" in line]
    assert [line.split()[0] for line in lines] == ["night-3", "night-2", "night-1"]
    assert "3 of 3" in lines[0] and "1 exact" in lines[0] and "2026-01-03 02:00" in lines[0] and "kB" in lines[0]
    (one,) = stride("list", "runs", run, "--json").document
    assert one["path"] == str(run) and one["verdicts"] == {"exact": 1} and one["problem"] == ""
    assert one["bytes"] == sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
    assert 0 <= one["seconds"] < 600 and (one["finished"], one["planned"]) == (3, 3)


def test_pruning_keeps_the_newest_runs_and_what_is_none(runs: Path) -> None:
    freed = sum(run.bytes for run in run_folders(runs)[1:])
    done = stride("list", "runs", runs, "--prune", "--keep", 1, "--yes")
    assert done.code == 0 and names(runs) == ["night-3", "notes"]
    assert done.out == f"deleted 2 runs and kept 1 run; {size_words(freed)} freed\n"
    assert "night-2" in done.err and "night-3" not in done.err
    document = stride("list", "runs", runs, "--prune", "--keep", 5, "--json").document
    assert document == {"deleted": [], "bytes": 0, "kept": 1}


def test_nothing_is_deleted_without_a_confirmation(runs: Path) -> None:
    done = stride("list", "runs", runs, "--prune", "--keep", 0)
    assert done.code == 2 and "add --yes" in done.err and len(names(runs)) == 4


def test_a_run_that_is_written_linked_or_damaged_stays(runs: Path) -> None:
    (runs / "night-2" / "manifest.json").write_text("{")
    shutil.move(runs / "night-1", runs.parent / "elsewhere")
    (runs / "night-1").symlink_to(runs.parent / "elsewhere")
    done = stride("list", "runs", runs, "--prune", "--keep", 1, "--yes")
    assert done.code == 0 and len(names(runs)) == 4 and names(runs.parent / "elsewhere")
    assert "night-1 is a link" in done.err and "night-2: it cannot be read as a run" in done.err
    assert "night-2 cannot be read" in stride("list", "runs", runs).out


def test_a_run_that_another_process_writes_stays(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(path: Path) -> None:
        raise StoreError(f"{path} is being written by another process")

    monkeypatch.setattr("stridebench.harness.record.run_folders.lock", locked)
    done = stride("list", "runs", runs, "--prune", "--keep", 2, "--yes")
    assert "is being written by another process" in done.err and len(names(runs)) == 4
    assert "deleted 0 runs" in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("list", "runs", "none"), "none is not a folder"),
        (("list", "runs", "none", "--prune", "--keep", 1), "none is not a folder"),
        (("list", "runs", ".", "--prune"), "--keep says how many stay"),
        (("list", "runs", ".", "--keep", 3), "give both"),
        (("list", "methods", "--prune", "--keep", 3), "go with `stride list runs`"),
        (("fetch", "smollm2-135m", "--yes"), "--yes goes with --remove"),
    ],
)
def test_options_that_do_not_fit_are_one_message(words: tuple[object, ...], said: str) -> None:
    assert said in refused(*words)


def test_weights_are_listed_and_removed_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    assert stride("list", "weights").out.startswith(f"0 bytes of weights in {tmp_path}")
    source = sources.parse("smollm2-135m", presets.resolve("smollm2-135m").params["source"])
    (home, downloads, gguf) = sources.in_cache(source)
    for folder in (home, tmp_path / "weights" / "old-v1"):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(bytes(3_000_000))
    gguf.write_bytes(bytes(1000))
    rows = stride("list", "weights", "--json").document
    assert {Path(row["folder"]).name: row["bytes"] for row in rows} == {
        home.name: 3_000_000,
        "old-v1": 3_000_000,
        gguf.name: 1000,
    }
    assert [row["names"] for row in rows if row["folder"] == str(home)] == [["smollm2-135m", "smollm2-drafter"]]
    asked = stride("fetch", "--remove", "smollm2-135m").err
    assert "add --yes" in asked and "also of smollm2-drafter" in asked and home.is_dir()
    assert "did you mean 'smollm2-135m'" in refused("fetch", "--remove", "smollm2-136m", "--yes")
    done = stride("fetch", "--remove", "smollm2-135m", "--yes")
    assert done.code == 0 and done.out.startswith("deleted 2 of 3, 3.0 MB freed")
    assert not home.exists() and not gguf.exists() and not downloads.exists()
    document = stride("fetch", "--remove", "old-v1", "--yes", "--json").document
    assert document == {"deleted": [str(tmp_path / "weights" / "old-v1")], "bytes": 3_000_000}


def test_sizes_and_times_have_the_largest_unit_that_they_reach() -> None:
    assert [size_words(count) for count in (999, 1000, 2_500_000, 10**9)] == ["999 bytes", "1.0 kB", "2.5 MB", "1.0 GB"]
    assert [time_words(s) for s in (None, 119.4, 120, 7199, 7200)] == ["-", "119 s", "2 min", "120 min", "2.0 h"]
