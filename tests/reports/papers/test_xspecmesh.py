"""XSpecMesh's report: printed numbers, and measured ones from a made-up store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stridebench.harness.errors import StoreError, UsageError
from stridebench.harness.plan import presets, resolve
from stridebench.harness.plan.expand import expand
from stridebench.harness.record.outputs import Mesh, save
from stridebench.harness.record.run_notes import condition_file
from stridebench.harness.record.store import Store
from stridebench.harness.registry import TASKS
from stridebench.harness.synthetic import shapes
from stridebench.reports import meshes
from stridebench.reports.papers import report
from stridebench.reports.papers.paper_files import published, reports
from stridebench.reports.text_table import UNMEASURED
from tests.support.cli import stride
from tests.support.fake_store import FakeStore, empty, meta, record, step
from tests.support.paper_runs import assert_page, frame_of, run_of, table_of

LEVELS = ("level-1", "level-2", "level-0", "level-2", "level-1", "level-2")
CUBE = Mesh(
    np.array([[x, y, z] for x in (-0.5, 0.5) for y in (-0.5, 0.5) for z in (-0.5, 0.5)]),
    np.array([[0, 1, 3], [0, 3, 2], [4, 6, 7], [4, 7, 5], [0, 4, 5], [0, 5, 1], [2, 3, 7], [2, 7, 6]]),
)
ROLES = reports()["xspecmesh"].roles
OPTIONS = {**published("multi_head"), "accept_top": 1, "draft_top": 2}


def outputs(
    accepted: tuple[int, ...], ms: float, chamfer: float, drafted: int = 4, lost: int | None = None
) -> list[Any]:
    """Twelve tokens a shape. The cosine of a shape's number shifts its distance equally in every cell."""
    rows = []
    for i, level in enumerate(LEVELS):
        steps = [step(one, drafted, ms=ms) for one in accepted]
        scores = {"chamfer": chamfer + 0.01 * np.cos(i), "hausdorff": 2 * chamfer, "faces": 8.0}
        more: dict[str, Any] = {"scores": scores, "output": f"{chamfer}.ply"}
        if i == lost:
            more = {"status": "failed", "error": "output: cut inside a patch", "scores": {}, "output": ""}
        rows.append(record(f"shapes/{i}", steps, category=level, agreement=None, **more))
    return rows


def mesh_run(
    rows: tuple[str, ...] = ("A", "B", "D", "E"), sweep: bool = False, count: int = 6, roles: Any = ROLES
) -> FakeStore:
    """Row A takes 12 passes of 10 ms; B takes 8, D 6 and E 4 passes of 12 ms; E loses at most one of six shapes."""
    store = empty()
    store.body["suite"] = {"name": "papers/xspecmesh", "report": "xspecmesh"}
    store.body["vocabularies"] = {"llama3-8b": 128256}
    sampling = {"temperature": 0.5, "top_k": 50, "top_p": 0.95}
    same = {"task": "shapes", "dtype": "fp32", "sampling": sampling, "vocabulary": 5121}

    def add(cell: str, key: str, records: list[Any], **changes: Any) -> None:
        backbone, heads = roles[key]["backbone"], roles[key].get("heads")
        params = {"heads": heads, **OPTIONS, **changes} if heads else {}
        method, role = ("multi_head", "method") if heads else ("autoregressive", "baseline")
        base = f"{backbone}-ar"
        cell_meta = meta(cell, backbone=backbone, method=method, role=role, params=params, baseline=base, **same)
        store.add(cell_meta, records[:count])

    for backbone in dict.fromkeys(roles[key]["backbone"] for key in ("A", *rows)):
        key = next(key for key, role in roles.items() if role["backbone"] == backbone and "heads" not in role)
        add(f"{backbone}-ar", key, outputs((0,) * 12, 10.0, 0.2, drafted=0))
    speed = {"B": (1, 1, 1, 1, 0, 0, 0, 0), "C": (1,) * 6, "D": (1,) * 6, "E": (2,) * 4}
    for key in rows:
        if key in speed:
            add(key, key, outputs(speed[key], 12.0, 0.25 if key == "B" else 0.201, lost=0 if key == "E" else None))
    for delta, chamfer in ((0.1, 0.3), (0.3, 0.22), (0.7, 0.2)) if sweep else ():
        add(f"delta={delta}", "E", outputs((2,) * 4, 12.0, chamfer), delta=delta)
        levels = round(10 * delta) // 3 + 1
        add(f"levels={levels}", "E", outputs((1,) * 6, 11.0, 0.2, levels), levels=levels)
        add(f"top={levels}", "E", outputs((1,) * 6, 11.0, chamfer), acceptance="top", accept_top=levels)
        add(f"tree={levels}", "E", outputs((2,) * 4, 13.0, chamfer), drafts="tree", draft_top=levels + 1)
    return store


