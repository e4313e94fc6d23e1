"""What picture tasks share: prompts, missing data, the choice of prompts, and scores of the whole set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow
import pytest
from pyarrow.parquet import write_table

from stridebench.harness.core.task import Prompt, Scored, SetScore, Task
from stridebench.harness.errors import UnknownNameError, UsageError
from stridebench.harness.record.outputs import Picture
from stridebench.harness.registry import TASKS
from stridebench.tasks.coco import Coco
from stridebench.tasks.loaders.pictures import choose
from stridebench.tasks.metrics import dpg, geneval
from stridebench.tasks.metrics.image_weights import CLIP_B32, WeightFile
from stridebench.tasks.t2i_compbench import DEPTH, T2ICompBench
from tests.support.picture_benchmarks import NAMES


class TestEvery:
    @pytest.mark.parametrize("name", NAMES)
    def test_registered_for_pictures_of_fixed_length_with_unique_ids_in_a_stable_order(self, picture_tasks, name):
        task = picture_tasks[name]
        assert TASKS.get(name) is type(task) and task.modality == "image" and not task.eos and task.source
        first, second = task.prompts(), task.prompts()
        assert [p.id for p in first] == [p.id for p in second]
        assert len({p.id for p in first}) == len(first) > 0
        assert all(p.text and p.tokens is None for p in first)

    @pytest.mark.parametrize("name", NAMES)
    def test_data_in_the_data_folder_is_found_without_a_parameter(
        self, name, picture_files, picture_tasks, monkeypatch
    ):
        (picture_files / "data").symlink_to(picture_files)
        monkeypatch.setenv("STRIDE_CACHE", str(picture_files))
        if name == "laion_coco":
            table = pyarrow.table({"URL": ["u", ""], "top_caption": ["a cat", "a dog"]})
            write_table(table, picture_files / "laion_coco.parquet")
        assert [p.text for p in TASKS.get(name)().prompts()] == [p.text for p in picture_tasks[name].prompts()]

    @pytest.mark.parametrize("name", NAMES)
    def test_a_text_that_is_not_utf8_is_refused(self, name, picture_files, picture_tasks):
        for path in picture_files.rglob("*"):
            if path.is_file():
                path.write_bytes(b"\xfa\xfe\x00 broken")
        with pytest.raises(UsageError, match=r"is not UTF-8 .*; save it as UTF-8"):
            picture_tasks[name].prompts()

    def test_scorers_and_numbers_are_checked_at_once(self):
        with pytest.raises(UnknownNameError, match="picture scorer"):
            Coco(scorers="fidd")
        with pytest.raises(UsageError, match="limit=-1; it must be 0 or more"):
            Coco(limit=-1)


class TestChoice:
    def test_a_seed_chooses_and_keeps_the_order_and_more_prompts_keep_those_that_were_chosen(self):
        prompts = [Prompt(f"p/{i}", "x") for i in range(50)]
        assert {p.id for p in choose(prompts, 5, 2)} < {p.id for p in choose(prompts, 6, 2)}
        one, two = choose(prompts, 10, 0), choose(prompts, 10, 1)
        assert len(one) == 10 and one != two and one == choose(prompts, 10, 0)
        assert [p.id for p in one] == sorted((p.id for p in one), key=lambda name: int(name[2:]))
        assert choose(prompts, 0, 0) == tuple(prompts) == choose(prompts, 99, 3)

    def test_a_task_passes_count_and_seed_on(self, picture_files):
        task = T2ICompBench(folder=str(picture_files / "t2i_compbench"), limit=3, seed=4)
        assert len(task.prompts()) == 3 and list(task.prompts()) == list(choose(task.every(), 3, 4))


def scored(prompt: Prompt) -> Scored:
    return Scored(prompt, 0, Picture(np.zeros((8, 8, 3), dtype=np.uint8)), {})


class TestScoreSet:
    @pytest.mark.parametrize("name", NAMES)
    def test_a_task_names_every_figure_it_can_give(self, picture_tasks, name):
        task = picture_tasks[name]
        outputs = [scored(prompt) for prompt in task.prompts()]
        assert set(task.score_set(outputs)) == set(task.own) <= set(task.set_metrics)

    def test_scorers_are_computed_from_the_tasks_own_parameters(self, picture_files):
        file = str(picture_files / "captions_val2017.json")
        task = Coco(file=file, scorers=("clip_score",), weights=str(picture_files))
        scores = task.score_set([scored(prompt) for prompt in task.prompts()])
        assert list(scores) == ["clip_score"]
        assert f"ViT-L-14.pt is not in {picture_files}" in scores["clip_score"].reason

    @pytest.mark.parametrize(
        ("name", "figures", "file"),
        [("geneval", geneval.FIGURES, geneval.DETECTOR), ("t2i_compbench", ("t2i_3d_spatial",), DEPTH)],
    )
    def test_a_missing_or_forged_judge_is_the_reason(self, picture_tasks, tmp_path, name, figures, file: WeightFile):
        task = type(picture_tasks[name])(weights=str(tmp_path))
        outputs = [scored(prompt) for prompt in picture_tasks[name].prompts()]
        for figure in figures:
            score = task.score_set(outputs)[figure]
            assert score.value is None and f"{file.file} is not in" in score.reason
        (tmp_path / file.file).write_bytes(b"forged")
        assert f"begins with {file.sha256}" in task.score_set(outputs)[figures[0]].reason

    def test_a_judge_that_is_present_or_has_no_published_hash_says_how_to_get_the_figure(
        self, picture_tasks, tmp_path, monkeypatch
    ):
        def scores_of(task: Task) -> Mapping[str, SetScore]:
            return task.score_set([scored(prompt) for prompt in task.prompts()])

        monkeypatch.setattr("stridebench.tasks.metrics.image_weights.check", lambda path, published: None)
        (tmp_path / geneval.DETECTOR.file).write_bytes(b"")
        reason = scores_of(replace(picture_tasks["geneval"], weights=str(tmp_path)))["geneval_overall"].reason
        assert "Mask2Former under mmdet" in reason and "stridebench.tasks.metrics.geneval" in reason
        scores = scores_of(picture_tasks["dpg_bench"])
        assert all("mPLUG" in scores[figure].reason for figure in dpg.FIGURES)
        scores = scores_of(picture_tasks["t2i_compbench"])
        assert "BLIP-VQA" in scores["t2i_color"].reason and "UniDet" in scores["t2i_spatial"].reason
        assert CLIP_B32.file in scores["t2i_non_spatial"].reason
