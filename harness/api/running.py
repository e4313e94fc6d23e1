"""`run`: plan and decode as `stride run` does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from rich.console import Console

from stridebench.execution import RunRequest, check_finished, perform
from stridebench.harness.discover import declare_all
from stridebench.harness.errors import UsageError, did_you_mean
from stridebench.harness.machine.surroundings import cache_folder, restored, stdout_on_stderr
from stridebench.harness.plan.expand import expand
from stridebench.harness.plan.lookup import place_of
from stridebench.harness.plan.overrides import Overrides
from stridebench.harness.plan.resolve import suite_to_run, task_of
from stridebench.harness.plan.suite import ENTRIES, Suite
from stridebench.harness.record.files import make, put
from stridebench.harness.record.remote import remote_run
from stridebench.harness.run.engine_runner import StoppedEngine, with_obstacles
from stridebench.harness.run.progress import RunProgress
from stridebench.stored_run import StoredRun

Entry = str | Path | Mapping[str, Any]
"""A name, a folder, or a mapping with ``name`` and parameters."""


class Keys(TypedDict, total=False):
    """Arguments of `run`: keys of a suite, and the short forms of the command line. Any key of a suite may be given.

    Args:
        methods: names, or mappings such as {"name": "sjd", "window": 8}.
        backbones: presets, ``hub:ORG/NAME``, ``gguf:FILE``, or folders.
        tasks: names, or mappings such as {"name": "humaneval", "limit": 4}.
        prompts: instead of a task, a file of prompts or its URL, or a list of texts or of rows as in a .jsonl file.
        only: a variant of the suite.
        dtype: of all backbones: fp32, bf16, fp16 or fp64; several to sweep.
        temperature: 0 is greedy; several to sweep.
        top_k: 0 for no cut; several to sweep.
        top_p: 1 for no cut.
        min_p: 0 for no cut.
        max_new_tokens: output tokens of a prompt, at most.
        batch: prompts decoded in lock step; several to sweep.
        limit: number of prompts of each task.
        budget: a time such as "4m" in which the run ends; prompts, tokens and cells are chosen by that.
        repetitions: decodes of each prompt, with different seeds.
        seed: of all draws.
        prove: whether claims are proved by enumeration.
        warmup: decodes that are not counted.
        threads: of torch.
        isolation: "process" or "none".
        offline: never download weights.
        allow_code_execution: let tasks execute model output (HumanEval's pass@1).
    """

    methods: Entry | Sequence[Entry]
    backbones: Entry | Sequence[Entry]
    tasks: Entry | Sequence[Entry]
    prompts: str | Path | Sequence[str | Mapping[str, Any]]
    only: str
    dtype: str | Sequence[str]
    temperature: float | Sequence[float]
    top_k: int | Sequence[int]
    top_p: float
    min_p: float
    max_new_tokens: int
    batch: int | Sequence[int]
    limit: int
    budget: str | float
    repetitions: int
    seed: int
    prove: bool
    warmup: int
    threads: int
    isolation: str
    offline: bool
    allow_code_execution: bool


NO_KEYS_OF_A_SUITE = ("only", "dtype", "limit", "prompts", "offline", "allow_code_execution")
"""Arguments of `run` that are not keys of a suite."""


def run(
    suite: str | Path | None = None,
    *,
    device: str = "cpu",
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    **keys: Unpack[Keys],
) -> StoredRun:
    """Decode the prompts of a suite with its methods, and store every step.

    Args:
        suite: its name or file. Default: ``methods``, ``backbones`` and ``tasks`` (or ``prompts``) are the suite.
        device: a torch device, such as cuda.
        out: the run folder or a URL. Default: ``runs/SUITE-TIME``.
        resume: continue the run in ``out``, or the latest of this suite. With ``out`` and nothing else, the suite is
            that of the run.
        progress: show a bar on standard error.
        keys: replace keys of the suite.

    Returns:
        The run. If a claim is broken, its row of the table has the verdict "broken".

    Raises:
        UsageError: a name or value is wrong, or no cell can run; nothing is decoded.
        StoreError: the folder holds another run, or another process writes there.
        RunIncomplete: some cells or engines could not be finished; the finished ones are in the folder.
    """
    command = ["stridebench.run", *([str(suite)] if suite is not None else []), *map(str, sorted(keys))]
    with restored():
        with restored(), stdout_on_stderr():  # methods and tasks of plugins are imported here
            declare_all()
            words = {key: key for key in ENTRIES}
            name, overrides = None if suite is None else str(suite), _overrides(keys, device)
            plan = with_obstacles(expand(suite_to_run(name, overrides, out, resume, words)), out, resume)
        request = RunRequest(
            out if out is None or remote_run(out) is not None else Path(out),
            resume,
            device,
            allow_code_execution=keys.get("allow_code_execution", False),
            offline=keys.get("offline", False),
        )
        stopped: list[StoppedEngine] = []
        store, plan = perform(plan, request, RunProgress(Console(stderr=True), quiet=not progress), command, stopped)
    check_finished(plan, store, stopped)
    return StoredRun(store.address)


def _overrides(keys: Mapping[str, Any], device: str) -> Overrides:
    """Return the overrides of a suite that the keys ask for."""
    known = {*Suite.model_fields, *Keys.__annotations__}
    for key in keys:
        if key not in known:
            hint = place_of(key, {}) or did_you_mean(key, known)
            raise UsageError(f"run has no argument {key!r}{hint}; see help(stridebench.run)")
    values = {key: _plain(value) for key, value in keys.items() if key not in NO_KEYS_OF_A_SUITE}
    options = {key: key for key in (*values, "limit", "dtype")}
    if "prompts" in keys:
        if "tasks" in values:
            raise UsageError("prompts are a task; give them or tasks, not both")
        values["tasks"], options["tasks"] = task_of(_prompt_file(keys["prompts"])), "prompts"
    for key in ENTRIES:
        if key in values and not isinstance(values[key], list):
            values[key] = [values[key]]
    dtype = keys.get("dtype", ())
    dtypes = (dtype,) if isinstance(dtype, str) else tuple(dtype)
    return Overrides(values, keys.get("limit"), dtypes, options, device=device, only=keys.get("only", ""))


def _prompt_file(prompts: str | Path | Sequence[str | Mapping[str, Any]]) -> Path | str:
    """Return the file of prompts. A list is written to the cache under its digest, so that its run can be resumed."""
    if isinstance(prompts, str | Path):
        if isinstance(prompts, str) and not Path(prompts).suffix:
            raise UsageError(
                f"prompts is a file with an ending, or a list of texts; for one text write [{prompts!r:.60}]"
            )
        return prompts if "://" in str(prompts) else Path(prompts)
    rows = [{"prompt": row} if isinstance(row, str) else row for row in prompts]
    wrong = [row for row in rows if not isinstance(row, Mapping)]
    if wrong or not rows:
        raise UsageError(f"prompts is a file, or a list of texts or of rows; found {wrong[0] if wrong else rows!r:.80}")
    try:
        text = "".join(json.dumps(dict(row)) + "\n" for row in rows)
    except TypeError as error:
        raise UsageError(f"prompts has a row that is not JSON: {error}") from error
    file = cache_folder() / "prompts" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
    if not file.exists():
        make(file.parent)
        put(file, text.encode())
    return file


def _plain(value: Any) -> Any:
    """Return the value as a suite file holds it: lists and mappings, paths as texts, one value if a sweep has one."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_plain(item) for item in value]
        return items[0] if len(items) == 1 else items
    return value
