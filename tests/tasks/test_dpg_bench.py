"""DPG-Bench's prompts and questions."""

from __future__ import annotations

import pytest

from stridebench.harness.errors import UsageError
from stridebench.tasks.dpg_bench import DpgBench, shown_in_papers
from stridebench.tasks.metrics import dpg
from tests.support.picture_benchmarks import write_text


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
        items = [
            p.data["item"] for p in DpgBench(folder=str(picture_files / "dpg_bench"), ids="mulo_sd_fig10").prompts()
        ]
        assert items[0] == "partiprompts175" and items[1] == "55" and items[-1] == "189" and len(items) == 10
        with pytest.raises(UsageError, match=r"no prompt 'drawtext19' among the 12 of .*prompts"):
            DpgBench(folder=str(picture_files / "dpg_bench"), ids="mulo_sd_fig13").prompts()

    def test_an_unknown_id_is_named_with_the_closest(self, picture_files):
        write_text(picture_files / "dpg_bench/prompts/COCOval2014000000231527.txt", "a table")
        with pytest.raises(UsageError, match=r"'COCOval201400000231527'.*did you mean 'COCOval2014000000231527'"):
            DpgBench(folder=str(picture_files / "dpg_bench"), ids="COCOval201400000231527").prompts()

    def test_the_prompts_of_mulo_sd_are_the_papers_and_coco_names_have_twelve_digits(self):
        """The paper has 8 pictures in Fig. 4, 10 in Fig. 10, 2 each in Figs. 11 and 12, and 6 in Fig. 13."""
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
