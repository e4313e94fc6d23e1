"""Workers on a Ray cluster: actors that keep the backbone of their latest cells."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from stridebench.harness.errors import UsageError
from stridebench.harness.machine.extras import optional
from stridebench.harness.plan.cells import Plan
from stridebench.harness.run.workers import pool
from stridebench.harness.run.workers.cluster import CellWorker, Needs, Unit, describe, needs_of
from stridebench.harness.run.workers.pool import Ended, Pool
from stridebench.harness.run.workers.protocol import WorkerSetup


def engine() -> Any:
    """Return the module `ray`, or raise UsageError if it is not installed."""
    return optional("ray", "the ray executor", "ray")


def connect(address: str | None, cpus: int | None = None) -> Any:
    """The module `ray`, connected to a cluster.

    Args:
        address: of the cluster, or None for a new one on this machine.
        cpus: of the new one, or None for those of the machine.
    """
    ray = engine()
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a worker without a GPU keeps its settings
    os.environ.setdefault("RAY_worker_niceness", "0")  # else any other process takes time from what is timed
    local = {} if address else {"include_dashboard": False, "num_cpus": cpus}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **local)
    except Exception as error:  # Ray raises plain exceptions too, such as where its processes do not start in time
        what = f"the Ray cluster at {address} cannot be reached" if address else "no Ray cluster could be started here"
        raise UsageError(
            f"{what}: {describe(error)}. Check the address and the load of this machine, then run again with --resume."
        ) from error
    return ray


@dataclass
class Actor:
    """A worker of the cluster.

    Args:
        group: whose backbone it holds, or None at first.
        unit: that it runs, or None if it is idle.
    """

    handle: Any
    needs: Needs
    group: tuple[str, str] | None = None
    unit: Unit | None = None


class RayPool(Pool):
    """Actors of a Ray cluster. Each unit goes to an idle actor that holds its backbone, or to a new one.

    Where seconds are measured on CPUs, each machine has one worker; on GPUs, each GPU has one.

    Raises:
        UsageError: Ray is not installed, or no machine of the cluster has the declared resources.
    """

    def __init__(self, plan: Plan, setup: WorkerSetup, options: pool.Ray) -> None:
        self._ray = engine()
        self._plan, self._setup = plan, setup
        self._started = not self._ray.is_initialized()
        if self._started:
            connect(options.address or os.environ.get("RAY_ADDRESS"))
        self._suite = self._ray.put(setup)
        self._actor_class = self._ray.remote(CellWorker)
        self._limit = options.workers or self._room()
        self._waiting: list[Unit] = []
        self._actors: list[Actor] = []
        self._running: dict[Any, Actor] = {}

    def submit(self, units: Sequence[Unit]) -> None:
        """Units wait until a worker is free."""
        self._waiting += units
        for unit in units:
            self._check(self._needs(unit))

    def wait(self) -> Iterable[Ended]:
        """The units that end next."""
        self._place()
        ready, _ = self._ray.wait(list(self._running), num_returns=1)
        return [self._ended(reference) for reference in ready]

    def close(self) -> None:
        """End the actors, and a cluster that was started for this run."""
        for actor in self._actors:
            with suppress(Exception):  # the cluster may be gone
                self._ray.kill(actor.handle)
        if self._started:
            self._ray.shutdown()

    def _room(self) -> int:
        """How many workers the cluster has room for."""
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        cpus, gpus = (sum(machine.get(kind, 0.0) for machine in machines) for kind in ("CPU", "GPU"))
        if self._setup.options.device.startswith("cuda"):
            return max(1, int(gpus))
        return max(1, len(machines) if self._plan.suite.suite.timing else int(cpus))

    def _needs(self, unit: Unit) -> Needs:
        return needs_of(self._plan, unit, self._setup.options.device)

    def _check(self, needs: Needs) -> None:
        """Refuse what no machine has, which would wait forever; a cluster that grows may get one."""
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if self._started and not os.environ.get("RAY_ADDRESS") and not any(_holds(one, needs) for one in machines):
            raise UsageError(
                f"no machine of the Ray cluster has {needs.cpus} CPUs, {needs.gpus:g} GPUs and "
                f"{(needs.memory or 0) / 1e9:g} GB free, which the suite declares for a backbone; it has "
                f"{machines[0].get('CPU', 0):g} CPUs and {machines[0].get('GPU', 0):g} GPUs"
            )

    def _place(self) -> None:
        """Give units to idle workers and to new ones, while there is room."""
        while self._waiting:
            idle = [actor for actor in self._actors if actor.unit is None]
            unit, actor = self._match(idle)
            if actor is None:
                actor = self._new(self._needs(unit), idle)
            if actor is None:
                return
            self._waiting.remove(unit)
            actor.unit, actor.group = unit, unit.group
            self._running[actor.handle.run.remote(unit)] = actor

    def _match(self, idle: Sequence[Actor]) -> tuple[Unit, Actor | None]:
        """The next unit, and an idle worker for it: one that holds its backbone, if there is one."""
        for actor in idle:
            for unit in self._waiting:
                if unit.group == actor.group:
                    return unit, actor
        served = [actor.group for actor in self._actors if actor.unit is not None]
        unit = min(self._waiting, key=lambda one: served.count(one.group))
        full = len(self._actors) >= self._limit
        fitting = [actor for actor in idle if actor.needs == self._needs(unit)] if full else []
        return unit, fitting[0] if fitting else None

    def _new(self, needs: Needs, idle: Sequence[Actor]) -> Actor | None:
        """Return a new worker, in the place of an idle one if the cluster is full, or None without room."""
        if len(self._actors) >= self._limit:
            if not idle:
                return None
            self._ray.kill(idle[0].handle)
            self._actors.remove(idle[0])
        options = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        if needs.memory is not None:
            options["memory"] = needs.memory
        actor = Actor(self._actor_class.options(**options).remote(self._suite), needs)
        self._actors.append(actor)
        return actor

    def _ended(self, reference: Any) -> Ended:
        actor = self._running.pop(reference)
        unit, actor.unit = actor.unit, None
        assert unit is not None, "it ran one"
        try:
            return Ended(unit, refusal=self._ray.get(reference))
        except Exception as error:  # the worker died, its machine is gone, or what runs there raised an error
            with suppress(Exception):
                self._ray.kill(actor.handle)
            self._actors.remove(actor)
            return Ended(unit, lost=describe(error))


def _holds(machine: dict[str, float], needs: Needs) -> bool:
    here = machine.get("CPU", 0) >= needs.cpus and machine.get("GPU", 0) >= needs.gpus
    return here and machine.get("memory", 0) >= (needs.memory or 0)
