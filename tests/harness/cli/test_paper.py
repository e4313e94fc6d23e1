"""`stride paper list`: every table and figure of the papers, judged on the paper's own models."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from stridebench.harness.cli import paper
from stridebench.harness.discover import declare_all, plain, trained
from stridebench.harness.plan import presets, resolve
from stridebench.harness.plan.compatibility import Outcome, Outcomes
from stridebench.harness.registry import METHODS
from stridebench.reports.papers import report
from stridebench.reports.papers.drawing import FIGURES, SHEETS
from stridebench.reports.papers.paper_files import model_name, names
from stridebench.reports.papers.paper_items import Cells, Item, items
from tests.support.cli import refused, stride

COUNTS = {"XSpecMesh": (4, 9), "MuLo-SD": (1, 8), "ADT-Tree": (5, 9), "SJD++": (10, 14), "Cross-Regression": (17, 3)}
"""Tables and figures of each paper, counted in the papers; of MuLo-SD in its supplement."""


def judged(item: Item) -> dict[str, str]:
    declare_all()
    return paper.row(Outcomes(), "a paper", item)


def test_every_table_and_figure_has_a_row_with_a_known_outcome() -> None:
    rows = stride("paper", "list", "--json").document
    assert all(set(row) == {"paper", "item", "outcome", "why"} for row in rows)
    assert {row["outcome"] for row in rows} == {"yes", "needs weights", "no"}
    assert all(row["why"] for row in rows if row["outcome"] != "yes")
    kinds = Counter((row["paper"], row["item"].split()[0]) for row in rows)
    assert {paper: (kinds[paper, "Table"], kinds[paper, "Figure"]) for paper in COUNTS} == COUNTS
    assert len({(row["paper"], row["item"]) for row in rows}) == len(rows) == sum(map(sum, COUNTS.values()))


def test_one_paper_is_listed_with_its_source_and_the_models_to_fetch() -> None:
    rows = stride("paper", "list", "sjdpp", "--json").document
    assert {row["paper"] for row in rows} == {"SJD++"} and len(rows) == sum(COUNTS["SJD++"])
    lines = stride("paper", "list", "SJD++").out.splitlines()
    assert lines[-2] == "by Teng et al. 2025, the extension of arXiv:2410.01699"
    assert lines[-1].startswith("to fetch: ") and " GB)" in lines[-1]
    assert "there is no paper 'sjdp'" in refused("paper", "list", "sjdp")
    for rate in ("nan", "inf"):
        outcome = stride("paper", "cost", "--utilisation", rate)
        assert outcome.code == 2 and f"{rate} is not a finite number" in outcome.err


@pytest.mark.slow
def test_what_an_item_names_exists() -> None:
    """Sheets, figures, verbs, suites, methods with their options, and presets; and each printed table has an item."""
    assert report.__doc__  # registers sheets and figures
    sources = {
        *SHEETS,
        *FIGURES,
        *names(),
        "contact sheets",
        *(f"stride paper {verb}" for verb in ("cost", "layers", "study")),
        "",
    }
    declare_all()
    listed = [item for of_paper in items().values() for item in of_paper]
    for item in listed:
        assert item.made_by in sources, item
        assert not item.suite or item.suite in resolve.commands(), item
        for cells in item.cells:
            METHODS.get(cells.method)(**cells.options)
        models = {plain(model) for cells in item.cells for model in cells.models} | set(item.models)
        assert models <= set(presets.by_name())
    missing = {name for name in names() if "_table" in name} - {item.made_by for item in listed}
    assert missing == set()


@pytest.mark.parametrize(
    ("item", "outcome", "why"),
    [
        (Item(item="t", cells=(Cells(method="sjd", models=("embedded-image",)),)), "yes", ""),
        (Item(item="t", made_by="stride paper cost"), "yes", "stride paper cost"),
        (
            Item(item="t", cells=(Cells(method="sjd", models=("embedded-image", "emu3-gen")),)),
            "needs weights",
            "stride fetch emu3-gen",
        ),
        (Item(item="t", cells=(Cells(method="eagle1", models=("deepmesh-0.5b",)),)), "no", "HIDDEN"),
        (Item(item="t", why="a drawing"), "no", "a drawing"),
        (Item(item="t", models=("llama3-8b",)), "yes", ""),
        (Item(item="t", suite="embedded", cells=(Cells(method="sjd", models=("embedded-image",)),)), "yes", ""),
        (
            Item(
                item="t",
                suite="papers/sjdpp --only diversity",
                cells=(Cells(method="sjd", models=("lumina-mgpt-7b-768",)),),
            ),
            "no",
            "papers/sjdpp --only diversity does not run lumina-mgpt-7b-768",
        ),
    ],
)
def test_an_item_is_judged_by_the_worst_of_its_cells(item: Item, outcome: str, why: str) -> None:
    row = judged(item)
    assert row["outcome"] == outcome and why in row["why"]


def test_a_published_drafter_is_named_with_the_command_that_fetches_it() -> None:
    """LANTERN's for Anole and LlamaGen, where a run looks; a backbone with parameters is fetched by its name."""
    listed = {item.item: item for item in items()["ADT-Tree"]}
    why = paper.row(Outcomes(), "ADT-Tree", listed["Figure 1"])["why"]
    for drafter, backbone in (("anole_drafter", "anole-7b"), ("llamagen_drafter", "llamagen-t2i-xl-256")):
        assert f"hf download jadohu/{drafter} --local-dir {trained(f'eagle1-{backbone}')}" in why
    assert "stride fetch llamagen-c2i-l;" in paper.row(Outcomes(), "ADT-Tree", listed["Table V"])["why"]


def test_an_item_is_yes_only_if_its_suite_runs_all_of_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even with all weights on this machine. A model in chat form is the paper's model."""
    monkeypatch.setattr(
        "stridebench.harness.plan.compatibility.Outcomes.of", lambda self, method, spec: Outcome("runs")
    )
    declare_all()
    rows = {(key, item.item): (item, paper.row(Outcomes(), key, item)) for key in items() for item in items()[key]}
    for item, row in rows.values():
        models = {model for cells in item.cells for model in cells.models}
        names = [entry.name for entry in resolve.of_command(item.suite).suite.backbones] if item.suite else models
        run = {model_name(name) for name in names}
        assert (row["outcome"] == "yes") == (models <= run and not item.why and row["outcome"] != "needs weights"), row
        assert all(model in row["why"] for model in models - run if not item.why)
    assert {item.item for item, row in rows.values() if row["outcome"] == "no" and not item.why} == set()
    assert rows["Cross-Regression", "Table 7"][1]["outcome"] == "yes"
    unmade = Item(item="t", suite="papers/adt_tree", cells=(Cells(method="adt_tree", models=("anole-7b",)),))
    assert judged(unmade)["outcome"] == "no"


def test_a_part_that_a_recipe_trains_names_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("stridebench.harness.discover.shipped", lambda name: tmp_path / name)
    row = judged(Item(item="t", cells=(Cells(method="eagle1", models=("embedded-image",)),)))
    assert row["outcome"] == "needs weights" and row["why"].startswith(
        "stride train drafter eagle1-embedded-image --out"
    )
