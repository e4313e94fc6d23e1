"""One seeded, resumable training loop for every recipe of `RECIPES`.

The data of step k depend on (seed, k) alone, so an interrupted training continues as if it had never stopped.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from stridebench.harness.backbones.checkpoints.files import of_file
from stridebench.harness.errors import UsageError, listed
from stridebench.harness.machine.surroundings import deferred_interrupt
from stridebench.harness.train.distributed import Workers
from stridebench.harness.train.recipe import Recipe

CHECKPOINT = "checkpoint.pt"
SAVE_EVERY_S = 120.0
CURVE_POINTS = 100


@dataclass(frozen=True)
class TrainingProgress:
    """State of a training after a step."""

    step: int
    steps: int
    loss: float
    rate: float
    hours: float


@dataclass(frozen=True)
class Trained:
    """Folder of the result, and whether the training is finished; ``taken`` are the steps of this call."""

    folder: Path
    finished: bool
    step: int
    hours: float
    taken: int = 0


def train(
    name: str,
    recipe: Recipe,
    folder: Path,
    requirements: Mapping[str, Path],
    seed: int = 0,
    minutes: float | None = None,
    watch: Callable[[TrainingProgress], None] = lambda progress: None,
) -> Trained:
    """Train until the steps are done, the recipe's CPU hours are spent, or ``minutes`` have passed; resume if begun.

    Writes ``checkpoint.pt`` every two minutes, after the step of an interrupt, and at the end. After the last step it
    writes weights, configuration and ``card.json`` (figures, loss curve, hours, hashes).

    Args:
        minutes: after which the training stops unfinished, or None for no limit.
    """
    folder.mkdir(parents=True, exist_ok=True)
    workers, device = Workers.of_environment(), str(getattr(recipe, "device", "cpu"))
    workers.join(device)
    try:
        settings = recipe.settings() | {f"part.{key}": _weights_of(place) for key, place in requirements.items()}
        saved = _checkpoint(folder / CHECKPOINT, name, seed, settings)  # before `build` writes passages
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = workers.in_turn(lambda: recipe.build(requirements)).to(device)
        workers.equal(model)
        state = _State(name, recipe, model, seed, workers, settings)
        if saved is not None:
            state.resume(saved)
        before = state.step
        with deferred_interrupt() as interrupted:
            finished = _trained(state, folder, minutes, watch, interrupted)
        workers.in_turn(lambda: None)
    finally:
        workers.leave()
    return Trained(folder, finished, state.step, state.hours, state.step - before)


def _trained(
    state: _State,
    folder: Path,
    minutes: float | None,
    watch: Callable[[TrainingProgress], None],
    interrupted: Callable[[], bool],
) -> bool:
    """Step until the training is finished or its time has passed; whether it is finished."""
    recipe, model, workers = state.recipe, state.model, state.workers
    device = str(getattr(recipe, "device", "cpu"))
    began, saved, busy = time.perf_counter(), time.perf_counter(), time.process_time()
    hours_before = state.hours
    model.train()
    while state.step < recipe.steps:
        loss = _advance(state)
        now = time.perf_counter()
        state.hours = hours_before + (time.process_time() - busy) / 3600
        watch(TrainingProgress(state.step, recipe.steps, loss, state.rate(), state.hours))
        ends = state.hours >= recipe.hours or (minutes is not None and now - began >= 60 * minutes)
        if workers.decided(ends or interrupted(), device):
            break
        if now - saved > SAVE_EVERY_S:
            state.save(folder / CHECKPOINT)
            saved = now
    state.save(folder / CHECKPOINT)
    finished = state.step >= recipe.steps or workers.decided(state.hours >= recipe.hours, device)
    if finished and workers.first:
        _finish(state, folder)
    return finished


def _advance(state: _State) -> float:
    """One step with denormal numbers flushed to zero: attention weights that underflow would cost half a step."""
    torch.set_flush_denormal(True)
    try:
        return state.advance()
    finally:
        torch.set_flush_denormal(False)


class Checkpoint(TypedDict):
    """A training that goes on, as `torch.save` writes it."""

    name: str
    seed: int
    settings: NotRequired[Mapping[str, Any]]
    step: int
    hours: float
    curve: list[tuple[int, float]]
    smooth: float | None
    model: Mapping[str, Any]
    mean: dict[str, Tensor]
    optimisers: list[dict[str, Any]]


class _State:
    """Model, optimisers, moving average and loss curve of one training."""

    def __init__(
        self,
        name: str,
        recipe: Recipe,
        model: nn.Module,
        seed: int,
        workers: Workers,
        settings: Mapping[str, Any],
    ) -> None:
        self.name, self.recipe, self.model, self.seed, self.workers = name, recipe, model, seed, workers
        self.settings = dict(settings)
        self.optimisers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW([dict(group) for group in recipe.groups(model)], lr=recipe.rate, betas=recipe.betas)
        ]
        if hidden := recipe.hidden(model):
            # It iterates in bf16, whatever the products are: a CPU that emulates bf16 takes ten times as long for it.
            self.optimisers.append(torch.optim.Muon(hidden, lr=recipe.muon, weight_decay=0.0))
        self.step = 0
        self.hours = 0.0
        self.curve: list[tuple[int, float]] = []
        self.smooth: float | None = None
        self.mean = {k: v.detach().clone() for k, v in model.state_dict().items()} if recipe.average else {}

    def rate(self) -> float:
        """Learning rate of the next step."""
        return self.recipe.rate * self._share()

    def _share(self) -> float:
        """The next step's learning rates as a share of the peak rates."""
        recipe = self.recipe
        left = (recipe.steps - self.step) / (recipe.fall * recipe.steps)
        fall = 0.5 - 0.5 * math.cos(math.pi * min(1.0, left))
        return min(1.0, (self.step + 1) / recipe.warmup) * max(0.01, recipe.floor + (1 - recipe.floor) * fall)

    def advance(self) -> float:
        """One optimiser step; returns its loss."""
        own = [self.workers.rank] if self.workers.count > 1 else []
        random = np.random.default_rng([self.seed, self.step, *own])
        share = self._share()
        for optimiser, peak in zip(self.optimisers, (self.recipe.rate, self.recipe.muon), strict=False):
            for group in optimiser.param_groups:
                group["lr"] = peak * share * group.get("scale", 1.0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(random.integers(2**62)))
            loss = self.recipe.loss(self.model, self.step, random)
            self.model.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]  # torch annotates it in part
        self.workers.average(self.model.parameters())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        for optimiser in self.optimisers:
            optimiser.step()
        self.step += 1
        value = float(loss.detach())
        self._record(value)
        return value

    def _record(self, loss: float) -> None:
        """Add a loss to the curve, and the weights to their moving average."""
        self.smooth = loss if self.smooth is None else 0.95 * self.smooth + 0.05 * loss
        if self.step % max(1, self.recipe.steps // CURVE_POINTS) == 0:
            self.curve.append((self.step, round(self.smooth, 5)))
        if self.mean:
            decay = min(self.recipe.average, self.step / (self.step + 9))
            for key, tensor in self.model.state_dict().items():
                if tensor.is_floating_point():
                    self.mean[key].lerp_(tensor, 1 - decay)
                else:
                    self.mean[key].copy_(tensor)

    def save(self, path: Path) -> None:
        """Replace the checkpoint; an interrupt leaves the old one whole. Of several processes the first one writes."""
        if not self.workers.first:
            return
        body = Checkpoint(
            name=self.name,
            seed=self.seed,
            settings=self.settings,
            step=self.step,
            hours=self.hours,
            curve=self.curve,
            smooth=self.smooth,
            model=self.model.state_dict(),
            mean=self.mean,
            optimisers=[optimiser.state_dict() for optimiser in self.optimisers],
        )
        partial = path.with_suffix(".part")
        torch.save(body, partial)
        os.replace(partial, path)

    def resume(self, body: Checkpoint) -> None:
        """Continue from a checkpoint."""
        self.model.load_state_dict(body["model"])
        for optimiser, saved in zip(self.optimisers, body["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.mean = body["mean"]
        self.step, self.hours, self.smooth = body["step"], body["hours"], body["smooth"]
        self.curve = [(int(step), float(loss)) for step, loss in body["curve"]]


def _checkpoint(path: Path, name: str, seed: int, settings: Mapping[str, Any]) -> Checkpoint | None:
    """Return the checkpoint of the same training, or None if there is none."""
    if not path.exists():
        return None
    try:
        body: Checkpoint = torch.load(path, weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file
        raise UsageError(f"{path} cannot be read as a checkpoint: {error}. Move it away to start anew.") from error
    if (body["name"], body["seed"]) != (name, seed):
        raise UsageError(
            f"{path} belongs to recipe {body['name']!r} with seed {body['seed']}; found recipe {name!r} with "
            f"seed {seed}. Give another --out."
        )
    saved = body.get("settings", {})
    differ = [
        f"{key} {_short(saved.get(key))} there and {_short(settings.get(key))} now"
        for key in sorted(saved.keys() | settings.keys())
        if saved.get(key) != settings.get(key)
    ]
    if differ:
        raise UsageError(
            f"{path} was trained with other data or settings: {listed(differ)}. Give this training another --name "
            f"or --out, or delete that folder"
        )
    return body


def _weights_of(folder: Path) -> dict[str, str]:
    """Return the hashes of a result's files of weights."""
    return {path.name: of_file(path) for path in sorted(folder.glob("*.safetensors"))}


def _short(value: Any) -> str:
    text = str(value)
    return f"{text[:12]}..." if len(text) > 40 else text


def _finish(state: _State, folder: Path) -> None:
    model = state.model
    if state.mean:
        model.load_state_dict(state.mean)
    model.eval()
    state.recipe.export(model, folder)
    with torch.no_grad():
        figures = state.recipe.evaluate(model)
    card = {
        "name": state.name,
        "summary": state.recipe.summary,
        "data": state.recipe.source,
        "settings": state.settings,
        "seed": state.seed,
        "steps": state.step,
        "planned_steps": state.recipe.steps,
        "hours": round(state.hours, 3),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "figures": {key: round(value, 5) for key, value in figures.items()},
        "sha256": _weights_of(folder),
        "curve": state.curve,
    }
    (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
