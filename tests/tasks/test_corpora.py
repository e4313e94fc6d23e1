"""Conversations to train on and to measure on, and the mixtures of Cross-Regression."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest
from pyarrow.parquet import write_table

from stridebench.harness.errors import UsageError
from stridebench.harness.registry import TASKS
from stridebench.tasks.gsm8k import Gsm8k, Gsm8k7k
from stridebench.tasks.loaders.conversations import ONE_IN, marks, side_of
from stridebench.tasks.loaders.texts import key, questions_of
from stridebench.tasks.mixed_7k import Bagel, Mixed7k, ShareGpt, UltraChat

NAMES = ("sharegpt", "ultrachat", "bagel")
EACH = 400


def talk(text: str, answer: str = "An answer.", who: str = "human") -> list[dict[str, str]]:
    return [{"from": who, "value": text}, {"from": "gpt", "value": answer}]


def ultrachat_row(text: str) -> dict[str, Any]:
    """A row of UltraChat 200k."""
    turns = [{"content": text, "role": "user"}, {"content": "An answer.", "role": "assistant"}]
    return {"prompt": text, "prompt_id": key(text), "messages": turns}


@pytest.fixture()
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with the three data sets and GSM8K."""
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    data = tmp_path / "data"
    (data / "ultrachat_200k").mkdir(parents=True)
    (data / "gsm8k").mkdir()
    shares = [{"id": f"s{n}", "conversations": talk(f"Share {n}?")} for n in range(EACH)]
    write_rows(data / "ShareGPT_V3_unfiltered_cleaned_split.json", shares)
    for part in range(2):
        rows = [ultrachat_row(f"Ultra {n}?") for n in range(part, EACH, 2)]
        write_table(pyarrow.Table.from_pylist(rows), data / f"ultrachat_200k/train_sft-0000{part}-of-00002.parquet")
    bagels = [{"id": f"b{n}", "source": "x", "text": None, "conversations": talk(f"Bagel {n}?")} for n in range(EACH)]
    plain = {"id": "p", "source": "gutenberg", "text": "A book.", "conversations": None}
    write_table(pyarrow.Table.from_pylist([plain, *bagels]), data / "bagel-clean-v0.3.parquet")
    for split in ("train", "test"):
        rows = [{"question": f"{split} {n}?", "answer": f"#### {n}"} for n in range(30)]
        (data / f"gsm8k/{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return data


def write_rows(path: Path, rows: Any) -> Path:
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def sides(name: str, **more: Any) -> dict[str, list[str]]:
    kind = TASKS.get(name)
    return {split: [p.text for p in kind(split=split, **more).prompts()] for split in ("test", "train")}


class TestConversations:
    @pytest.mark.parametrize("name", NAMES)
    def test_the_two_splits_are_disjoint_and_complete(self, cache: Path, name: str) -> None:
        prompts_of = sides(name)
        assert not set(prompts_of["test"]) & set(prompts_of["train"])
        assert len(prompts_of["test"]) + len(prompts_of["train"]) == EACH
        assert EACH / ONE_IN / 2 < len(prompts_of["test"]) < EACH / ONE_IN * 2

    @pytest.mark.parametrize("name", NAMES)
    def test_prompts_are_first_turns_with_their_answers(self, cache: Path, name: str) -> None:
        task = TASKS.get(name)()
        first, second = task.prompts(), task.prompts()
        assert list(first) == list(second) and len({p.id for p in first}) == len(first)
        assert all(p.id.startswith(f"{name}/") and p.data["reference"] == "An answer." for p in first)
        assert all(questions_of(p) == (p.text,) and p.text.endswith("?") for p in first) and task.metrics == ()

    def test_a_seed_chooses_prompts_and_the_file_orders_them(self, cache: Path) -> None:
        every = [p.id for p in ShareGpt(split="train").prompts()]
        one, two = ([p.id for p in ShareGpt(split="train", limit=20, seed=seed).prompts()] for seed in (0, 1))
        assert len(one) == 20 and one != two and one == [name for name in every if name in set(one)]
        more = {p.id for p in ShareGpt(split="train", limit=21).prompts()}
        assert set(one) < more

    def test_texts_that_differ_in_case_and_white_space_count_once(self, tmp_path: Path) -> None:
        rows = [{"conversations": talk(text)} for text in ("What is it?", " what  is\nIT? ", "Who is it?")]
        path = str(write_rows(tmp_path / "s.json", rows))
        assert sorted(_texts(ShareGpt, path)) == ["What is it?", "Who is it?"]
        assert side_of("What is it?") == side_of(" what  is\nIT? ")

    @pytest.mark.parametrize(
        ("turns", "prompts"),
        [
            (talk("Begin."), ["Begin."]),
            (talk("Begin.", who="user"), ["Begin."]),
            ([{"from": "system", "value": "Be kind."}, *talk("Begin.")], ["Begin."]),
            (talk("Begin.")[:1], ["Begin."]),
            (talk("Begin.", who="gpt"), []),
            (talk("  "), []),
            ([], []),
            (None, []),
        ],
    )
    def test_a_conversation_starts_with_a_user(self, tmp_path: Path, turns, prompts) -> None:
        path = str(write_rows(tmp_path / "s.json", [{"conversations": turns}, {"conversations": talk("Another.")}]))
        assert sorted(_texts(ShareGpt, path)) == sorted([*prompts, "Another."])

    @pytest.mark.parametrize(
        ("rows", "says"),
        [
            ([{"turns": []}], "entry 1: no conversations; found the fields turns"),
            ([{"conversations": "x"}], "entry 1: conversations is a str"),
            ([{"conversations": talk("a")}, {"conversations": ["x"]}], "entry 2: a turn has from and value"),
            ([{"conversations": [{"from": "human"}]}], "entry 1: a turn has from and value"),
            (["x"], "entry 1: a JSON object is expected; found str"),
            ({"a": 1}, ":1: a list is expected; found dict"),
            ([], "holds no row. It should be ShareGPT"),
            ([{"conversations": talk("a", who="gpt")}], "lacks conversations of the test side that a user begins"),
        ],
    )
    def test_malformed_data_is_refused(self, tmp_path: Path, rows, says) -> None:
        path = write_rows(tmp_path / "s.json", rows)
        with pytest.raises(UsageError) as error:
            ShareGpt(file=str(path)).prompts()
        assert str(path) in str(error.value) and says in str(error.value)

    def test_a_folder_without_parquet_and_a_damaged_parquet_file_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"\*\.parquet is not there"):
            UltraChat(file=str(tmp_path)).prompts()
        (tmp_path / "b.parquet").write_text("no parquet")
        with pytest.raises(UsageError, match=r"b\.parquet cannot be read"):
            Bagel(file=str(tmp_path / "b.parquet")).prompts()
        (tmp_path / "e.json").write_text("")
        with pytest.raises(UsageError, match="is empty"):
            ShareGpt(file=str(tmp_path / "e.json")).prompts()

    def test_the_hub_is_asked_for_the_pinned_files(self, monkeypatch) -> None:
        calls: list[Any] = []
        rows = [{"conversations": talk(f"{n}?"), "messages": ultrachat_row(f"{n}?")["messages"]} for n in range(99)]
        fake = SimpleNamespace(load_dataset=lambda path, **how: calls.append((path, how)) or rows)
        monkeypatch.setitem(sys.modules, "datasets", fake)
        assert ShareGpt(hub="official").prompts() and UltraChat(hub="official").prompts()
        assert calls[0][0] == "anon8231489123/ShareGPT_Vicuna_unfiltered" and calls[0][1]["split"] == "train"
        assert calls[0][1]["data_files"] == "ShareGPT_V3_unfiltered_cleaned_split.json"
        assert calls[1][1]["split"] == "train_sft" and all(len(how["revision"]) == 40 for _, how in calls)
        with pytest.raises(UsageError, match="no data set of the hub is pinned for Bagel"):
            Bagel(hub="official").prompts()
        assert Bagel(hub="jondurbin/bagel-v0.3@main").prompts() and calls[2][1]["revision"] == "main"


