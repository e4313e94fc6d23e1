"""Prompts from small files of the published formats, and what the loaders say of files that are missing or wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow
import pytest
from pyarrow.parquet import write_table

from harness.core.task import Prompt, Scored
from harness.errors import UnknownNameError, UsageError
from harness.record.outputs import Picture
from harness.registry import TASKS
from tasks.coco import Coco
from tasks.dpg_bench import DpgBench, shown_in_papers
from tasks.geneval import GenEval
from tasks.imagenet_classes import ImageNetClasses
from tasks.laion_coco import LaionCoco
from tasks.loaders.pictures import choose
from tasks.metrics import dpg, geneval, t2i_compbench
from tasks.metrics.image_weights import CLIP_B32, Weights
from tasks.partiprompts import PartiPrompts
from tasks.t2i_compbench import DEPTH, T2ICompBench

NAMES = ("coco", "partiprompts", "geneval", "t2i_compbench", "dpg_bench", "laion_coco", "imagenet_classes")

COCO = {
    "info": {"year": 2017},
    "licenses": [],
    "images": [{"id": 42, "file_name": "000000000042.jpg"}, {"id": 7, "file_name": "000000000007.jpg"}],
    "annotations": [
        {"image_id": 42, "id": 9, "caption": "A dog lies in shoes. "},
        {"image_id": 42, "id": 3, "caption": "A small dog sleeps."},
        {"image_id": 7, "id": 5, "caption": "Two cats."},
    ],
}
PARTI = """Prompt\tCategory\tChallenge\tNote
bond\tAbstract\tBasic\tBiology
a "robot" sign\tArtifacts\tWriting & Symbols\t
"""
GENEVAL = [
    {"tag": "single_object", "include": [{"class": "bench", "count": 1}], "prompt": "a photo of a bench"},
    {
        "tag": "counting",
        "include": [{"class": "cow", "count": 3}],
        "exclude": [{"class": "cow", "count": 4}],
        "prompt": "a photo of three cows",
    },
]
COLUMNS = "item_id,text,keywords,proposition_id,dependency,category_broad,category_detailed,tuple"
DPG_CSV = f"""{COLUMNS},question_natural_language
0,left out,,1,0,global,,global - (x),Q?
COCOval2014000000000001,a cat,,1,0,entity,whole,entity - whole (cat),Is there a cat?
"""


def write_text(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture()
def data(tmp_path) -> Path:
    """A folder with a small file of each format."""
    write_text(tmp_path / "captions_val2017.json", json.dumps(COCO))
    write_text(tmp_path / "PartiPrompts.tsv", PARTI)
    write_text(tmp_path / "evaluation_metadata.jsonl", "\n".join(map(json.dumps, GENEVAL)))
    for name in t2i_compbench.CATEGORIES:
        write_text(tmp_path / f"t2i_compbench/{name}_val.txt", f"a {name} prompt.\n\nanother {name} prompt.\n")
    write_text(tmp_path / "t2i_compbench/complex_val_spatial.txt", "a complex prompt.\n")
    write_text(tmp_path / "t2i_compbench/complex_val_action.txt", "A different prompt.\n")
    write_text(tmp_path / "dpg_bench/prompts/partiprompts1.txt", "A castle\nby the sea. ")
    write_text(tmp_path / "dpg_bench/prompts/COCOval2014000000000001.txt", "a cat")
    write_text(tmp_path / "dpg_bench/dpg_bench.csv", DPG_CSV)
    write_text(
        tmp_path / "laion_coco.jsonl", '{"URL": "u", "TEXT": "t", "top_caption": "a cat"}\n{"top_caption": "a dog"}\n'
    )
    write_text(
        tmp_path / "imagenet_class_index.json", '{"0": ["n01440764", "tench"], "1": ["n01443537", "great_white_shark"]}'
    )
    return tmp_path


@pytest.fixture()
def tasks(data):
    """A task of each kind over those files."""
    return {
        "coco": Coco(file=str(data / "captions_val2017.json")),
        "partiprompts": PartiPrompts(file=str(data / "PartiPrompts.tsv")),
        "geneval": GenEval(file=str(data / "evaluation_metadata.jsonl")),
        "t2i_compbench": T2ICompBench(folder=str(data / "t2i_compbench")),
        "dpg_bench": DpgBench(folder=str(data / "dpg_bench")),
        "laion_coco": LaionCoco(file=str(data / "laion_coco.jsonl")),
        "imagenet_classes": ImageNetClasses(file=str(data / "imagenet_class_index.json")),
    }


class TestEvery:
    @pytest.mark.parametrize("name", NAMES)
    def test_registered_for_pictures_of_fixed_length_with_unique_ids_in_a_stable_order(self, tasks, name):
        task = tasks[name]
        assert TASKS.get(name) is type(task) and task.modality == "image" and not task.eos and task.source
        first, second = task.prompts(), task.prompts()
        assert [p.id for p in first] == [p.id for p in second]
        assert len({p.id for p in first}) == len(first) > 0
        assert all(p.text and p.tokens is None for p in first)

    @pytest.mark.parametrize("name", NAMES)
    def test_missing_data_names_the_place_the_origin_and_what_to_do(self, name, tmp_path, monkeypatch):
        monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
        with pytest.raises(UsageError) as error:
            TASKS.get(name)().prompts()
        assert f"{tmp_path}/data" in str(error.value)
        assert "It comes from" in str(error.value) and "put it there" in str(error.value)

    @pytest.mark.parametrize("name", NAMES)
    def test_data_in_the_data_folder_is_found_without_a_parameter(self, name, data, tasks, monkeypatch):
        (data / "data").symlink_to(data)
        monkeypatch.setenv("STRIDE_CACHE", str(data))
        if name == "laion_coco":
            write_table(
                pyarrow.table({"URL": ["u", ""], "top_caption": ["a cat", "a dog"]}), data / "laion_coco.parquet"
            )
        assert [p.text for p in TASKS.get(name)().prompts()] == [p.text for p in tasks[name].prompts()]

    @pytest.mark.parametrize("name", NAMES)
    def test_a_text_that_is_not_utf8_is_refused(self, name, data, tasks):
        for path in data.rglob("*"):
            if path.is_file():
                path.write_bytes(b"\xff\xfe\x00 broken")
        with pytest.raises(UsageError, match="cannot be read"):
            tasks[name].prompts()

    def test_scorers_and_numbers_are_checked_at_once(self):
        with pytest.raises(UnknownNameError, match="picture scorer"):
            Coco(scorers="fidd")
        with pytest.raises(UsageError, match="n is -1"):
            Coco(n=-1)


class TestChoice:
    def test_a_seed_chooses_and_keeps_the_order(self):
        prompts = [Prompt(f"p/{i}", "x") for i in range(50)]
        one, two = choose(prompts, 10, 0), choose(prompts, 10, 1)
        assert len(one) == 10 and one != two and one == choose(prompts, 10, 0)
        assert [p.id for p in one] == sorted((p.id for p in one), key=lambda name: int(name[2:]))
        assert choose(prompts, 0, 0) == tuple(prompts) == choose(prompts, 99, 3)

    def test_more_prompts_keep_those_that_were_chosen(self):
        prompts = [Prompt(f"p/{i}", "x") for i in range(50)]
        assert set(p.id for p in choose(prompts, 5, 2)) < set(p.id for p in choose(prompts, 6, 2))

    def test_a_task_passes_both_on(self, data):
        task = T2ICompBench(folder=str(data / "t2i_compbench"), n=3, seed=4)
        assert len(task.prompts()) == 3 and list(task.prompts()) == list(choose(task.every(), 3, 4))


class TestCoco:
    def test_one_caption_a_picture_by_lowest_id(self, tasks):
        prompts = tasks["coco"].prompts()
        assert [(p.id, p.text) for p in prompts] == [("coco/5", "Two cats."), ("coco/3", "A small dog sleeps.")]
        assert prompts[1].data == {"image_id": 42, "caption_id": 3, "file_name": "000000000042.jpg"}

    def test_every_caption(self, data):
        prompts = Coco(file=str(data / "captions_val2017.json"), every_caption=True).prompts()
        assert [p.id for p in prompts] == ["coco/5", "coco/3", "coco/9"]
        assert prompts[2].text == "A dog lies in shoes."

    @pytest.mark.parametrize(
        ("text", "what"),
        [
            ('{"images": []}', ":1: no list `annotations`"),
            ('{"annotations": [\n{"id": 1}]}', ", annotation 1: no numbers id and image_id"),
            ('{"annotations": [{"id": 1, "image_id": 2, "caption": 3}]}', ", annotation 1: caption is 3"),
            ('{"annotations":\n[', ":2: not JSON"),
        ],
    )
    def test_malformed(self, tmp_path, text, what):
        path = write_text(tmp_path / "c.json", text)
        with pytest.raises(UsageError) as error:
            Coco(file=str(path)).prompts()
        assert f"{path}{what}" in str(error.value)


class TestPartiPrompts:
    def test_columns_and_quotes(self, tasks):
        first, second = tasks["partiprompts"].prompts()
        assert (first.id, first.text, first.category) == ("parti/0000", "bond", "Abstract")
        assert first.data == {"challenge": "Basic", "note": "Biology"}
        assert second.text == 'a "robot" sign'

    def test_malformed(self, tmp_path):
        path = write_text(tmp_path / "p.tsv", PARTI + "no category\n")
        with pytest.raises(UsageError, match=r"p\.tsv:4: 1 fields where the header has 4"):
            PartiPrompts(file=str(path)).prompts()
        path = write_text(tmp_path / "p.tsv", "Text\tCategory\nx\ty\n")
        with pytest.raises(UsageError, match=r"p\.tsv:2: Prompt is None, not a text; found the fields Category, Text"):
            PartiPrompts(file=str(path)).prompts()


class TestGenEval:
    def test_metadata_is_kept_for_the_judge(self, tasks):
        first, second = tasks["geneval"].prompts()
        assert (second.id, second.text, second.category) == ("geneval/00001", "a photo of three cows", "counting")
        assert second.data == GENEVAL[1]
        detections = {"cow": [geneval.Detection((0, 0, 9, 9), 0.95)] * 3}
        assert geneval.judge(detections, second.data).correct and not geneval.judge(detections, first.data).correct

    @pytest.mark.parametrize(
        ("line", "what"),
        [
            ('{"tag": "size", "prompt": "x"}', "2: tag is 'size'; known: single_object"),
            ('{"tag": "colors", "prompt": "x"}', "2: include must list objects"),
            ('{"tag": "colors", "include": [{"class": "cow"}], "prompt": "x"}', "2: include must list objects"),
            ('{"tag": "colors", "include": [{"class": "cow", "count": 1}]}', "2: prompt is None"),
            ("not json", "2: not JSON"),
        ],
    )
    def test_malformed(self, tmp_path, line, what):
        path = write_text(tmp_path / "m.jsonl", json.dumps(GENEVAL[0]) + "\n" + line)
        with pytest.raises(UsageError) as error:
            GenEval(file=str(path)).prompts()
        assert f"{path}:{what}" in str(error.value)


class TestT2ICompBench:
    def test_categories_in_order_blank_lines_left_out(self, tasks):
        prompts = tasks["t2i_compbench"].prompts()
        assert [p.category for p in prompts[::2]] == list(t2i_compbench.CATEGORIES) and len(prompts) == 16
        assert (prompts[1].id, prompts[1].text) == ("t2i/color/0001", "another color prompt.")
        assert [p.data for p in prompts[-2:]] == [{"kind": "spatial"}, {"kind": "both"}]

    def test_one_category(self, data):
        folder = str(data / "t2i_compbench")
        assert {p.category for p in T2ICompBench(folder=folder, category="shape").prompts()} == {"shape"}
        with pytest.raises(UnknownNameError, match=r"category 'shapes'; did you mean 'shape'\?"):
            T2ICompBench(folder=folder, category="shapes").prompts()

    def test_an_absent_file_is_named(self, data):
        (data / "t2i_compbench/numeracy_val.txt").unlink()
        with pytest.raises(UsageError, match=r"numeracy_val\.txt is not there"):
            T2ICompBench(folder=str(data / "t2i_compbench")).prompts()


class TestDpgBench:
    def test_one_prompt_a_file_with_its_questions(self, tasks):
        first, second = tasks["dpg_bench"].prompts()
        assert (first.id, first.text) == ("dpg/COCOval2014000000000001", "a cat")
        assert first.data["questions"] == (dpg.Question(1, (0,), "entity - whole", "Is there a cat?"),)
        assert second.text == "A castle by the sea." and second.data["questions"] == ()

    def test_the_questions_are_optional_and_the_prompts_are_not(self, data):
        (data / "dpg_bench/dpg_bench.csv").unlink()
        assert len(DpgBench(folder=str(data / "dpg_bench")).prompts()) == 2
        write_text(data / "dpg_bench/prompts/empty.txt", " \n")
        with pytest.raises(UsageError, match=r"empty\.txt is empty"):
            DpgBench(folder=str(data / "dpg_bench")).prompts()

    def test_ids_choose_prompts_in_their_order_each_once(self, data):
        folder, names = str(data / "dpg_bench"), ("partiprompts1", "COCOval2014000000000001")
        for ids in (names, "partiprompts1, COCOval2014000000000001 partiprompts1"):
            assert [p.data["item"] for p in DpgBench(folder=folder, ids=ids).prompts()] == list(names)
        assert [p.id for p in DpgBench(folder=folder, ids="partiprompts1").prompts()] == ["dpg/partiprompts1"]

    def test_a_papers_figure_stands_for_the_prompts_that_it_shows(self, data):
        for name in shown_in_papers()["mulo_sd_fig10"]:
            write_text(data / f"dpg_bench/prompts/{name}.txt", f"prompt {name}")
        items = [p.data["item"] for p in DpgBench(folder=str(data / "dpg_bench"), ids="mulo_sd_fig10").prompts()]
        assert items[0] == "partiprompts175" and items[1] == "55" and items[-1] == "189" and len(items) == 10
        with pytest.raises(UsageError, match=r"no prompt 'drawtext19' among the 12 of .*prompts"):
            DpgBench(folder=str(data / "dpg_bench"), ids="mulo_sd_fig13").prompts()

    def test_an_unknown_id_is_named_with_the_closest(self, data):
        write_text(data / "dpg_bench/prompts/COCOval2014000000231527.txt", "a table")
        with pytest.raises(UsageError, match=r"'COCOval201400000231527'.*did you mean 'COCOval2014000000231527'"):
            DpgBench(folder=str(data / "dpg_bench"), ids="COCOval201400000231527").prompts()

    def test_the_prompts_of_mulo_sd_are_the_papers_and_coco_names_have_twelve_digits(self):
        """Counted on the pages: 8 pictures in Fig. 4, 10 in Fig. 10, 2 each in Figs. 11 and 12, 6 in Fig. 13."""
        figures = {name: ids for name, ids in shown_in_papers().items() if name.startswith("mulo_sd")}
        assert [len(ids) for ids in figures.values()] == [8, 10, 2, 2, 6]
        coco = {name for ids in figures.values() for name in ids if name.startswith("COCO")}
        assert {len(name.removeprefix("COCOval2014")) for name in coco} == {12} and len(coco) == 3
        assert figures["mulo_sd_fig11"] + figures["mulo_sd_fig12"] == (
            "partiprompts175",
            "55",
            "180",
            "partiprompts177",
        )


class TestLaionCoco:
    def test_jsonl_and_parquet_hold_the_same(self, data, tasks):
        table = pyarrow.table({"URL": ["u", ""], "TEXT": ["t", ""], "top_caption": ["a cat", "a dog"]})
        write_table(table, data / "part.parquet")
        prompts = LaionCoco(file=str(data / "part.parquet")).prompts()
        assert list(prompts) == list(tasks["laion_coco"].prompts())
        assert (prompts[0].id, prompts[0].data) == ("laion_coco/000000", {"url": "u"})

    def test_another_column(self, data):
        assert LaionCoco(file=str(data / "laion_coco.jsonl"), column="TEXT", n=1).column == "TEXT"
        with pytest.raises(UsageError, match=r"laion_coco\.jsonl:2: TEXT is None"):
            LaionCoco(file=str(data / "laion_coco.jsonl"), column="TEXT").prompts()

    def test_malformed(self, tmp_path):
        with pytest.raises(UsageError, match=r"neither \.parquet nor \.jsonl"):
            LaionCoco(file=str(tmp_path / "x.csv")).prompts()
        write_text(tmp_path / "x.parquet", "no parquet")
        with pytest.raises(UsageError, match=r"x\.parquet cannot be read"):
            LaionCoco(file=str(tmp_path / "x.parquet")).prompts()


class TestImageNet:
    @pytest.mark.parametrize(
        ("name", "text", "synset"),
        [
            ("a.json", '{"0": ["n01440764", "tench"], "1": ["n01484850", "great_white_shark"]}', "n01484850"),
            ("b.json", '["tench", "great white shark"]', ""),
            ("c.txt", "tench\ngreat white shark\n", ""),
            ("d.txt", "n01440764 tench\nn01484850 great white shark\n", "n01484850"),
        ],
    )
    def test_every_format(self, tmp_path, name, text, synset):
        _, second = ImageNetClasses(file=str(write_text(tmp_path / name, text))).prompts()
        assert (second.id, second.text) == ("imagenet/1", "1 great white shark")
        assert second.data == {"class": 1, "synset": synset, "name": "great white shark"}

    @pytest.mark.parametrize(
        ("text", "what"),
        [
            ('{"0": ["n01440764", "tench"], "2": ["n0", "x"]}', ", class 1: expected [synset, name]; found None"),
            ('{"0": "tench"}', ", class 0: expected [synset, name]; found 'tench'"),
            ("3", ":1: expected an object of class ids, or a list of names"),
        ],
    )
    def test_malformed(self, tmp_path, text, what):
        path = write_text(tmp_path / "x.json", text)
        with pytest.raises(UsageError) as error:
            ImageNetClasses(file=str(path)).prompts()
        assert f"{path}{what}" in str(error.value)


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

    def test_without_the_library_or_the_network_the_error_says_so(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(UsageError, match="pip install datasets"):
            LaionCoco(hub="laion/laion-coco").prompts()

        def fail(name: str, split: str) -> None:
            raise ConnectionError("no network")

        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=fail))
        with pytest.raises(UsageError, match="'laion/laion-coco', split 'train', cannot be had: no network"):
            LaionCoco(hub="laion/laion-coco").prompts()


def scored(prompt: Prompt) -> Scored:
    return Scored(prompt, 0, Picture(np.zeros((8, 8, 3), dtype=np.uint8)), {})


class TestScoreSet:
    @pytest.mark.parametrize("name", NAMES)
    def test_a_task_names_every_figure_it_can_give(self, tasks, name):
        task = tasks[name]
        outputs = [scored(prompt) for prompt in task.prompts()]
        assert set(task.score_set(outputs)) == set(task.own) <= set(task.set_metrics)

    def test_scorers_are_computed_from_the_tasks_own_parameters(self, data):
        task = Coco(file=str(data / "captions_val2017.json"), scorers=("clip_score",), weights=str(data))
        scores = task.score_set([scored(prompt) for prompt in task.prompts()])
        assert list(scores) == ["clip_score"] and f"ViT-L-14.pt is not in {data}" in scores["clip_score"].reason

    @pytest.mark.parametrize(
        ("name", "figures", "file"),
        [("geneval", geneval.FIGURES, geneval.DETECTOR), ("t2i_compbench", ("t2i_3d_spatial",), DEPTH)],
    )
    def test_an_absent_judge_is_a_reason_and_so_is_a_forged_one(self, tasks, tmp_path, name, figures, file: Weights):
        task = type(tasks[name])(weights=str(tmp_path))
        outputs = [scored(prompt) for prompt in tasks[name].prompts()]
        for figure in figures:
            score = task.score_set(outputs)[figure]
            assert score.value is None and f"{file.file} is not in" in score.reason
        (tmp_path / file.file).write_bytes(b"forged")
        assert f"begins with {file.sha256}" in task.score_set(outputs)[figures[0]].reason

    def test_a_present_judge_says_how_to_get_the_figure(self, tasks, tmp_path, monkeypatch):
        monkeypatch.setattr("tasks.metrics.image_weights.check", lambda path, published: None)
        (tmp_path / geneval.DETECTOR.file).write_bytes(b"")
        scores = GenEval(weights=str(tmp_path)).score_set([scored(p) for p in tasks["geneval"].prompts()])
        assert "Mask2Former under mmdet" in scores["geneval_overall"].reason
        assert "tasks.metrics.geneval" in scores["geneval_overall"].reason

    def test_judges_without_published_hashes_say_what_they_are(self, tasks):
        scores = tasks["dpg_bench"].score_set([scored(p) for p in tasks["dpg_bench"].prompts()])
        assert all("mPLUG" in scores[figure].reason for figure in dpg.FIGURES)
        scores = tasks["t2i_compbench"].score_set([scored(p) for p in tasks["t2i_compbench"].prompts()])
        assert "BLIP-VQA" in scores["t2i_color"].reason and "UniDet" in scores["t2i_spatial"].reason
        assert CLIP_B32.file in scores["t2i_non_spatial"].reason
