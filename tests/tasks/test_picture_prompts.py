"""Prompts of the picture benchmarks, over small files in the published formats."""

from __future__ import annotations

import json

import pyarrow
import pytest
from pyarrow.parquet import write_table

from stridebench.harness.errors import UnknownNameError, UsageError
from stridebench.harness.plan import resolve
from stridebench.harness.registry import TASKS
from stridebench.tasks.captions import Captions, LaionCoco
from stridebench.tasks.coco import Coco
from stridebench.tasks.dpg_bench import DpgBench, shown_in_papers
from stridebench.tasks.imagenet_classes import ImageNetClasses
from stridebench.tasks.metrics import dpg, geneval, t2i_compbench
from stridebench.tasks.t2i_compbench import T2ICompBench
from tests.support.picture_benchmarks import GENEVAL, PARTI, write_text

FIRST = json.dumps(GENEVAL[0]) + "\n"


@pytest.mark.parametrize(
    ("task", "file", "text", "what"),
    [
        ("coco", "c.json", '{"images": []}', ":1: no list `annotations`"),
        ("coco", "c.json", '{"annotations": [\n{"id": 1}]}', ", annotation 1: no numbers id and image_id"),
        ("coco", "c.json", '{"annotations": [{"id": 1, "image_id": 2, "caption": 3}]}', ", annotation 1: caption is 3"),
        ("coco", "c.json", '{"annotations":\n[', ":2: not JSON"),
        ("geneval", "m.jsonl", f'{FIRST}{{"tag": "size", "prompt": "x"}}', ":2: tag is 'size'; known: single_object"),
        ("geneval", "m.jsonl", f'{FIRST}{{"tag": "colors", "prompt": "x"}}', ":2: include must list objects"),
        ("geneval", "m.jsonl", f'{FIRST}{{"tag": "colors", "include": [{{"class": "cow"}}]}}', ":2: include must list"),
        ("geneval", "m.jsonl", FIRST + json.dumps({**GENEVAL[0], "prompt": None}), ":2: prompt is None"),
        ("geneval", "m.jsonl", f"{FIRST}not json", ":2: not JSON"),
        ("imagenet_classes", "x.json", '{"0": ["n", "a"], "2": ["n", "b"]}', ", class 1: expected [synset, name]"),
        ("imagenet_classes", "x.json", '{"0": "tench"}', ", class 0: expected [synset, name]; found 'tench'"),
        ("imagenet_classes", "x.json", "3", ":1: expected an object of class ids, or a list of names"),
        ("laion_coco", "x.csv", "", " is neither .parquet nor .jsonl"),
        ("laion_coco", "x.parquet", "no parquet", " cannot be read"),
        ("partiprompts", "p.tsv", f"{PARTI}no category\n", ":4: 1 field, and the header has 4"),
        ("partiprompts", "p.tsv", "Text\tNote\nx\ty\n", ":2: Prompt is None, not a text; found the fields Note, Text"),
    ],
)
def test_malformed_data_is_refused(task, file, text, what, tmp_path):
    path = write_text(tmp_path / file, text)
    with pytest.raises(UsageError) as error:
        TASKS.get(task)(file=str(path)).prompts()
    assert f"{path}{what}" in str(error.value)


class TestCoco:
    def test_each_picture_has_its_caption_of_the_lowest_id_or_all_of_them(self, picture_files, picture_tasks):
        prompts = picture_tasks["coco"].prompts()
        assert [(p.id, p.text) for p in prompts] == [("coco/5", "Two cats."), ("coco/3", "A small dog sleeps.")]
        assert prompts[1].data == {"image_id": 42, "caption_id": 3, "file_name": "000000000042.jpg"}
        prompts = Coco(file=str(picture_files / "captions_val2017.json"), every_caption=True).prompts()
        assert [p.id for p in prompts] == ["coco/5", "coco/3", "coco/9"]
        assert prompts[2].text == "A dog lies in shoes."

    def test_the_longest_caption_is_the_first_of_equally_long_ones(self, tmp_path):
        rows = [(9, 42, "A dog."), (7, 42, "A pup."), (3, 42, "Dogs"), (5, 1, "Two cats.")]
        rows = [{"id": number, "image_id": image, "caption": text} for number, image, text in rows]
        path = write_text(tmp_path / "c.json", json.dumps({"annotations": rows}))
        assert [prompt.text for prompt in Coco(file=str(path), longest=True).prompts()] == ["Two cats.", "A dog."]
        with pytest.raises(UsageError, match="every_caption and longest"):
            Coco(file=str(path), longest=True, every_caption=True).prompts()

    def test_a_reference_that_is_not_there_is_refused_before_the_first_decode(self, picture_files, tmp_path):
        with pytest.raises(UsageError, match="none is neither a folder of pictures"):
            Coco(scorers="fid", reference=str(tmp_path / "none")).prompts()
        with pytest.raises(UsageError, match="holds no picture"):
            Coco(scorers="fid", reference=str(tmp_path)).prompts()
        (tmp_path / "fid.npz").touch()
        file = str(picture_files / "captions_val2017.json")
        assert Coco(file=file, scorers="fid", reference=str(tmp_path / "fid.npz")).prompts()


