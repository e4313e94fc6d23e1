"""Texts as the samples of human-eval and of lm-evaluation-harness, the results that both write, and MT-bench's answers.

Sources: openai/human-eval, human_eval/evaluation.py; EleutherAI/lm-evaluation-harness, ``--log_samples``;
lm-sys/FastChat, llm_judge/gen_model_answer.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stridebench.harness.core.task import Layout, SetScore, Stored
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import LAYOUTS
from stridebench.tasks.humaneval import body, pass_at_k
from stridebench.tasks.loaders.files import Row, json_lines
from stridebench.tasks.metrics.features import mean

# Whether results are of the outputs at hand.


def refuse_others(path: Path, judged: Sequence[Hashable], expected: Sequence[Hashable]) -> None:
    """Refuse results of other prompts or outputs, or of some of them only."""
    given, asked = Counter(judged), Counter(expected)
    foreign, absent = given - asked, asked - given
    if foreign or absent:
        example = str(next(iter(foreign or absent)))[:120]
        raise UsageError(
            f"{path} has results of another prompt set or other outputs: {foreign.total()} of its {given.total()} are "
            f"not of this cell, and {absent.total()} of the cell's {asked.total()} outputs have none (such as "
            f"{example}). Judge what `stride exchange export` wrote for this cell, all of it"
        )


def by_prompt(outputs: Sequence[Stored]) -> list[list[Stored]]:
    """Group outputs by prompt, in the order of the prompts; each group is sorted by repetition."""
    groups: dict[str, list[Stored]] = {}
    for output in outputs:
        groups.setdefault(output.prompt.id, []).append(output)
    return [sorted(group, key=lambda output: output.repetition) for group in groups.values()]


def field(output: Stored, name: str) -> Any:
    """Return a field that the data of the benchmark's prompts has, or raise UsageError if this prompt lacks it."""
    if name not in output.prompt.data:
        raise UsageError(f"{output.prompt.id} is not a prompt of this benchmark: it lacks {name}. Name another cell")
    return output.prompt.data[name]


@LAYOUTS.register("human-eval")
class HumanEvalLayout(Layout):
    """samples.jsonl of {task_id, completion}; results are its ``samples.jsonl_results.jsonl``."""

    def write(self, outputs: Sequence[Stored], folder: Path) -> str:
        """Write the completions, cut at the end of the function."""
        rows = [{"task_id": task, "completion": completion} for task, completion in map(_completion, outputs)]
        _write_rows(folder / "samples.jsonl", rows)
        return f"evaluate_functional_correctness {folder / 'samples.jsonl'}"

    def read(self, files: Mapping[str, Path], outputs: Sequence[Stored]) -> dict[str, SetScore]:
        """Read which completions passed, as pass@k."""
        path, rows = files[""], []
        for where, row in json_lines(files[""], "human-eval's results", "evaluate_functional_correctness"):
            if not isinstance(row.get("passed"), bool):
                raise where.fault(f"passed is {row.get('passed')!r}, not true or false")
            rows.append(row)
        judged = [(str(row.get("task_id")), str(row.get("completion"))) for row in rows]
        refuse_others(path, judged, [_completion(output) for output in outputs])
        passed: dict[str, list[bool]] = {}
        for (task, _), row in zip(judged, rows, strict=True):
            passed.setdefault(task, []).append(row["passed"])
        return pass_at_k(passed)


def _completion(output: Stored) -> tuple[str, str]:
    field(output, "entry_point")
    return output.prompt.id, body(output.text())


@LAYOUTS.register("lm-eval")
class LmEvalLayout(Layout):
    """samples_TASK.jsonl, a line an output; results are such a file with the metrics that the harness computed."""

    def write(self, outputs: Sequence[Stored], folder: Path) -> str:
        """Write documents and answers; the target is the reference that the task knows."""
        rows = [
            {
                "doc_id": number,
                "doc": {"id": output.prompt.id, "question": output.prompt.text or ""},
                "target": str(output.prompt.data.get("answer", output.prompt.data.get("reference", ""))),
                "arguments": {"gen_args_0": {"arg_0": output.prompt.text or "", "arg_1": {}}},
                "resps": [[output.text()]],
                "filtered_resps": [output.text()],
            }
            for number, output in _numbered(outputs)
        ]
        path = folder / f"samples_{outputs[0].prompt.id.partition('/')[0]}.jsonl"
        _write_rows(path, rows)
        return f"score the answers (resps) of {path}, and attach the same lines with the key metrics"

    def read(self, files: Mapping[str, Path], outputs: Sequence[Stored]) -> dict[str, SetScore]:
        """Read the mean of each metric that a line names under ``metrics``."""
        ids: dict[str, list[str]] = {}
        values: dict[str, list[float]] = {}
        names, judged = {number: output.prompt.id for number, output in _numbered(outputs)}, []
        for where, row in json_lines(files[""], "samples of lm-eval", "lm_eval --log_samples"):
            judged.append((row.get("doc_id"), _answer(row)))
            metrics = row.get("metrics")
            if not isinstance(metrics, list) or not all(isinstance(row.get(name), int | float) for name in metrics):
                raise where.fault("metrics does not list the fields that are scores")
            for name in metrics:
                ids.setdefault(name, []).append(names.get(row.get("doc_id", -1), ""))
                values.setdefault(name, []).append(float(row[name]))
        refuse_others(files[""], judged, [(number, output.text()) for number, output in _numbered(outputs)])
        if not values:
            raise UsageError(f"{files['']} names no metric under the key metrics")
        return {f"lm_eval_{name}": mean(ids[name], values[name]) for name in values}


def _numbered(outputs: Sequence[Stored]) -> list[tuple[int, Stored]]:
    return [(number, output) for number, group in enumerate(by_prompt(outputs)) for output in group]


def _answer(row: Row) -> str | None:
    answers: Any = row.get("resps")
    try:
        return str(answers[0][0])
    except (TypeError, LookupError):
        return None


@LAYOUTS.register("mt-bench")
class MtBenchLayout(Layout):
    """NAME.jsonl in FastChat's model_answer, with the name of the folder: a choice a repetition, a text a turn.

    A second turn is written behind the answer that it follows. The tasks mt_bench, spec_bench and prompts read the
    file as their parameter ``answers``.
    """

    def write(self, outputs: Sequence[Stored], folder: Path) -> str:
        """Write the answers."""
        choices: dict[Any, dict[int, list[str]]] = {}
        for output in sorted(outputs, key=lambda output: int(field(output, "turn"))):
            turns = [*output.prompt.data.get("answered", ()), output.text().strip()]
            question = choices.setdefault(field(output, "question"), {})
            if (earlier := question.get(output.repetition, turns)) != turns[: len(earlier)]:
                raise UsageError(
                    f"{output.prompt.id} follows another answer than that of this cell to the turn before. Export a "
                    f"run of one turn: {{name: TASK, turn: 1}}, or turn: 2 with answers"
                )
            question[output.repetition] = turns
        rows = [
            {
                "question_id": question,
                "answer_id": f"{folder.name}-{question}",
                "model_id": folder.name,
                "choices": [{"index": index, "turns": turns} for index, turns in sorted(answers.items())],
                "tstamp": 0.0,
            }
            for question, answers in choices.items()
        ]
        path = folder / f"{folder.name}.jsonl"
        _write_rows(path, rows)
        return f"python gen_judgment.py --model-list {folder.name}, with {path} in data/mt_bench/model_answer"


def _write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
