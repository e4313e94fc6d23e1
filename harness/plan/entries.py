"""The entries of a suite: each is a pydantic model that looks up its name, unrolls its sweeps and reports every fault.

A fault is a line of pydantic's error, so that all faults of a suite are reported at once, each with its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StrictFloat,
    StrictInt,
    ValidationInfo,
    model_serializer,
    model_validator,
)

from stridebench.harness.core.engine import Engine
from stridebench.harness.core.method import Method
from stridebench.harness.core.task import Sampling, Task
from stridebench.harness.discover import names_of
from stridebench.harness.errors import StrideError
from stridebench.harness.machine.device import NATIVE, native_dtype
from stridebench.harness.plan import presets
from stridebench.harness.plan.lookup import build, faults_error, instances, parameter_names
from stridebench.harness.plan.planned_method import PlannedMethod
from stridebench.harness.registry import ENGINES, METHODS, TASKS


@dataclass(frozen=True)
class MethodUse:
    """A method, and the temperatures, backbones and tasks of the suite that it runs at, or None for all."""

    planned: PlannedMethod
    at: tuple[float, ...] | None = None
    backbones: tuple[str, ...] | None = None
    tasks: tuple[str, ...] | None = None

    @property
    def method(self) -> Method[Any]:
        """The method itself."""
        return self.planned.method

    def meets(self, backbone: str, temperature: float, task: str) -> bool:
        """Return whether the suite asks for it there."""
        here = self.backbones is None or bool(names_of(backbone) & set(self.backbones))
        return here and (self.tasks is None or task in self.tasks) and (self.at is None or temperature in self.at)


@dataclass(frozen=True)
class TaskUse:
    """A task and how a suite uses it.

    Args:
        limit: number of prompts, or None for as many as the task has by default. A task with a parameter of this name
            chooses them itself; of any other task they are the first.
        backbones: those that the task is for; empty: all that fit.
        chat: its texts go through the model's chat template.
        repetitions: decodes of each prompt, or None for those of the suite.
    """

    name: str
    task: Task
    limit: int | None
    backbones: tuple[str, ...] = ()
    sampling: tuple[tuple[str, Any], ...] = ()
    max_new_tokens: int | None = None
    chat: bool = False
    repetitions: int | None = None

    @property
    def params(self) -> dict[str, object]:
        """Return its parameters by name, without ``limit``, since prompts have the same ids under every limit."""
        task: Any = self.task
        names = [field.name for field in fields(task)] if is_dataclass(task) else []
        return {name: getattr(task, name) for name in names if name != "limit"}

    @property
    def title(self) -> str:
        """Its name and parameters, which distinguish two uses of one task."""
        return f"{self.name} {self.params}"


@dataclass(frozen=True)
class EngineUse:
    """An engine and how a suite uses it.

    Args:
        label: its name in tables, unlike every other.
        plain: the label of the entry that decodes without drafts with the same engine and model; "": this one does.
        serve: server to start (`harness.engines.serving.launch`): a name, or the path of a file; "": none is started.
            With a url too: it runs there.
        method: how that server speculates, a name of its file; ``synthetic=LENGTH`` accepts drafts by chance.
    """

    name: str
    label: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    plain: str = ""
    serve: str = ""
    method: str = ""
    backbones: tuple[str, ...] = ()

    @property
    def synthetic(self) -> bool:
        """Whether drafts are accepted by chance: its tokens are not the model's, and its seconds are what counts."""
        return self.method.startswith("synthetic")

    @property
    def starts(self) -> bool:
        """Whether its server is started by the run."""
        return bool(self.serve) and not self.options.get("url")

    @property
    def kind(self) -> type[Engine]:
        """The engine's class."""
        kind: type[Engine] = ENGINES.get(self.name)
        return kind

    def make(self, **options: Any) -> Engine:
        """Return a new engine with the entry's options, some of them replaced.

        Raises:
            ValueError: an option is wrong, which the check of a suite would have said.
        """
        engine: Engine | list[tuple[str, str]] = build(self.kind, self.name, {**self.options, **options})
        if isinstance(engine, list):
            raise ValueError("; ".join(text for _, text in engine))
        return engine

    @property
    def identity(self) -> dict[str, object]:
        """Facts that distinguish its cells from others; no address, since a server may be started elsewhere."""
        options = {key: value for key, value in self.options.items() if key not in ("url", "timeout_s", "key_env")}
        return {"engine": self.name, "label": self.label, "options": options, "serve": self.serve, "way": self.method}


MOST = 2**31 - 1
"""Limit of the counts of a suite, far below the whole numbers of the files that a run writes."""


def listed(value: Any) -> Any:
    """Return a list, or one value as a list of it."""
    return value if isinstance(value, list | tuple) or value is None else (value,)


class Strict(BaseModel):
    """A mapping without other keys than its fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Resources(Strict):
    """Resources that a worker of a cluster needs to run the cells of a backbone.

    If ``gpus`` is not given: one if the run's device is a GPU, else none. If only one of several GPUs is used, say 1.
    """

    cpus: int = Field(1, ge=1)
    gpus: float | None = Field(None, ge=0)
    memory_gb: float | None = Field(None, gt=0, allow_inf_nan=False)


def _native(dtypes: Any, info: ValidationInfo) -> Any:
    """Replace ``native`` by the type that the device multiplies: bf16 or fp32."""
    native = native_dtype((info.context or {}).get("device", "cpu"))
    dtypes = listed(dtypes)
    return tuple(dict.fromkeys(native if dtype == NATIVE else dtype for dtype in dtypes)) if dtypes else dtypes


def _pairs(sampling: Mapping[str, Any] | None) -> tuple[tuple[str, Any], ...]:
    """Return the pairs of a sampling that replace the suite's, or raise the error of an entry."""
    pairs: dict[str, Any] = {
        key: float(value) if key in ("temperature", "top_p", "min_p") and isinstance(value, int) else value
        for key, value in sorted((sampling or {}).items())
    }
    try:
        Sampling(**pairs)
    except (TypeError, ValueError, StrideError) as error:
        raise faults_error([(("sampling",), f"sampling: {error}")]) from error
    return tuple(pairs.items())


