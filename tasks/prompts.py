"""Prompts of the user, from a .txt, .jsonl or .csv file or from a package, with or without reference answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from stridebench.harness.core.task import Prompt, Task
from stridebench.harness.errors import StrideError, UsageError, said_by
from stridebench.harness.record.outputs import Output
from stridebench.harness.registry import DATASETS, TASKS
from stridebench.tasks.loaders.conversations import Answers, answers_of, messages_of
from stridebench.tasks.loaders.files import (
    PACKED,
    Row,
    Where,
    field_names,
    json_file,
    json_lines,
    lines,
    parquet,
    read,
    table,
)

KEYS = ("prompt", "messages", "id", "reference", "category", "cluster")
"""Fields of a row that are read; the others are ignored."""
PACKAGE = "dataset:"
"""In front of the name of rows that a package brings."""
NUMBERS = ("id", "reference")
"""Fields that may be a whole number."""
LIMITS = ("max_tokens", "max_completion_tokens", "output_tokens")
"""Fields that limit the output of their row."""
OTHER = ("text", "question", "input", "query")
"""Names of a column that is the prompt if a row has one of them only."""
ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant"}
"""Of ShareGPT."""
WHAT, ORIGIN = "a file of prompts", "you, as --prompts FILE or as the parameter file of the task prompts"


@TASKS.register("prompts")
@dataclass(frozen=True)
class Prompts(Task):
    """Answer your own prompts, from a .txt, .jsonl, .json, .csv, .tsv or .parquet file; the text may be .gz or .zst.

    A .txt file holds one prompt a line. Any other file holds one row a prompt with ``prompt`` (a text, sent
    as it stands) or ``messages`` (a list of {"role", "content"}, in a .csv file as JSON, written through the model's
    chat template), and optionally ``id`` (default: the number of the line), ``reference`` (the expected answer) and
    ``category`` (for tables by category) and ``cluster`` (what prompts have in common, such as a template or a
    conversation: intervals resample clusters). Rows of ShareGPT, MT-bench, Alpaca, of OpenAI's
    batches and fine-tuning, token ids, and single columns of other names are read too (see `_plain`). A row's
    ``max_tokens`` or ``output_tokens`` limits its output, which never exceeds the run's.

    Args:
        file: the file; or dataset:NAME, the rows of a package by the name of its entry point in the group
            ``stridebench.datasets``: a function without arguments that returns mappings with the same fields.
        prompt_column: the field or column that holds the text of a prompt; "": the known names.
        answers: of rows with ``turns``, answers in FastChat's model_answer, such as `stride exchange export --layout
            mt-bench` writes: turns behind an answered one are asked too, after these answers. "": first turns alone.
    """

    file: str = ""
    prompt_column: str = ""
    answers: str = ""

    source = "a file of the user"
    metrics = ("exact_match", "contains_reference")
    optional_metrics = ("exact_match", "contains_reference")

    def prompts(self) -> Sequence[Prompt]:
        """Return the prompts in the order of the file."""
        if not self.file:
            raise UsageError("the task prompts needs a file: --prompts FILE, or {name: prompts, file: FILE}")
        prompts: dict[str, Prompt] = {}
        places: dict[str, int] = {}
        if not self._rows:
            raise UsageError(f"{Path(self.file).expanduser()} has a header and no row; write a row for each prompt")
        answers = answers_of(self.answers) if self.answers else {}
        for where, row in self._rows:
            prompt = _prompt(where, row)
            if prompt.id in prompts:
                raise _taken(where, row, prompt, places[prompt.id])
            later = _later(prompt, answers)
            cluster = prompt.cluster or (prompt.id if later else "")
            for one in (prompt, *later):
                prompts[one.id], places[one.id] = replace(one, cluster=cluster), where.number
        if self.answers and not any(prompt.data.get("answered") for prompt in prompts.values()):
            raise UsageError(f"{self.answers} answers no row of {self.file} that has a further turn")
        return tuple(prompts.values())

    @cached_property
    def _rows(self) -> list[tuple[Where, Row]]:
        """The rows of the file, which is read once."""
        return list(self._read())

    def _read(self) -> Iterator[tuple[Where, Row]]:
        package = self.file.removeprefix(PACKAGE) if self.file.startswith(PACKAGE) else ""
        for where, row in _of_package(package) if package else _rows(Path(self.file).expanduser()):
            if not self.prompt_column:
                yield where, _plain(row)
            elif isinstance(row, dict) and self.prompt_column in row:
                others = {key: value for key, value in row.items() if key != "messages"}
                yield where, {**others, "prompt": row[self.prompt_column], "field": self.prompt_column}
            else:
                fields = field_names(row) if isinstance(row, dict) else "none"
                raise where.fault(f"prompt_column is {self.prompt_column!r}; found the fields {fields}")

    def reading(self, prompts: Sequence[Prompt]) -> str:
        """Say how many prompts were read from which fields of the file."""
        names = Counter(str(row.get("field", "prompt")) for _, row in self._rows)
        fields = " and ".join(f"`{name}`" for name, _ in names.most_common())
        return f"{len(prompts)} prompt{'' if len(prompts) == 1 else 's'} from {fields} of {Path(self.file).name}"

    def score(self, prompt: Prompt, output: Output, tokens: Sequence[int]) -> dict[str, float]:
        """Return whether the output is the reference, and whether it contains it, white space at both ends apart."""
        reference = prompt.data.get("reference")
        if reference is None:
            return {}
        text = str(output).strip()
        return {"exact_match": float(text == reference), "contains_reference": float(reference in text)}


def _later(prompt: Prompt, answers: Answers) -> list[Prompt]:
    """Return the prompts of the later turns of a row: each follows the answers to all turns before."""
    turns, references = prompt.data.get("asked", ()), prompt.data.get("references", ())
    given = answers.get(str(prompt.data.get("question")), ())
    data = {key: value for key, value in prompt.data.items() if key != "reference"}
    return [
        replace(
            prompt,
            id=f"{prompt.id}/{count + 1}",
            messages=messages_of(turns[: count + 1], given[:count]),
            data={**data, "turn": count + 1, "answered": given[:count], **_reference(references[count : count + 1])},
        )
        for count in range(1, min(len(turns), len(given) + 1))
    ]


def _reference(texts: Sequence[object]) -> dict[str, str]:
    """Return the entry of the first text, or none if it is missing or empty."""
    return {"reference": str(texts[0]).strip()} if texts and str(texts[0]).strip() else {}


def _taken(where: Where, row: Row, prompt: Prompt, first: int) -> UsageError:
    """Return the error of an id that an earlier row has."""
    name = prompt.id.removeprefix("prompts/")
    own = _text(where, row, "id") is not None
    why = "every prompt needs another" if own else "it is the number of the row, which lacks an id; give it one"
    return where.fault(f"the id {name!r} is that of {where.unit} {first} already; {why}")


def _of_package(name: str) -> Iterator[tuple[Where, Row]]:
    """Return the rows of an entry point."""
    where = Path(f"{PACKAGE}{name}")
    try:
        rows = list(DATASETS.get(name)())
    except StrideError:
        raise
    except Exception as error:  # a package may raise anything
        raise UsageError(f"the dataset {name!r} of {DATASETS.source(name)} fails: {said_by(error)}") from error
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise Where(where, number).fault(f"a row is a mapping with prompt or messages; found {row!r:.60}")
        yield Where(where, number), dict(row)


def _rows(path: Path) -> Iterator[tuple[Where, Any]]:
    """Yield the rows of a file as they are: objects, or in JSON also texts and lists of messages."""
    ending = path.with_suffix("").suffix.lower() if path.suffix in PACKED else path.suffix.lower()
    if ending == ".txt":
        found = lines(path, WHAT, ORIGIN)
        if all(line.startswith("{") and line.endswith("}") for _, line in found):
            raise found[0][0].fault("each line of this .txt file is an object of JSON: name it .jsonl")
        yield from ((where, {"prompt": line, "field": "lines"}) for where, line in found)
    elif ending == ".jsonl":
        yield from json_lines(path, WHAT, ORIGIN, (dict, list, str))
    elif ending == ".json":
        entries = json_file(path, WHAT, ORIGIN)
        for number, entry in enumerate(entries if isinstance(entries, list) else [entries], 1):
            where = Where(path, number, "entry")
            if not isinstance(entry, dict | list | str):
                raise where.fault(f"a JSON object is expected; found {type(entry).__name__}")
            yield where, entry
    elif ending in (".csv", ".tsv"):
        header = read(path, WHAT, ORIGIN).partition("\n")[0]
        delimiter = "\t" if ending == ".tsv" else ";" if ";" in header and "," not in header else ","
        yield from (_of_table(where, row) for where, row in table(path, WHAT, ORIGIN, delimiter))
    elif ending == ".parquet":
        yield from parquet(path, WHAT, ORIGIN)
    else:
        endings = ".txt, .jsonl, .json, .csv, .tsv or .parquet"
        raise UsageError(f"{path}: prompts are read from {endings}; found {path.suffix or 'no ending'}")


def _plain(row: Any) -> Row:
    """Return a row of a known form with the fields of this task: ``prompt`` or ``messages``, and the optional ones.

    ``field`` names the one that held the prompt, if it has another name.
    """
    if isinstance(row, str | list):
        return _plain({"prompt" if isinstance(row, str) else "messages": row, "field": "entries"})
    if key := next((key for key in ("messages", "prompt") if key in row), ""):
        fields = {"field": key, **row}
    elif isinstance(body := row.get("body"), dict):  # a line of OpenAI's batch
        fields = {**body, "id": row.get("custom_id"), "field": "body"}
    elif isinstance(row.get("conversations"), list):  # ShareGPT, whose later turns answer the model's
        turns = [_message(turn) for turn in row["conversations"]]
        first = next((at for at, turn in enumerate(turns) if turn.get("role") == "user"), len(turns))
        kept = turns[: first + 2 if first + 1 < len(turns) else first + 1]
        fields = {**row, "messages": kept, "field": "conversations"}
    elif isinstance(row.get("turns"), list) and row["turns"]:  # MT-bench, Spec-Bench
        fields = {**row, "messages": [{"role": "user", "content": row["turns"][0]}], "field": "turns"}
        references = row.get("reference")
        fields |= {
            "asked": tuple(map(str, row["turns"])),
            "references": references if isinstance(references, list) else (),
        }
    elif "instruction" in row:  # Alpaca
        parts = [str(row[key]) for key in ("instruction", "input") if row.get(key)]
        fields = {**row, "prompt": "\n\n".join(parts), "reference": row.get("output"), "field": "instruction"}
    elif "prompt_token_ids" in row:
        return {**row, "field": "prompt_token_ids"}
    else:
        other = [name for name in OTHER if name in row]
        return {**row, "prompt": row[other[0]], "field": other[0]} if len(other) == 1 else row
    if "id" not in fields and "question_id" in row:
        fields["id"] = row["question_id"]
    if isinstance(reference := fields.get("reference"), list):  # of each turn
        fields["reference"] = reference[0] if reference else None
    if isinstance(messages := fields.get("messages"), list):
        messages = [_message(message) for message in messages]
        if len(messages) > 1 and messages[-1].get("role") == "assistant":
            fields.setdefault("reference", messages.pop().get("content"))
        fields["messages"] = messages
    return fields


def _message(message: Any) -> dict[str, object]:
    """Return a message with ``role`` and ``content``, from ShareGPT's words or parts of text."""
    if not isinstance(message, dict):
        return {"content": message}
    role, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text", "")) for part in content)
    return {"role": ROLES.get(str(role), role), "content": content}


def _of_table(where: Where, row: Row) -> tuple[Where, Row]:
    """Leave out the empty fields of a row if it has messages, and read these as JSON."""
    if not str(row.get("messages", "")).strip():
        return where, {key: value for key, value in row.items() if key != "messages"}
    fields = {key: value for key, value in row.items() if value.strip()}
    try:
        return where, {**fields, "messages": json.loads(fields["messages"])}
    except (ValueError, RecursionError) as error:
        raise where.fault(f"messages is not JSON: write a list of messages, or a prompt; {str(error)[:80]}") from error


def _prompt(where: Where, row: Row) -> Prompt:
    texts = {key: _text(where, row, key) for key in KEYS if key != "messages"}
    messages = _messages(where, row)
    if texts["prompt"] is None and messages == () and {"prompt", "messages"} & set(row):
        raise where.fault(f"{'prompt' if 'prompt' in row else 'messages'} is null")
    ids = row.get("prompt_token_ids")
    if ids is not None and not (isinstance(ids, list) and ids and all(type(token) is int for token in ids)):
        raise where.fault(f"prompt_token_ids is {ids!r:.60}, not a list of whole numbers")
    if [texts["prompt"] is None, messages == (), ids is None].count(False) != 1:
        raise where.fault(f"a row has either prompt or messages; found the fields {field_names(row)}{_hint(row)}")
    reference, name = texts["reference"], texts["id"] or str(where.number)
    data: dict[str, object] = {} if reference is None else {"reference": reference.strip()}
    if "asked" in row and row.get("field") == "turns":
        data |= {"question": name, "turn": 1, "asked": row["asked"], "references": tuple(row["references"])}
    return Prompt(
        f"prompts/{name}",
        texts["prompt"],
        None if ids is None else tuple(ids),
        category=texts["category"] or "",
        data=data,
        messages=messages,
        max_tokens=_limit(where, row),
        cluster=texts["cluster"] or "",
    )


def _limit(where: Where, row: Row) -> int:
    """Return the output tokens that a row allows, or 0 if it does not say."""
    name = next((name for name in LIMITS if row.get(name) not in (None, "")), None)
    if name is None:
        return 0
    value = row[name]
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if type(number) is not int or number < 1:
        raise where.fault(f"{name} is {value!r}, not a whole number of tokens above 0")
    return number


def _hint(row: Row) -> str:
    """Return a hint if a header nearly has a prompt."""
    for name in map(str, row):
        if any(separator in name for separator in ";\t"):
            return " (fields are separated by commas)"
        if name.strip() not in KEYS and name.strip().lower() in KEYS:
            return f" (write {name.strip().lower()} and not {name})"
    return ""


def _text(where: Where, row: Row, key: str) -> str | None:
    """Return a field as a text, or as the text of a number. None if it is absent or (but for the prompt) empty."""
    value = row.get(key)
    if key in NUMBERS and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is not None and not isinstance(value, str):
        fault = "neither a text nor a whole number" if key in NUMBERS else "not a text"
        raise where.fault(f"{key} is {value!r}, {fault}")
    if value is not None and not value.strip():
        if key == "prompt":
            raise where.fault("prompt is empty")
        return None
    return value


def _messages(where: Where, row: Row) -> tuple[Mapping[str, str], ...]:
    value = row.get("messages")
    if value is None:
        return ()
    if not isinstance(value, list) or not value:
        raise where.fault(f"messages is {value!r}, not a list of messages")
    for message in value:
        texts = isinstance(message, dict) and [message.get("role"), message.get("content")]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise where.fault(f'a message is {{"role": ..., "content": ...}} with two texts; found {message!r}')
    if value[-1]["role"] != "user":
        raise where.fault(f"the last message is of the role {value[-1]['role']!r}; the model answers a user's message")
    return tuple({"role": message["role"], "content": message["content"]} for message in value)