def test_each_row_of_table_3_is_its_own_cell() -> None:
    rows = table_of(mesh_run(), "xspecmesh_table3")
    assert rows.loc["E", "SCR [tokens/step], printed"] == "2.021"
    scr = rows["SCR [tokens/step], measured"]
    assert scr[list("ABDE")].str[:5].tolist() == ["1.000", "1.500", "2.000", "3.000"] and scr["C"] == UNMEASURED
    assert rows.loc["E", "Step Latency [ms], measured"].startswith("12.00")
    assert rows.loc["E", "Speedup [x], measured"] == "2.50"  # 3 x 10 / 12
    assert rows.loc["E", "wall speed-up"].startswith("2.50")
    assert rows.loc["B", "CD, measured"].startswith(f"{0.25 + 0.01 * np.cos(np.arange(6)).mean():.4f}")
    assert rows["failed"][["A", "E"]].tolist() == ["0/6", "1/6"]
    assert rows.loc["E-tuned", "SCR [tokens/step], measured"].startswith("1.000")


def with_files(store: FakeStore, folder: Path) -> FakeStore:
    """Outputs and conditions as a run keeps them."""
    store.path = folder
    for cell in store.sealed_cells.values():
        for name in set(cell.samples["output"]) - {""}:
            save(CUBE, folder / name.removesuffix(".ply"))
    for i in range(len(LEVELS)):
        file = condition_file(folder, "embedded-mesh-ar", f"shapes/{i}")
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, shapes.points(CUBE, 64, np.random.default_rng(i)))
    return store


def test_a_run_of_the_backbone_alone_has_tables_and_no_empty_figure(tmp_path: Path) -> None:
    store: Any = with_files(mesh_run((), count=3), tmp_path)
    written = report.write(store, tmp_path / "out")
    assert [path.stem for path in written if path.suffix == ".png"] == ["papers-fig7"]
    assert UNMEASURED in (tmp_path / "out" / "papers.md").read_text()


def test_a_file_without_points_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"none\.npy cannot be drawn as points"):
        meshes.cloud(None, tmp_path / "none.npy")


def test_the_suite_has_every_row_and_companions_follow_the_command_line() -> None:
    plan = expand(resolve.load("papers/xspecmesh", resolve.Overrides({"backbones": ["embedded-mesh"]})))
    decoded = {(cell.backbone, cell.config.params.get("heads", "")) for cell in plan.cells}
    assert decoded == {(role["backbone"], role.get("heads", "")) for role in ROLES.values()}
    levels = pd.Series([prompt.category for prompt in next(iter(plan.prompts.values()))]).value_counts(normalize=True)
    assert levels.to_dict() == {"level-0": 0.2, "level-1": 0.4, "level-2": 0.4}
    assert plan.manifest()["vocabularies"]["llama3-8b"] == 128256


@pytest.mark.parametrize("tiny", [False, True])
def test_every_row_of_the_papers_own_models_is_a_cell_of_the_suite(tiny: bool) -> None:
    """With six heads for Fig. 5a a row of four heads says so; it did not, and tables 2 to 4 were empty."""
    resolved = resolve.of_command("papers/xspecmesh --only real", resolve.Overrides(tiny=tiny))
    cells = [(cell.backbone, cell.name, cell.config.params) for cell in expand(resolved).cells]
    roles = reports()["xspecmesh_real"].roles
    assert set(roles) == {"A", "B", "C", "D", "E", "C-tuned", "E-tuned", "rival"}
    for key, role in roles.items():
        setting = {**published("multi_head"), **role} if "heads" in role else dict(role)
        setting["backbone"] = f"tiny:{setting['backbone']}" if tiny else setting["backbone"]
        backbone, name = setting.pop("backbone"), "multi_head" if "heads" in role else "autoregressive"
        assert any(
            (own, method) == (backbone, name) and params.items() >= setting.items() for own, method, params in cells
        ), key