class BackboneEntry(Strict):
    """A backbone and the types to run it in; if no type is named, the default of its adapter.

    ``max_new_tokens`` replaces the suite's and the tasks', for models that reason before they answer, and ``sampling``
    pairs of theirs. Other keys are parameters of its adapter, such as ``weights: int4``, and become part of the name.
    """

    name: str = Field(min_length=1)
    dtype: Annotated[tuple[Literal["fp32", "bf16", "fp16", "fp64"], ...], BeforeValidator(_native)] = ()
    resources: Resources | None = None
    max_new_tokens: int | None = Field(None, ge=1, le=MOST)
    sampling: dict[str, Any] | None = None

    @property
    def pairs(self) -> tuple[tuple[str, Any], ...]:
        """Return the pairs of ``sampling``."""
        return _pairs(self.sampling)

    @model_validator(mode="after")
    def _look_up(self) -> Self:
        _pairs(self.sampling)
        try:
            default = presets.default_dtype(presets.resolve(self.name).adapter)
        except StrideError as wrong:
            raise faults_error([((), str(wrong))]) from wrong
        return self if self.dtype else self.model_copy(update={"dtype": (default,)})


class _Entry(BaseModel):
    """A name and parameters. The fields say how it is used; all other keys are parameters, and a list is a sweep."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(min_length=1)

    @property
    def params(self) -> dict[str, object]:
        """The parameters as they were written."""
        return dict(self.model_extra or {})

    @model_serializer
    def _written(self) -> dict[str, object]:
        given = {key: getattr(self, key) for key in type(self).model_fields if key in self.model_fields_set}
        return {**given, **self.params}


class MethodEntry(_Entry):
    """A method; ``at``, ``backbones`` and ``tasks`` limit it to some temperatures, backbones and tasks of the suite."""

    at: Annotated[tuple[StrictInt | StrictFloat, ...] | None, BeforeValidator(listed)] = None
    backbones: Annotated[tuple[str, ...] | None, BeforeValidator(listed)] = None
    tasks: Annotated[tuple[str, ...] | None, BeforeValidator(listed)] = None
    _uses: tuple[MethodUse, ...] = PrivateAttr(())

    @model_validator(mode="after")
    def _look_up(self) -> Self:
        limits = {"at": self.at, "backbones": self.backbones, "tasks": self.tasks}
        if empty := [key for key, values in limits.items() if values == ()]:
            text = "{0} is an empty list, so {1} would run nowhere; name some, or leave out {0}"
            raise faults_error([((key,), text.format(key, self.name)) for key in empty])
        settings = instances(METHODS, self.name, self.params)
        planned = (one if isinstance(one, PlannedMethod) else PlannedMethod.of(one) for one in settings)
        self._uses = tuple(MethodUse(one, self.at, self.backbones, self.tasks) for one in planned)
        return self

    @property
    def uses(self) -> tuple[MethodUse, ...]:
        """The method at each of its settings."""
        return self._uses


class TaskEntry(_Entry):
    """A task; see `TaskUse` for the keys."""

    limit: Any = None
    backbones: Annotated[tuple[str, ...] | None, BeforeValidator(listed)] = None
    sampling: dict[str, Any] | None = None
    max_new_tokens: int | None = Field(None, ge=1, le=MOST)
    chat: bool | None = None
    repetitions: int | None = Field(None, ge=1, le=MOST)
    _uses: tuple[TaskUse, ...] = PrivateAttr(())

    @model_validator(mode="after")
    def _look_up(self) -> Self:
        params, chooses = self.params, "limit" in parameter_names(TASKS, self.name)
        if chooses and "limit" in self.model_fields_set:
            params["limit"] = self.limit
        elif self.limit is not None and (type(self.limit) is not int or self.limit < 1):
            raise faults_error([(("limit",), f"limit is {self.limit!r}; a whole number from 1")])
        sampling = _pairs(self.sampling)
        self._uses = tuple(
            TaskUse(
                self.name,
                task,
                task.limit if chooses else self.limit,
                self.backbones or (),
                sampling,
                self.max_new_tokens,
                bool(self.chat),
                self.repetitions,
            )
            for task in instances(TASKS, self.name, params)
        )
        return self

    @property
    def uses(self) -> tuple[TaskUse, ...]:
        """The task at each of its settings."""
        return self._uses


class EngineEntry(_Entry):
    """An engine; see `EngineUse` for the keys. The others are its options."""

    label: str = ""
    plain: str = ""
    serve: str = ""
    method: str = ""
    backbones: Annotated[tuple[str, ...] | None, BeforeValidator(listed)] = None

    @model_validator(mode="after")
    def _look_up(self) -> Self:
        try:
            engine = build(ENGINES.get(self.name), self.name, self.params)
        except StrideError as error:
            raise faults_error([((), str(error))]) from error
        if isinstance(engine, list):
            raise faults_error(((key,) if key else (), text) for key, text in engine)
        return self

    @property
    def use(self) -> EngineUse:
        """The engine and how the suite uses it."""
        label, served = self.label or self.name, self.backbones or ()
        return EngineUse(self.name, label, self.params, self.plain, self.serve, self.method, served)