def _texts(kind: Any, path: str) -> list[str]:
    """Return the texts of both splits; one may be empty."""
    texts = []
    for split in ("test", "train"):
        try:
            texts += [p.text for p in kind(file=path, split=split).prompts()]
        except UsageError as error:
            assert "that a user begins" in str(error)
    return texts


class TestMixed7k:
    def test_sources_differ_by_one_at_most(self, cache: Path) -> None:
        prompts = Mixed7k(limit=302, without="gsm8k").prompts()
        assert Counter(p.category for p in prompts) == {"ultrachat": 101, "sharegpt": 101, "bagel": 100}
        assert len({p.id for p in prompts}) == len({key(p.text or "") for p in prompts}) == 302

    def test_draw_and_order_depend_on_the_seed_alone(self, cache: Path) -> None:
        one, two, again = (Mixed7k(30, seed, without="gsm8k").prompts() for seed in (0, 1, 0))
        assert one == again and {p.id for p in one} != {p.id for p in two}
        assert len({p.category for p in one[:8]}) == 3
        shares = cache / "ShareGPT_V3_unfiltered_cleaned_split.json"
        write_rows(shares, json.loads(shares.read_text())[::-1])
        assert Mixed7k(30, without="gsm8k").prompts() == one

    def test_a_text_of_two_sources_occurs_once(self, cache: Path) -> None:
        shares = [{"conversations": talk(f"{kind} {n}?")} for kind in ("ultra", "Share") for n in range(EACH)]
        write_rows(cache / "ShareGPT_V3_unfiltered_cleaned_split.json", shares)
        keys = [key(p.text or "") for p in Mixed7k(900, without=()).prompts()]
        assert len(set(keys)) == len(keys) == 900

    def test_questions_of_benchmarks_are_left_out(self, cache: Path) -> None:
        before = {p.text for p in Mixed7k(30, without="gsm8k").prompts()}
        stolen = sorted(text for text in before if text)[::3]
        rows = [{"question": text.upper() + " \n", "answer": "#### 1"} for text in stolen]
        (cache / "gsm8k/test.jsonl").write_text("\n".join(map(json.dumps, rows)))
        after = {p.text for p in Mixed7k(30, without="gsm8k").prompts()}
        assert len(after) == 30 and not after & set(stolen) and before - after == set(stolen)
        assert {p.text for p in Mixed7k(30, without="").prompts()} == before

    def test_too_few_prompts_of_a_source_are_refused_with_the_numbers(self, cache: Path) -> None:
        with pytest.raises(UsageError, match=r"2334 prompts of ultrachat are asked for; of the 3\d\d that are for tr"):
            Mixed7k(without=()).prompts()
        with pytest.raises(UsageError, match="must be 3 or more"):
            Mixed7k(limit=2)

    def test_all_missing_benchmarks_are_named(self, cache: Path) -> None:
        says = r"cannot be read; .*mbpp: .*mbpp\.jsonl.* math500: .*test\.jsonl"
        with pytest.raises(UsageError, match=says) as error:
            Mixed7k(30, without="gsm8k, mbpp, math500").prompts()
        assert "parameter without" in str(error.value) and "gsm8k:" not in str(error.value)
        with pytest.raises(UsageError, match=r"no task 'gsm8'; did you mean 'gsm8k'"):
            Mixed7k(30, without="gsm8").prompts()

    def test_a_source_may_be_a_data_set_of_the_hub(self, cache: Path, monkeypatch) -> None:
        rows = [{"conversations": talk(f"Of the hub {n}?")} for n in range(50)]
        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=lambda path, **how: rows))
        prompts = Mixed7k(30, bagel="hub:jondurbin/bagel-v0.3", without=()).prompts()
        assert Counter((p.text or "").split()[0] for p in prompts) == {"Ultra": 10, "Share": 10, "Of": 10}

    def test_keys_of_questions_do_not_depend_on_the_form(self, cache: Path) -> None:
        assert marks(("gsm8k",)) == {key(str(p.data["asked"])) for p in Gsm8k(form="chat").prompts()}
        assert key("test 0?") in marks(("gsm8k",)) and len(marks(("gsm8k", "humaneval"))) == 30 + 164


class TestGsm8k7k:
    def test_problems_are_a_seeded_draw_of_the_training_split(self, cache: Path) -> None:
        one, two = Gsm8k7k(20).prompts(), Gsm8k7k(20, seed=1).prompts()
        assert len(one) == 20 and one == Gsm8k7k(20).prompts() and {p.id for p in one} != {p.id for p in two}
        assert all(p.id.startswith("gsm8k/train/") and (p.text or "").startswith("Question: train") for p in one)

    def test_test_problems_are_left_out(self, cache: Path) -> None:
        rows = [{"question": f"TRAIN  {n}?", "answer": "#### 1"} for n in range(10)]
        (cache / "gsm8k/test.jsonl").write_text("\n".join(map(json.dumps, rows)))
        questions = {p.data["asked"] for p in Gsm8k7k(20).prompts()}
        assert questions == {f"train {n}?" for n in range(10, 30)}
        with pytest.raises(UsageError, match="21 prompts of gsm8k are asked for; of the 30 that are for training, 20"):
            Gsm8k7k(21).prompts()