def test_quality_is_judged_at_the_papers_shapes_on_rows_and_their_tuned_backbones() -> None:
    plan = expand(
        resolve.of_command("papers/xspecmesh --only quality", resolve.Overrides({"backbones": ["embedded-mesh"]}))
    )
    decoded = {(cell.backbone, cell.config.params.get("heads", "")) for cell in plan.cells}
    roles = [role for key, role in ROLES.items() if key not in ("B", "rival")]
    assert decoded == {(role["backbone"], role.get("heads", "")) for role in roles}
    assert len(next(iter(plan.prompts.values()))) == 200
    assert set(reports()["xspecmesh_quality"].sheets) < set(reports()["xspecmesh"].sheets)


def test_companions_that_are_no_lists_are_refused() -> None:
    with pytest.raises(UsageError, match="beside is 'embedded-mesh'; map a backbone to a list"):
        resolve.load("papers/xspecmesh", resolve.Overrides({"beside": "embedded-mesh"}))
    with pytest.raises(UsageError, match="'embedded-mesh-mlp-lora' is not a backbone of the suite"):
        resolve.load("papers/xspecmesh", resolve.Overrides({"beside": {}}))


def test_a_run_keeps_the_points_that_its_meshes_were_made_from(tmp_path: Path) -> None:
    """Eight tokens make no mesh; the points are kept too."""
    what = ("--method", "autoregressive", "--backbone", "embedded-mesh", "--task", "{name: shapes, limit: 1}")
    rest = ("--set", "prove=false", "--set", "greedy_check={prompts: 0}", "--max-new-tokens", 8, "--offline")
    assert stride("run", *what, *rest, "--out", tmp_path / "run").code == 0
    store = Store.open(tmp_path / "run")
    (cell,) = (store.cell(name) for name in store.cells())
    points = np.load(condition_file(store.path, cell.name, "shapes/0"))
    np.testing.assert_array_equal(points, TASKS.get("shapes")().prompts()[0].condition)
    assert cell.meta.vocabulary == presets.load("embedded-mesh", "fp32").capabilities.vocabulary


def test_a_real_backbone_fills_the_table_where_the_suite_gives_it_a_role() -> None:
    """A user's heads for BPT fill the rows of A and E; the suite's other roles are empty."""
    roles = {"A": {"backbone": "bpt"}, "E-tuned": {"backbone": "bpt"}, "E": {"backbone": "bpt", "heads": "mine"}}
    store = mesh_run(("A", "E"), roles=roles)
    store.body["suite"] = {"name": "mine", "report": {"name": "xspecmesh", "roles": roles}}
    (sheet,) = report.printed_table("xspecmesh_table3", run_of(store))
    scr = frame_of(sheet)["SCR [tokens/step], measured"]
    assert scr[["A", "E"]].str[:5].tolist() == ["1.000", "3.000"] and scr["D"] == UNMEASURED
    assert "measured on bpt fp32" in sheet.title


@pytest.mark.slow
def test_the_page_is_what_it_was(tmp_path: Path) -> None:
    """All rows with every setting of Figs. 5 and 6, the baseline with other seeds, and a row that did not run."""
    store = mesh_run(sweep=True)
    base = store.cell("embedded-mesh-ar")
    base.facts["floor"] = "again"
    store.add({**base.facts, "cell": "again", "role": "floor"}, outputs((0,) * 12, 10.0, 0.21))
    planned = meta("t", backbone="embedded-mesh-truncated", role="baseline", task="shapes")
    store.skip(planned, "WeightsError: they do not come with this version")
    assert_page(with_files(store, tmp_path), "xspecmesh")