class TestGenEval:
    def test_metadata_is_kept_for_the_judge(self, picture_tasks):
        first, second = picture_tasks["geneval"].prompts()
        assert (second.id, second.text, second.category) == ("geneval/00001", "a photo of three cows", "counting")
        assert second.data == GENEVAL[1]
        detections = {"cow": [geneval.Detection((0, 0, 9, 9), 0.95)] * 3}
        assert geneval.judge(detections, second.data).correct and not geneval.judge(detections, first.data).correct


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
    def test_every_format_is_read(self, tmp_path, name, text, synset):
        _, second = ImageNetClasses(file=str(write_text(tmp_path / name, text))).prompts()
        assert (second.id, second.text) == ("imagenet/1", "1 great white shark")
        assert second.data == {"class": 1, "synset": synset, "name": "great white shark"}


class TestLaionCoco:
    def test_jsonl_and_parquet_hold_the_same(self, picture_files, picture_tasks):
        table = pyarrow.table({"URL": ["u", ""], "TEXT": ["t", ""], "top_caption": ["a cat", "a dog"]})
        write_table(table, picture_files / "part.parquet")
        prompts = LaionCoco(file=str(picture_files / "part.parquet")).prompts()
        assert list(prompts) == list(picture_tasks["laion_coco"].prompts())
        assert (prompts[0].id, prompts[0].data) == ("laion_coco/000000", {"url": "u"})

    def test_another_column_can_be_named(self, picture_files):
        assert LaionCoco(file=str(picture_files / "laion_coco.jsonl"), column="TEXT", limit=1).column == "TEXT"
        with pytest.raises(UsageError, match=r"laion_coco\.jsonl:2: TEXT is None"):
            LaionCoco(file=str(picture_files / "laion_coco.jsonl"), column="TEXT").prompts()


class TestPartiPrompts:
    def test_columns_and_quotes_are_read(self, picture_tasks):
        first, second = picture_tasks["partiprompts"].prompts()
        assert (first.id, first.text, first.category) == ("parti/0000", "bond", "Abstract")
        assert first.data == {"challenge": "Basic", "note": "Biology"}
        assert second.text == 'a "robot" sign'


class TestT2ICompBench:
    def test_categories_are_in_order_without_blank_lines(self, picture_tasks):
        prompts = picture_tasks["t2i_compbench"].prompts()
        assert [p.category for p in prompts[::2]] == list(t2i_compbench.CATEGORIES) and len(prompts) == 16
        assert (prompts[1].id, prompts[1].text) == ("t2i/color/0001", "another color prompt.")
        assert [p.data for p in prompts[-2:]] == [{"kind": "spatial"}, {"kind": "both"}]

    def test_one_category_can_be_chosen(self, picture_files):
        folder = str(picture_files / "t2i_compbench")
        assert {p.category for p in T2ICompBench(folder=folder, category="shape").prompts()} == {"shape"}
        with pytest.raises(UnknownNameError, match=r"category 'shapes'; did you mean 'shape'\?"):
            T2ICompBench(folder=folder, category="shapes").prompts()

    def test_an_absent_file_is_named(self, picture_files):
        (picture_files / "t2i_compbench/numeracy_val.txt").unlink()
        with pytest.raises(UsageError, match=r"numeracy_val\.txt is not there"):
            T2ICompBench(folder=str(picture_files / "t2i_compbench")).prompts()


