"""Options of the executors, as ``--executor-option KEY=VALUE`` gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stridebench.harness.errors import UsageError


class Serial(BaseModel):
    """The serial executor has no options."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Ray(BaseModel):
    """Options of the Ray executor.

    Args:
        address: of a cluster, such as ``auto``; not given: that of $RAY_ADDRESS, else a new one on this machine.
        workers: at most so many at a time; not given: as many as the cluster has room for.
        retries: how often cells are run again whose worker was lost.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    address: str | None = None
    workers: int | None = Field(None, ge=1)
    retries: int = Field(2, ge=0)


class Slurm(BaseModel):
    """Options of the Slurm executor. Those that begin with ``slurm_`` go to submitit as they are.

    Args:
        cluster: ``slurm``, or ``local`` for processes of this machine.
        minutes: time limit of a job.
        workers: jobs of an array that run at a time.
        units: units of cells of a job, at most.
        retries: how often cells are run again whose job was lost.
        poll_s: seconds between two looks at the jobs.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    cluster: str = Field("slurm", pattern="^(slurm|local)$")
    minutes: int = Field(240, ge=1)
    workers: int = Field(16, ge=1)
    units: int = Field(8, ge=1)
    retries: int = Field(2, ge=0)
    poll_s: float = Field(5.0, gt=0)

    @property
    def passed_on(self) -> dict[str, Any]:
        """The options of submitit."""
        return dict(self.model_extra or {})


KINDS: Mapping[str, type[BaseModel]] = {"serial": Serial, "ray": Ray, "slurm": Slurm}


def check(executor: str, options: Mapping[str, Any]) -> Any:
    """The options of an executor, checked.

    Raises:
        UsageError: one is unknown or has a wrong value; all of them at once.
    """
    kind = KINDS[executor]
    try:
        settings = kind.model_validate(dict(options))
    except ValidationError as error:
        lines = [f"--executor-option {item['loc'][0]}: {item['msg']}" for item in error.errors()]
        known = ", ".join(kind.model_fields) or "none"
        raise UsageError("\n".join([*lines, f"The {executor} executor has the options: {known}."])) from error
    foreign = [name for name in settings.model_extra or {} if not name.startswith("slurm_")]
    if foreign:
        raise UsageError(
            f"--executor-option {foreign[0]}: the {executor} executor has the options: {', '.join(kind.model_fields)}, "
            f"and those of submitit that begin with slurm_."
        )
    return settings
