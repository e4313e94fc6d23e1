"""Trainings of several processes: what the launcher tells, and two real processes of torchrun on CPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed, nn

from stridebench.harness.errors import UsageError
from stridebench.harness.train.distributed import Workers

SCRIPT = """
import sys
from pathlib import Path
import torch
from torch import nn
from stridebench.harness.train.loop import train
from stridebench.harness.train.recipe import Recipe

class Line(Recipe):
    '''Weights that follow the mean of what the processes draw.'''
    steps, rate, warmup, decay, fall = 3, 0.1, 1, 0.0, 1.0
    def build(self, requirements):
        (Path(sys.argv[1]) / f"built-{__import__('os').environ['RANK']}").touch()
        torch.manual_seed(int(__import__('os').environ['RANK']))  # the loop makes them equal
        model = nn.Linear(2, 1, bias=False)
        model.unused = nn.Parameter(torch.zeros(2))
        return model
    def loss(self, model, step, random):
        self.drawn = getattr(self, 'drawn', []) + [float(random.random())]
        return (model.weight * self.drawn[-1]).sum()
    def evaluate(self, model):
        return {'weight': float(model.weight.sum()), 'first': self.drawn[0]}

recipe = Line()
out = train('line', recipe, Path(sys.argv[1]) / 'out', {}, seed=3)
import os, json
(Path(sys.argv[1]) / f"rank-{os.environ['RANK']}.json").write_text(json.dumps([out.finished, out.step, recipe.drawn]))
"""


def test_alone_nothing_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(key, raising=False)
    alone = Workers.of_environment()
    assert alone == Workers() and alone.first and alone.device("cuda") == "cuda"
    assert alone.decided(True, "cpu") and alone.in_turn(lambda: 3) == 3
    alone.join("cpu")
    assert not distributed.is_initialized()


def test_each_process_has_its_own_gpu() -> None:
    assert Workers(3, 4, 1).device("cuda") == "cuda:1"
    assert Workers(3, 4, 1).device("cuda:0") == "cuda:0" and Workers(3, 4, 1).device("cpu") == "cpu"


@pytest.mark.parametrize(("rank", "count"), [("one", "2"), ("2", "2"), ("0", "")])
def test_what_a_launcher_cannot_mean_is_one_message(rank: str, count: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", count)
    with pytest.raises(UsageError, match="the launcher set"):
        Workers.of_environment()


def test_gradients_are_averaged_and_absent_ones_are_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process has the same gradients, three times as large."""
    monkeypatch.setattr(distributed, "all_reduce", lambda flat: flat.mul_(4))
    weights = [nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(1), False)]
    weights[0].grad = torch.arange(4.0).view(2, 2)
    Workers(0, 2).average(weights)
    assert weights[0].grad.tolist() == [[0, 2], [4, 6]] and weights[1].grad is not None
    assert not weights[1].grad.any() and weights[2].grad is None


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ACCELERATE = (
    "-c",
    "from stridebench.harness.machine import extras; extras.ensure()\n"
    "from accelerate.commands.accelerate_cli import main; main()",
    *("launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"),
    *("--dynamo_backend", "no"),
)
"""The launcher of several GPUs, on CPUs. torchvision, which it imports, may lack its operators there."""


def launched(tmp_path: Path, *words: str) -> str:
    """What two processes print."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "STRIDE_CACHE": str(tmp_path / "cache")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, *words]
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


@pytest.mark.audit
@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE], ids=["torchrun", "accelerate"])
def test_two_processes_make_one_training(launcher: tuple[str, ...], tmp_path: Path) -> None:
    """Weights start equal, each process draws its own data, and steps follow the mean of both gradients."""
    if launcher is ACCELERATE:
        pytest.importorskip("accelerate")
    script = tmp_path / "line.py"
    script.write_text(SCRIPT)
    launched(tmp_path, *launcher, str(script), str(tmp_path))
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert all(rank[:2] == [True, 3] for rank in ranks) and ranks[0][2] != ranks[1][2]
    card = json.loads((tmp_path / "out/card.json").read_text())
    assert card["steps"] == 3 and (tmp_path / "built-1").exists()
    assert len(dict(card["curve"])) == 3


@pytest.mark.audit
def test_the_command_trains_with_torchrun(tmp_path: Path) -> None:
    """Both processes read one cache; the first one writes the result."""
    data = tmp_path / "prompts.txt"
    data.write_text("".join(f"def f{n}(x):\n" for n in range(9)))
    words = ("train", "medusa", "--backbone", "tiny:llama2-7b", "--data", str(data), "--out", str(tmp_path / "out"))
    settings = ("--set", "steps=2", "--set", "data.new=12", "--set", "heads=1", "--dtype", "fp32", "--json")
    printed = launched(tmp_path, *TORCHRUN, "-m", "stridebench.harness.cli.main", *words, *settings)
    documents = [line for line in printed.splitlines() if line.startswith("{")]
    assert len(documents) <= 1 and (tmp_path / "out/card.json").is_file()