class TestDpgBench:
    def test_each_file_gives_a_prompt_with_its_questions(self, picture_tasks):
        first, second = picture_tasks["dpg_bench"].prompts()
        assert (first.id, first.text) == ("dpg/COCOval2014000000000001", "a cat")
        assert first.data["questions"] == (dpg.Proposition(1, (0,), "entity - whole", "Is there a cat?"),)
        assert second.text == "A castle by the sea." and second.data["questions"] == ()

    def test_the_questions_are_optional_and_the_prompts_are_not(self, picture_files):
        (picture_files / "dpg_bench/dpg_bench.csv").unlink()
        assert len(DpgBench(folder=str(picture_files / "dpg_bench")).prompts()) == 2
        write_text(picture_files / "dpg_bench/prompts/empty.txt", " \n")
        with pytest.raises(UsageError, match=r"empty\.txt is empty"):
            DpgBench(folder=str(picture_files / "dpg_bench")).prompts()

    def test_ids_choose_prompts_in_their_order_without_repeats(self, picture_files):
        folder, names = str(picture_files / "dpg_bench"), ("partiprompts1", "COCOval2014000000000001")
        for ids in (names, "partiprompts1, COCOval2014000000000001 partiprompts1"):
            assert [p.data["item"] for p in DpgBench(folder=folder, ids=ids).prompts()] == list(names)
        assert [p.id for p in DpgBench(folder=folder, ids="partiprompts1").prompts()] == ["dpg/partiprompts1"]

    def test_a_papers_figure_stands_for_the_prompts_that_it_shows(self, picture_files):
        for name in shown_in_papers()["mulo_sd_fig10"]:
            write_text(picture_files / f"dpg_bench/prompts/{name}.txt", f"prompt {name}")
        folder = str(picture_files / "dpg_bench")
        items = [p.data["item"] for p in DpgBench(folder=folder, ids="mulo_sd_fig10").prompts()]
        assert items[0] == "partiprompts175" and items[1] == "55" and items[-1] == "189" and len(items) == 10
        with pytest.raises(UsageError, match=r"no prompt 'drawtext19' among the 12 of .*prompts"):
            DpgBench(folder=folder, ids="mulo_sd_fig13").prompts()
        with pytest.raises(UsageError, match=r"'COCOval201400000000001'.*did you mean 'COCOval2014000000000001'"):
            DpgBench(folder=folder, ids="COCOval201400000000001").prompts()

    def test_the_prompts_of_mulo_sd_are_the_papers_and_coco_names_have_twelve_digits(self):
        """The paper has 8 pictures in Fig. 4, 10 in Fig. 10, 2 each in Figs. 11 and 12, and 6 in Fig. 13."""
        figures = {name: ids for name, ids in shown_in_papers().items() if name.startswith("mulo_sd")}
        assert [len(ids) for ids in figures.values()] == [8, 10, 2, 2, 6]
        coco = {name for ids in figures.values() for name in ids if name.startswith("COCO")}
        assert {len(name.removeprefix("COCOval2014")) for name in coco} == {12} and len(coco) == 3
        last = figures["mulo_sd_fig11"] + figures["mulo_sd_fig12"]
        assert " ".join(last) == "partiprompts175 55 180 partiprompts177"


def test_a_list_is_a_sweep_and_a_list_in_a_list_one_set() -> None:
    entry = {"name": "captions", "texts": [["a cat", " a dog "], "a bird"]}
    data = {"methods": ["sjd"], "backbones": ["embedded-image"], "tasks": [entry]}
    prompts = [use.task.prompts() for use in resolve.resolve(data, resolve.Lines("test", None)).tasks]
    assert [[(one.id, one.text) for one in each] for each in prompts] == [
        [("captions/0", "a cat"), ("captions/1", "a dog")],
        [("captions/0", "a bird")],
    ]


@pytest.mark.parametrize("texts", ["", (), ("a cat", " "), ("a cat", 3)])
def test_what_is_not_a_caption_is_refused(texts: object) -> None:
    with pytest.raises(UsageError, match="give a caption, or several"):
        Captions(texts=texts).prompts()  # type: ignore[arg-type]
