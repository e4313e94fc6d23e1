"""A user's own prompts: what is read from each kind of file, and what is refused with the line."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from stridebench import open_runs
from stridebench.harness import registry
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.tasks.prompts import Prompts
from tests.support.cli import refused, stride
from tests.support.tiny_text import tiny

HI = ({"role": "user", "content": "Hi"},)
USER = '{"role": "user", "content": "Hi"}'
TWO_TURNS = {"reference": "Ho", "question": "8", "turn": 1, "asked": ("Hi", "Again"), "references": ("Ho", "No")}


def written(folder: Path, name: str, text: str) -> Prompts:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return Prompts(str(path))


class TestFiles:
    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("mine.jsonl", '{"promt": "x"}', r"mine.jsonl:1: a row has either prompt or messages; .* promt"),
            ("mine.jsonl", '{"prompt": "x"}\n{"prompt": " "}', "mine.jsonl:2: prompt is empty"),
            ("mine.jsonl", '{"prompt": 3}', "mine.jsonl:1: prompt is 3, not a text"),
            ("mine.jsonl", '{"prompt": "x", "messages": [{}]}', "a message is"),
            ("mine.jsonl", '{"prompt": "x", "messages": [' + USER + "]}", "either prompt or messages"),
            ("mine.jsonl", '{"messages": []}', "messages is .*, not a list of messages"),
            ("mine.jsonl", '{"messages": [{"role": "user"}]}', "a message is .* with two texts"),
            ("mine.jsonl", '{"messages": [{"role": "assistant", "content": "x"}]}', "of the role 'assistant'"),
            ("mine.jsonl", '{"prompt": "x", "id": 1}\n{"prompt": "y", "id": 1}', "the id '1' is that of line 1 "),
            ("mine.jsonl", "{not json}", "mine.jsonl:1: not JSON"),
            ("mine.jsonl", "9" * 5_000, "mine.jsonl:1: not JSON"),
            ("mine.jsonl", "[" * 100_000, "mine.jsonl:1: not JSON"),
            ("mine.csv", "id,prompt\na,b,c\n", "mine.csv:2: 3 fields, and the header has 2"),
            ("mine.csv", "id;promt\n1;x\n", "mine.csv:2: .*found the fields id, promt"),
            ("mine.txt", '{"prompt": "x"}\n', "mine.txt:1: each line of this .txt file is an object of JSON"),
            ("mine.jsonl", '{"prompt_token_ids": ["a"]}', "prompt_token_ids is .*, not a list of whole numbers"),
            ("mine.json", "[3]", "mine.json, entry 1: a JSON object is expected; found int"),
            ("mine.jsonl", '{"text": "x", "question": "y"}', "found the fields question, text"),
            ("mine.csv", "Prompt\nx\n", "mine.csv:2: .*write prompt and not Prompt"),
            ("mine.csv", "prompt\n", "mine.csv has a header and no row"),
            ("mine.csv", "messages\nhello\n", "mine.csv:2: messages is not JSON"),
            ("mine.jsonl", '{"prompt": "x", "id": true}', "id is True, neither a text nor a whole number"),
            ("mine.jsonl", '{"prompt": "x", "reference": 1.5}', "reference is 1.5, neither a text nor a whole number"),
            ("mine.jsonl", '{"prompt": "x", "id": 2}\n{"prompt": "y"}', "l:2: .*of the row, which lacks an id"),
            ("mine.jsonl", '{"prompt": null}', "mine.jsonl:1: prompt is null"),
            ("mine.jsonl", '{"messages": null}', "mine.jsonl:1: messages is null"),
            ("mine.jsonl", '{"prompt": "x", "prompt": "y"}', "mine.jsonl:1: not JSON: the key 'prompt' is there twice"),
            ("mine.csv", "prompt,prompt\na,b\n", "mine.csv:1: the header names 'prompt' twice"),
            ("mine.csv", 'id,prompt\na,"x\nb,y\n', "mine.csv:2: .*a quotation mark is opened and never closed"),
            ("mine.csv", 'id,prompt\na,"x\ny"\nb\n', "mine.csv:4: 1 field, and the header has 2"),
            ("mine.csv", 'id,prompt\na,x\n\na,"y\nz"\n', "mine.csv:4: the id 'a' is that of line 2 already"),
            ("mine.txt", " \n", "is empty"),
            ("mine.yaml", "x", ".tsv or .parquet; found .yaml"),
            ("mine.jsonl", '{"prompt": "x", "max_tokens": 0}', "max_tokens is 0, not a whole number of tokens above 0"),
            ("mine.csv", "prompt,output_tokens\nx,many\n", "output_tokens is 'many', not a whole number"),
        ],
        ids=range(35),
    )  # fmt: skip
    def test_a_malformed_file_names_the_line(self, tmp_path: Path, name: str, text: str, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            written(tmp_path, name, text).prompts()

    @pytest.mark.parametrize(
        ("name", "text", "prompts"),
        [
            ("a.txt", "Once\n\nThe capital is\n", [Prompt("prompts/1", "Once"), Prompt("prompts/3", "The capital is")]),
            (
                "b.jsonl",
                '{"prompt": "f():\\n", "id": "f", "reference": " r\\n", "category": "code", "cluster": "t", "more": 1}',
                [Prompt("prompts/f", "f():\n", category="code", data={"reference": "r"}, cluster="t")],
            ),
            ("c.jsonl", '{"prompt": "2+2=", "reference": 4}', [Prompt("prompts/1", "2+2=", data={"reference": "4"})]),
            (
                "d.jsonl",
                '{"messages": [{"role": "system", "content": "Be brief."}, ' + USER + '], "id": 7}',
                [Prompt("prompts/7", messages=({"role": "system", "content": "Be brief."}, *HI))],
            ),
            (
                "e.csv",
                'id,prompt,reference\na,"two\nlines",yes\nb,one,\n',
                [Prompt("prompts/a", "two\nlines", data={"reference": "yes"}), Prompt("prompts/b", "one")],
            ),
            (
                "F.CSV",
                'id,prompt,messages,reference\na,Hello,,4\nb,,"[' + USER.replace('"', '""') + ']",\n',
                [Prompt("prompts/a", "Hello", data={"reference": "4"}), Prompt("prompts/b", messages=HI)],
            ),
            (
                "g.csv",
                "id,prompt\na,one\u2028still one\nb,two\x0c\n",
                [Prompt("prompts/a", "one\u2028still one"), Prompt("prompts/b", "two\x0c")],
            ),
            ("h.json", '["Hi"]', [Prompt("prompts/1", "Hi")]),
            ("i.jsonl", '"Hi"', [Prompt("prompts/1", "Hi")]),
            ("j.jsonl", "[" + USER + "]", [Prompt("prompts/1", messages=HI)]),
            ("k.jsonl", '{"custom_id": "r", "body": {"messages": [' + USER + "]}}", [Prompt("prompts/r", messages=HI)]),
            (
                "l.jsonl",
                '{"messages": [' + USER + ', {"role": "assistant", "content": "Ho"}]}',
                [Prompt("prompts/1", messages=HI, data={"reference": "Ho"})],
            ),
            (
                "m.jsonl",
                '{"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}',
                [Prompt("prompts/1", messages=HI)],
            ),
            (
                "n.json",
                '[{"id": "a", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}, '
                '{"from": "human", "value": "And?"}]}]',
                [Prompt("prompts/a", messages=HI, data={"reference": "Ho"})],
            ),
            (
                "o.jsonl",
                '{"question_id": 8, "category": "math", "turns": ["Hi", "Again"], "reference": ["Ho", "No"]}',
                [Prompt("prompts/8", messages=HI, category="math", data=TWO_TURNS)],
            ),
            (
                "p.json",
                '[{"instruction": "Greet.", "input": "Ann", "output": "Hi"}]',
                [Prompt("prompts/1", "Greet.\n\nAnn", data={"reference": "Hi"})],
            ),
            ("q.jsonl", '{"prompt_token_ids": [5, 3]}', [Prompt("prompts/1", tokens=(5, 3))]),
            ("r.csv", "prompt,output_tokens\nHi,7\n", [Prompt("prompts/2", "Hi", max_tokens=7)]),
            (
                "s.jsonl",
                '{"custom_id": 1, "body": {"prompt": "Hi", "max_tokens": 9}}',
                [Prompt("prompts/1", "Hi", max_tokens=9)],
            ),
            ("t.csv", "question\nHi\n", [Prompt("prompts/2", "Hi")]),
            ("u.csv", "\ufeffid;prompt\n1;Hi\n", [Prompt("prompts/1", "Hi")]),
            ("v.tsv", "id\tprompt\n1\tHi\n", [Prompt("prompts/1", "Hi")]),
        ],
    )
    def test_a_file_of_each_form_is_read_packed_and_in_utf_16_too(
        self, tmp_path: Path, name: str, text: str, prompts: list[Prompt]
    ) -> None:
        task = written(tmp_path, name, text)
        assert list(task.prompts()) == prompts
        path = Path(task.file)
        for ending, pack in ((".gz", gzip.compress), (".zst", pa.Codec("zstd").compress)):
            packed = path.with_name(path.name + ending)
            packed.write_bytes(bytes(pack(path.read_bytes())))
            assert list(Prompts(str(packed)).prompts()) == prompts
        path.write_text(text.removeprefix("\ufeff"), encoding="utf-16")
        assert list(replace(task).prompts()) == prompts

    def test_later_turns_follow_the_answers_of_a_file(self, tmp_path: Path) -> None:
        row = '{"question_id": "a", "turns": ["Hi", "Again", "Bye"], "reference": ["Ho", "No"]}'
        task = written(tmp_path, "q.jsonl", row + '\n{"question_id": "b", "turns": ["One turn"]}')
        answers = tmp_path / "m.jsonl"
        answers.write_text('{"question_id": "a", "choices": [{"turns": ["Hello", "Yes"]}]}\n')
        first, second, third, other = replace(task, answers=str(answers)).prompts()
        assert [prompt.id for prompt in (second, third, other)] == ["prompts/a/2", "prompts/a/3", "prompts/b"]
        texts = ["Hi", "Hello", "Again", "Yes", "Bye"]
        assert [message["content"] for message in third.messages] == texts and second.messages == third.messages[:3]
        assert [message["role"] for message in second.messages] == ["user", "assistant", "user"]
        assert [prompt.data.get("reference") for prompt in (first, second, third)] == ["Ho", "No", None]
        assert {first.cluster, second.cluster, third.cluster} == {"prompts/a"} and other.cluster == ""
        answers.write_text('{"question_id": "b", "choices": [{"turns": ["Hello"]}]}\n')
        with pytest.raises(UsageError, match=r"m.jsonl answers no row of .*q.jsonl that has a further turn"):
            replace(task, answers=str(answers)).prompts()

    def test_a_parquet_file_is_read_and_a_damaged_packed_one_is_one_error(self, tmp_path: Path) -> None:
        pd.DataFrame({"prompt": ["Hi", "Ho"]}).to_parquet(tmp_path / "mine.parquet")
        assert [one.text for one in Prompts(str(tmp_path / "mine.parquet")).prompts()] == ["Hi", "Ho"]
        (tmp_path / "mine.jsonl.gz").write_bytes(b"no gzip")
        with pytest.raises(UsageError, match=r"mine.jsonl.gz cannot be read"):
            Prompts(str(tmp_path / "mine.jsonl.gz")).prompts()

    def test_a_file_that_is_not_utf_8_says_what_to_do(self, tmp_path: Path) -> None:
        (tmp_path / "mine.txt").write_text("x\u00e9", encoding="latin-1")
        with pytest.raises(UsageError, match=r"mine.txt is not UTF-8 .line 1: .* save it as UTF-8"):
            Prompts(str(tmp_path / "mine.txt")).prompts()
        (tmp_path / "mine.csv").write_bytes(b"prompt\nplain\ncaf\xe9\n")
        with pytest.raises(UsageError, match=r"mine.csv is not UTF-8 .line 3: "):
            Prompts(str(tmp_path / "mine.csv")).prompts()

    def test_a_prompt_of_a_table_may_be_long(self, tmp_path: Path) -> None:
        (prompt,) = written(tmp_path, "mine.csv", "prompt\n" + "a" * 2**20 + "\n").prompts()
        assert len(prompt.text or "") == 2**20

    def test_without_a_file_the_error_says_how_to_give_one(self) -> None:
        with pytest.raises(UsageError, match="--prompts FILE"):
            Prompts().prompts()


def test_a_column_of_any_name_may_hold_the_prompts(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("topic,ask\nmath,Hi\n")
    named = Prompts(str(tmp_path / "mine.csv"), prompt_column="ask")
    assert [prompt.text for prompt in named.prompts()] == ["Hi"]
    with pytest.raises(UsageError, match=r"mine.csv:2: prompt_column is 'asks'; found the fields ask, topic"):
        replace(named, prompt_column="asks").prompts()


def test_a_run_says_what_it_reads_and_keeps_to_the_tokens_of_a_row(tmp_path: Path) -> None:
    """The shorter of the row's limit and the run's holds."""
    path = tmp_path / "mine.jsonl"
    path.write_text('{"text": "def f", "max_tokens": 3}\n{"text": "def g", "max_tokens": 99}\n')
    done = stride(
        *("run", "--backbone", "embedded-code", "--method", "prompt_lookup", "--prompts", path),
        *("--max-new-tokens", "6", "--set", "prove=false", "--out", tmp_path / "run"),
    )
    assert done.err.startswith("2 prompts from `text` of mine.jsonl\n")
    (run,) = open_runs(tmp_path / "run")
    samples = run.samples
    assert set(zip(samples["prompt"], samples["tokens"].map(len), strict=True)) == {("prompts/1", 3), ("prompts/2", 6)}


def test_an_output_is_compared_with_its_reference() -> None:
    prompt = Prompt("prompts/1", "2 + 2 =", data={"reference": "4"})
    assert Prompts("f").score(prompt, " 4\n", ()) == {"exact_match": 1.0, "contains_reference": 1.0}
    assert Prompts("f").score(prompt, "It is 4.", ()) == {"exact_match": 0.0, "contains_reference": 1.0}
    assert Prompts("f").score(Prompt("prompts/2", "x"), "y", ()) == {}


def test_weights_without_a_tokenizer_refuse_messages() -> None:
    prompt = Prompt("prompts/1", messages=({"role": "user", "content": "Hi"},))
    with pytest.raises(UsageError, match="the weights come without a tokenizer"):
        tiny().open(prompt)


class TestCommand:
    @pytest.fixture()
    def mine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A file of one prompt in the working directory."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "mine.txt").write_text("Once upon a time\n")
        return tmp_path / "mine.txt"

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("--backbone", "./absent"), "there is no folder ./absent; give the folder of a transformers model"),
            (("--backbone", "./mine.txt"), "./mine.txt is a file; give the folder of a transformers model"),
            (("--backbone", "."), ". holds no config.json; give the folder of a transformers model"),
            ((".",), ". is a folder and no suite; the folder of a model is given as --backbone ."),
            (("quick", "--prompts", "mine.txt"), "--prompts is given 2 times; put the prompts into one file"),
            (("quick", "--task", "humaneval"), "--task"),
        ],
    )
    def test_what_is_no_model_and_what_contradicts_prompts_is_named(
        self, mine: Path, arguments: tuple[str, ...], words: str
    ) -> None:
        result = stride("run", *arguments, "--prompts", mine.name, "--dry-run")
        assert result.code == 2 and words in result.err

    def test_a_backbone_and_a_url_are_enough_and_one_that_cannot_be_read_is_one_error(self, mine: Path) -> None:
        result = stride("run", "--backbone", "smollm2-135m", "--prompts", mine.as_uri(), "--dry-run")
        assert result.code == 0, result.err
        assert "prompt_lookup.smollm2-135m" in result.out and "lookahead" in result.out
        for url in ("nonesuch://a/b.txt", mine.with_name("absent.txt").as_uri()):
            assert f"{url} cannot be read" in refused(
                "run", "--backbone", "smollm2-135m", "--prompts", url, "--dry-run"
            )
        alone = "or give --method, --task too; with --backbone, --prompts FILE is enough"
        assert alone in refused("run", "--backbone", "tabular")

    def test_prompts_replace_the_tasks_of_a_suite(self, mine: Path) -> None:
        result = stride("run", "quick", "--prompts", mine, "--dry-run")
        assert result.code == 0, result.out
        assert "humaneval" not in result.out and ".prompts" in result.out


class TestPackages:
    """Rows that another package brings through the entry point group stridebench.datasets."""

    @pytest.fixture(autouse=True)
    def datasets(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken() -> list[dict[str, str]]:
            raise RuntimeError("no such table")

        entries = {
            "mine": lambda: [{"prompt": "def f():", "id": "f", "reference": "pass"}, {"prompt": "x ="}],
            "broken": broken,
            "odd": lambda: [{"prompt": "fine"}, ["prompt"]],
            "twice": lambda: [{"prompt": "a", "id": 1}, {"prompt": "b", "id": 1}],
            "none": list,
        }
        monkeypatch.setattr(registry.DATASETS, "_items", entries)
        monkeypatch.setattr(registry.DATASETS, "_source", dict.fromkeys(entries, "table 1.0 (table:rows)"))
        monkeypatch.setattr(registry.DATASETS, "_loaded", True)

    def test_rows_are_read_as_those_of_a_file(self) -> None:
        first, second = Prompts("dataset:mine").prompts()
        assert first == Prompt("prompts/f", "def f():", data={"reference": "pass"})
        assert (second.id, second.text) == ("prompts/2", "x =")

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("broken", r"the dataset 'broken' of table 1\.0 \(table:rows\) fails: RuntimeError: no such table"),
            ("odd", r"dataset:odd:2: a row is a mapping with prompt or messages; found \['prompt'\]"),
            ("twice", r"dataset:twice:2: the id '1' is that of line 1 already"),
            ("none", "dataset:none has a header and no row"),
            ("mien", "did you mean 'mine'"),
        ],
    )
    def test_what_is_wrong_is_one_message(self, name: str, says: str) -> None:
        with pytest.raises(UsageError, match=says):
            Prompts(f"dataset:{name}").prompts()

    def test_they_are_listed(self) -> None:
        rows = stride("list", "datasets", "--json").document
        assert ("mine", "table 1.0 (table:rows)") in {(row["name"], row["from"]) for row in rows}
        assert stride("list", "scorers", "--json").document == []
