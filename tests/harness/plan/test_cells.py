"""Cells of suites: tasks and batches with their own backbones, sampling and baselines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from stridebench.harness.errors import UsageError
from stridebench.harness.plan import resolve
from stridebench.harness.plan.cells import Plan
from stridebench.harness.plan.expand import expand
from tests.support.runs import plan_of

MIXED = """
methods: [jacobi, {name: sjd, backbones: [tabular]}]
backbones: [tabular, embedded-digits-s]
tasks:
  - {name: tabular, prompts_count: 2}
  - {name: digits, limit: 2, max_new_tokens: 64, sampling: {temperature: 1, top_k: 5}}
max_new_tokens: 4
"""


def plan(text):
    return expand(resolve.resolve(yaml.safe_load(text), resolve.Lines("test", None)))


def test_a_task_runs_on_the_backbones_of_its_modality():
    planned = plan(MIXED)
    assert {(c.backbone, c.task.name) for c in planned.cells} == {
        ("tabular", "tabular"),
        ("embedded-digits-s", "digits"),
    }
    assert all(cell.skip is None for cell in planned.cells)
    assert {c.backbone for c in planned.cells if c.name == "sjd"} == {"tabular"}


def test_a_task_has_its_own_sampling_and_budget():
    for cell in plan(MIXED).cells:
        image = cell.task.name == "digits"
        assert (cell.sampling.temperature, cell.sampling.top_k) == ((1.0, 5) if image else (0.0, 0))
        assert cell.max_new_tokens == (64 if image else 4)


def test_a_task_without_a_suitable_backbone_is_skipped_with_the_reason():
    planned = plan("{methods: [jacobi], backbones: [embedded-digits-s], tasks: [{name: tabular, prompts_count: 1}]}")
    assert {cell.skip for cell in planned.cells} == {"the backbone makes image, and the task scores tabular"}


def test_a_task_may_be_limited_to_backbones():
    text = "{methods: [jacobi], backbones: [tabular], tasks: [{name: tabular, backbones: [embedded-digits-s]}]}"
    assert {cell.skip for cell in plan(text).cells} == {"the suite keeps the task to embedded-digits-s"}


@pytest.mark.parametrize("batch", [0, [], [1, 0], "all", 1.5, True])
def test_a_suite_refuses_a_wrong_batch(batch: Any) -> None:
    with pytest.raises(UsageError, match="batch is a whole number from 1 to 2147483647, or a list of them"):
        plan_of(methods=["sjd"], batch=batch)


def test_a_batch_is_in_the_key_and_pairs_with_its_own_baseline() -> None:
    plan = plan_of(methods=["sjd"], batch=[1, 3])
    assert [(c.config.batch, plan.baseline(c).batch) for c in plan.cells] == [(1, 1), (1, 1), (3, 3), (3, 3)]
    assert [".B3-" in cell.id for cell in plan.cells] == [False, False, True, True]
    assert [c.id for c in plan.cells[:2]] == [c.id for c in plan_of(methods=["sjd"]).cells]
    assert "batch" not in plan_of(methods=["sjd"]).manifest()["key"] and plan.manifest()["key"]["batch"] == (1, 3)


def test_isolation_and_limits_are_not_in_the_key_and_baselines_are_never_isolated() -> None:
    plan = plan_of(methods=["sjd"], temperature=1, isolation="process", sample_limit_s=None, cell_limit_s=5)
    assert plan.manifest()["key"] == plan_of(methods=["sjd"], temperature=1).manifest()["key"]
    assert not {"isolation", "sample_limit_s", "cell_limit_s"} & set(plan.manifest()["key"])
    assert {cell.role for cell in plan.cells if plan.isolated(cell)} == {"method"}
    assert not any(map(plan_of(methods=["sjd"]).isolated, plan.cells))


def test_a_suite_of_too_many_cells_is_refused_before_any_is_made() -> None:
    """A million: a thousand windows at a thousand temperatures."""
    methods = [{"name": "sjd", "window": list(range(2, 1002))}]
    with pytest.raises(UsageError, match=r"has more than 100,000 cells: 1,000 methods on 1 backbones and 1 tasks"):
        plan_of(methods=methods, temperature=[number / 1000 for number in range(1000)])


def test_lists_of_a_method_that_make_too_many_settings_are_refused() -> None:
    entry = {"name": "sjdpp", "window": list(range(2, 1002)), "tau": [number / 1000 for number in range(1000)]}
    with pytest.raises(UsageError, match=r"methods.*the lists of sjdpp make 1,000,000 settings, more than 100,000"):
        plan_of(methods=[entry])


def test_limit_is_the_word_of_every_task_and_never_part_of_a_cell(tmp_path: Path) -> None:
    def planned(entry: str) -> Plan:
        path = tmp_path / "suite.yaml"
        path.write_text(f"methods: [jacobi]\nbackbones: [embedded-digits-s]\ntasks: [{entry}]\n")
        return expand(resolve.load(str(path)))

    three, five = planned("{name: digits, limit: 3}"), planned("{name: digits, limit: 5}")
    assert [cell.id for cell in three.cells] == [cell.id for cell in five.cells]
    prompts = [[prompt.id for prompt in next(iter(plan.prompts.values()))] for plan in (three, five)]
    assert len(prompts[0]) == 3 and prompts[1][:3] == prompts[0] and len(prompts[1]) == 5
    for word in ("n", "count"):
        with pytest.raises(UsageError, match=rf"digits has no parameter '{word}'; did you mean 'limit'\?"):
            planned(f"{{name: digits, {word}: 3}}")
    with pytest.raises(UsageError, match="limit=0; it must be 1 or more"):
        planned("{name: digits, limit: 0}")


@pytest.mark.parametrize("suite", ["quick", "trees"])
def test_a_label_as_a_table_prints_it_names_a_method(suite):
    labels = [
        cell.label for cell in expand(resolve.of_command(suite, resolve.Overrides())).cells if cell.role == "method"
    ]
    chosen = resolve.Overrides({"methods": list(dict.fromkeys(labels))})
    again = {cell.label for cell in expand(resolve.of_command(suite, chosen)).cells}
    assert labels and set(labels) <= again and any("=" in label for label in labels)


@pytest.mark.parametrize("text", ["sjdpp tau=[1", "sjdpp reuse", "autoregressive (other seeds)"])
def test_a_text_that_is_no_label_is_an_unknown_method(text):
    with pytest.raises(UsageError, match="there is no method"):
        expand(resolve.of_command("quick", resolve.Overrides({"methods": [text]})))


BASE = {"backbones": ["smollm2-135m"], "methods": ["prompt_lookup"]}


def test_prompts_of_a_task_become_a_user_s_turn_and_cells_differ() -> None:
    plain = plan_of(**BASE, tasks=[{"name": "humaneval", "limit": 1}])
    chat = plan_of(**BASE, tasks=[{"name": "humaneval", "limit": 1, "chat": True}])
    (prompt,), (turn,) = (next(iter(plan.prompts.values())) for plan in (plain, chat))
    assert prompt.messages == () and turn.messages == ({"role": "user", "content": prompt.text},)
    assert turn.text == prompt.text, "scorers read it"
    assert not {cell.id for cell in plain.cells} & {cell.id for cell in chat.cells}
