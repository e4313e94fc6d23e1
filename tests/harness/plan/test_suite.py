"""Suite files: every error at once with its line, sweeps unrolled, one cell id for each setting."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import UsageError
from stridebench.harness.machine import device
from stridebench.harness.plan import lookup, presets, resolve, suite
from stridebench.harness.plan.cells import Cell, Plan
from stridebench.harness.plan.expand import expand
from stridebench.harness.plan.overrides import Overrides
from stridebench.harness.plan.planned_method import PlannedMethod
from stridebench.harness.registry import METHODS
from stridebench.reports.papers import paper_files

BASE = "methods: [sjd]\nbackbones: [tabular]\ntasks: [tabular]\n"


@pytest.fixture()
def write(tmp_path: Path):
    def to(text: str, name: str = "mine.yaml") -> str:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return to


def refused(name: str, overrides: resolve.Overrides = resolve.NOTHING) -> str:
    with pytest.raises(UsageError) as caught:
        resolve.load(name, overrides)
    return str(caught.value)


def lines_of(message: str, path: str) -> dict[int, str]:
    """The message's text for each line of the file."""
    texts: dict[int, str] = {}
    for row in message.splitlines():
        match = re.fullmatch(rf"{re.escape(path)}:(\d+): (.*)", row)
        assert match, f"no file and line in {row!r}"
        texts[int(match[1])] = texts.get(int(match[1]), "") + match[2]
    return texts


def planned(**data: Any) -> Plan:
    full = {"methods": ["sjd"], "backbones": ["tabular"], "tasks": ["tabular"], **data}
    return expand(resolve.resolve(full, resolve.Lines("test", None)))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    for name in ("absent.yaml", "folder.yaml", "bytes.yaml"):
        assert str(tmp_path / name) in refused(str(tmp_path / name))
    (tmp_path / "control.yaml").write_text("methods: \x01\n")
    assert refused(str(tmp_path / "control.yaml")).startswith(f"{tmp_path}/control.yaml:1: ")


def test_all_errors_are_reported_at_once_with_their_lines(write):
    path = write(
        "methods:\n"
        "  - sjd\n"
        "  - sjdd\n"
        "  - {name: sjdpp, windo: 3}\n"
        "backbones: [tabular, tabulr]\n"
        "tasks:\n"
        "  - tabular\n"
        "  - {name: tabular, promptscount: 2}\n"
        "  - humanevl\n"
        "temprature: 0\n"
    )
    texts = lines_of(refused(path), path)
    assert {line: next(iter(re.findall(r"did you mean '(.*?)'", text)), "") for line, text in texts.items()} == {
        3: "sjd",
        4: "window",
        5: "tabular",
        8: "prompts_count",
        9: "humaneval",
        10: "temperature",
    }


SJD = "methods: [{}]\nbackbones: [tabular]\ntasks: [tabular]\n"
ENTRY = "methods: [sjd]\nbackbones: [{}]\ntasks: [tabular]\n"
TASK = "methods: [sjd]\nbackbones: [tabular]\ntasks: [{}]\n"
IMAGE = "methods: [sjd]\ntasks: [tabular]\nbackbones:\n- name: embedded-image\n  {}\n"
REFUSED = [
    ("methods: [sjd\nbackbones: tabular\n", 2, ""),
    ("methods:\n\t- sjd\n", 2, ""),
    ("- sjd\n", 1, ""),
    ("", 1, ""),
    ("methods: [sjd]\nmethods: [jacobi]\nbackbones: [tabular]\ntasks: [tabular]\n", 2, "methods"),
    ("methods: [sjd]\nbackbones: [tabular]\n", 1, "tasks"),
    (BASE + "variants: [hot]\n", 4, "maps names to keys of a suite"),
    (BASE + "variants: {1: {seed: 2}}\n", 4, "quote a name that is a number"),
    (BASE + "temprature: [0]\n", 4, "did you mean 'temperature'"),
    (BASE + "greedy_check: {prompt: 2}\n", 4, "did you mean 'prompts'"),
    (BASE + "dtype: bf16\n", 4, "dtype: unknown key; dtype belongs to a backbone's entry"),
    (BASE + "limit: 2\n", 4, "limit: unknown key; limit belongs to a task's entry"),
    (BASE + "window: 8\n", 4, "window belongs to a method's entry: methods: [{name: "),
    (BASE + "prompt_chars: 8\n", 4, "prompt_chars belongs to a task's entry: tasks: [{name: continuation"),
    (BASE + "resume: true\n", 4, "resume belongs to the command line: stride run --resume"),
    (BASE + "greedy_check: {temperature: 1}\n", 4, "temperature belongs to the suite itself, at its top level"),
    (SJD.format("{name: sjd, limit: 2}"), 1, "sjd has no parameter 'limit'; limit belongs to a task's entry"),
    (SJD.format("{name: sjd, weights: int8}"), 1, "weights belongs to a backbone's entry: backbones: [{name: NAME"),
    (SJD.format("{name: sjd, windw: 1}"), 1, "sjd has no parameter 'windw'; did you mean 'window'"),
    (SJD.format("{name: sjd, at: 2}"), 1, "at 2 is not a temperature of the suite"),
    (SJD.format("{name: sjd, tasks: [gsm9k]}"), 1, "'gsm9k' is not a task of the suite"),
    (SJD.format("{name: sjd, at: []}"), 1, "at is an empty list, so sjd would run nowhere"),
    (SJD.format("{name: sjd, tasks: []}"), 1, "tasks is an empty list"),
    (SJD.format("{name: sjd, backbones: []}"), 1, "backbones is an empty list"),
    (SJD.format("{name: sjd, backbones: [other]}"), 1, "'other' is not a backbone of the suite"),
    (BASE + "report: sjdp\n", 4, "there is no report 'sjdp'; did you mean 'sjdpp'?"),
    (BASE + "report:\n  roles: {}\n  name: sjdp\n", 6, "there is no report 'sjdp'; did you mean 'sjdpp'?"),
    (BASE + "max_new_tokens: 0\n", 4, "max_new_tokens"),
    (BASE + "max_new_tokens: many\n", 4, "max_new_tokens"),
    *((BASE + f"{key}: {10**20}\n", 4, str(2**31 - 1)) for key in ("max_new_tokens", "batch", "top_k", "repetitions")),
    (BASE + "repetitions: 0\n", 4, "repetitions"),
    (BASE + "warmup: -1\n", 4, "warmup"),
    (BASE + "seed: x\n", 4, "seed"),
    (BASE + "top_p: 0\n", 4, "top_p"),
    (BASE + "top_p: 1.5\n", 4, "top_p"),
    (BASE + "top_k: -1\n", 4, "top_k"),
    (BASE + "order: sideways\n", 4, "order"),
    (BASE + "threads: 0\n", 4, "threads"),
    (BASE + "temperature:\n  - 0\n  - -1\n", 6, "-1"),
    (BASE + "temperature: .nan\n", 4, "temperature"),
    (BASE + "temperature: hot\n", 4, "temperature"),
    (BASE + "temperature: []\n", 4, "temperature"),
    (BASE + "greedy_check: {tokens: 0}\n", 4, "greedy_check"),
    (BASE + "stop_at_eos: perhaps\n", 4, "stop_at_eos"),
    (BASE + "isolation: thread\n", 4, "isolation"),
    (BASE + "sample_limit_s: 0\n", 4, "sample_limit_s"),
    (BASE + "sample_limit_s: .nan\n", 4, "sample_limit_s"),
    (BASE + "cell_limit_s: .inf\n", 4, "cell_limit_s"),
    ("methods:\n  - {window: 4}\nbackbones: [tabular]\ntasks: [tabular]\n", 2, "name"),
    ("methods:\nbackbones: [tabular]\ntasks: [tabular]\n", 1, "methods"),
    (SJD.format(3), 1, "methods"),
    (SJD.format("{name: sjd, window: 1}"), 1, "window"),
    (SJD.format("{name: sjd, window: wide}"), 1, "window"),
    (SJD.format("{name: sjd, init: {a: 1}}"), 1, "init"),
    (SJD.format("{name: sjdpp, tau: []}"), 1, "tau"),
    (ENTRY.format(""), 2, "backbones"),
    (ENTRY.format("{dtype: fp64}"), 2, "name"),
    (ENTRY.format("{name: tabular, dtype: fp8}"), 2, "dtype"),
    (ENTRY.format("{name: tabular, sampling: {top_p: 2}}"), 2, "0 < top_p <= 1"),
    (ENTRY.format("{name: tabular, max_new_tokens: 0}"), 2, "max_new_tokens"),
    (IMAGE.format("wights: int4"), 5, "wights"),
    (IMAGE.format("noise: 0.1"), 5, "unknown key; embedded-image has the parameters "),
    (IMAGE.format("weights: [int4]"), 5, "weights"),
    (IMAGE.format("weights: 'a,b'"), 5, "weights"),
    (IMAGE.format("source: x"), 5, "source"),
    (TASK.format(""), 3, "tasks"),
    (TASK.format("{name: tabular, limit: 0}"), 3, "limit"),
    (TASK.format("{name: tabular, limit: two}"), 3, "limit"),
    (TASK.format("{name: tabular, length: 0}"), 3, "length"),
    (TASK.format("{name: tabular, limit: 1}, {name: tabular, limit: 4}"), 3, "another limit; keep one"),
    (TASK.format("{name: digits, sampling: 3}"), 3, "sampling: Input should be a valid dictionary; found 3"),
    (TASK.format("{name: digits, sampling: {top_p: 2}}"), 3, "0 < top_p <= 1"),
    (TASK.format("{name: digits, sampling: {topk: 2}}"), 3, "topk"),
    (TASK.format("{name: digits, max_new_tokens: 0}"), 3, "Input should be greater than or equal to 1; found 0"),
    (TASK.format("{name: digits, backbones: 3}"), 3, "backbones.0: Input should be a valid string; found 3"),
    (TASK.format("{name: humaneval, chat: perhaps}"), 3, "chat: Input should be a valid boolean"),
]


@pytest.mark.parametrize(("text", "line", "words"), REFUSED)
def test_what_is_wrong_is_said_on_its_line(write, text, line, words):
    path = write(text)
    assert words in lines_of(refused(path), path)[line]


def test_the_keys_of_a_suite_are_those_that_the_hint_knows():
    assert set(lookup.SUITE) == set(suite.Suite.model_fields)


def test_the_known_reports_are_those_of_the_papers_files():
    assert set(suite.reports()) == set(paper_files.reports())


def test_threads_that_are_measured_have_the_key_of_a_suite_that_names_none(write):
    assert resolve.load(str(write(BASE + "threads: auto\n"))).suite.threads is None


def test_an_error_of_an_override_names_no_line(write):
    overrides = resolve.Overrides({"seed": "x"}, options={"seed": "--seed"})
    message = refused(write(BASE + "seed: 1\n"), overrides)
    assert message.startswith("--seed: seed: ") and not re.search(r":\d+:", message)


def test_a_key_of_the_entries_of_a_name_can_be_set(tmp_path):
    values = {"tasks.coco.reference": str(tmp_path), "backbones.tar-1.5b.max_new_tokens": 9}
    loaded = resolve.load("papers/mulo_sd", resolve.Overrides(values, only="real"))
    assert [vars(use.task).get("reference") for use in loaded.tasks] == ["", "", str(tmp_path)]
    assert [entry.max_new_tokens for entry in loaded.suite.backbones] == [None, 9, None]
    loaded = resolve.load("quick", resolve.Overrides({"backbones.smollm2-135m.weights": "int8"}))
    assert "smollm2-135m:weights=int8" in [entry.name for entry in loaded.suite.backbones]
    for key in ("tasks.cocoa.reference", "tasks.coco"):
        wrong = resolve.Overrides({key: 1}, options={key: f"--set {key}"}, only="real")
        with pytest.raises(UsageError, match=f"--set {key}: write tasks.NAME.KEY=VALUE.*: geneval, dpg_bench, coco"):
            resolve.load("papers/mulo_sd", wrong)


def test_all_gives_models_of_sudokus_sudokus_and_no_code():
    """Their context is 64 tokens; a prompt of HumanEval has 345, so every such sample failed."""
    tasks = {use.name: use.backbones for use in resolve.load("all").tasks}
    assert not [name for name in tasks["humaneval"] if "sudoku" in name]
    models = {name for name in presets.by_name() if name.startswith("embedded-sudoku")}
    assert set(tasks["sudoku"]) == models and tasks["humaneval"]


def test_native_is_the_type_of_the_device_that_the_suite_will_run_on(write, monkeypatch):
    monkeypatch.setattr(device, "multiplies_bf16", lambda: False)
    path = write(BASE.replace("backbones: [tabular]", "backbones: [{name: tabular, dtype: [native, fp64]}]"))
    assert [entry.dtype for entry in resolve.load(path).suite.backbones] == [("fp32", "fp64")]
    on_a_gpu = resolve.load(path, resolve.Overrides(device="cuda"))
    assert [entry.dtype for entry in on_a_gpu.suite.backbones] == [("bf16", "fp64")]
    by_option = resolve.load(path, resolve.Overrides(dtypes=("native",)))
    assert [entry.dtype for entry in by_option.suite.backbones] == [("fp32",)]


def test_sweeps_are_unrolled_in_order_and_duplicates_dropped(write):
    path = write(
        "methods:\n"
        "  - {name: sjdpp, tau: [0.25, 0.75], reuse: [paper, C]}\n"
        "  - {name: sjdpp, tau: 0.25, reuse: paper}\n"
        "backbones: tabular\n"
        "tasks: {name: tabular, length: [2, 3], limit: 1}\n"
    )
    loaded = resolve.load(path)
    assert [(method.tau, method.reuse) for method in loaded.methods] == [
        (0.25, "paper"),
        (0.25, "C"),
        (0.75, "paper"),
        (0.75, "C"),
    ]
    assert [(use.task.length, use.limit) for use in loaded.tasks] == [(2, 1), (3, 1)]


def test_all_selects_every_method_and_every_ready_backbone(write):
    loaded = resolve.load(write("methods: all\nbackbones: all\ntasks: tabular\n"))
    assert [METHODS.name_of(type(method)) for method in loaded.methods] == list(METHODS)
    assert {entry.name for entry in loaded.suite.backbones} == {
        name for name, spec in presets.by_name().items() if spec.ready()
    }


def test_defaults_come_from_the_adapters(write):
    loaded = resolve.load(write(BASE))
    assert loaded.suite.name == "mine"
    assert loaded.suite.backbones[0].dtype == ("fp64",)
    assert loaded.suite.temperature == (0.0,)
    assert len(planned(temperature=[0.0, -0.0]).cells) == len(planned().cells)
    assert loaded.methods == (METHODS.get("sjd")(),)


def test_a_variant_replaces_keys_and_its_errors_name_its_lines(write):
    path = write(BASE + "variants:\n  hot:\n    temperature: [1]\n  wrong:\n    max_new_tokens: 0\n")
    stem = resolve.load(path).suite.name
    hot = resolve.load(path, resolve.Overrides(only="hot")).suite
    assert (hot.name, hot.temperature, hot.methods) == (f"{stem}_hot", (1.0,), resolve.load(path).suite.methods)
    line = BASE.count("\n") + 5
    assert f"{path}:{line}: max_new_tokens" in refused(path, resolve.Overrides(only="wrong"))
    assert "did you mean 'hot'" in refused(path, resolve.Overrides(only="hott"))


SUITES = [
    pytest.param(name, marks=pytest.mark.slow if name in ("all", "papers/cross_regression --only real") else ())
    for name in sorted(resolve.commands())
]


@pytest.mark.parametrize("name", SUITES)
def test_a_shipped_suite_resolves_and_expands(name):
    plan = expand(resolve.of_command(name))
    ids = [cell.id for cell in (*plan.cells, *plan.engines)]
    assert (plan.cells or plan.runnable_engines) and len(set(ids)) == len(ids)
    assert all(plan.baseline(cell).role == "baseline" for cell in plan.cells)


def test_every_method_is_in_a_suite_that_names_it():
    shipped = {METHODS.get(name) for name in METHODS if METHODS.source(name).startswith("methods.")}
    named = {
        type(method) for name in resolve.commands() if name != "all" for method in resolve.of_command(name).methods
    }
    assert named >= shipped - {METHODS.get("autoregressive")}


def test_a_suite_survives_pickling(write):
    """On the way to a Ray worker, and when --limit is applied."""
    loaded = resolve.load(write("methods: [{name: sjdpp, tau: .inf}]\nbackbones: tabular\ntasks: tabular\n"))
    assert resolve.resolve_again(pickle.loads(pickle.dumps(loaded.suite.model_dump()))).methods == loaded.methods


def test_a_stored_suite_resolves_without_the_temperature_that_an_option_removed():
    loaded = resolve.load("nightly", Overrides({"temperature": [1.0]}, options={"temperature": "--temperature"}))
    again = resolve.resolve_again(loaded.suite.model_dump(mode="json"))
    assert expand(again).cells == expand(loaded).cells and any(use.at == (0,) for use in again.uses)


def cell(**changes: Any) -> Cell:
    return replace(planned().cells[1], **changes)


CHANGES = {
    "backbone": "random-llama-1m",
    "dtype": "fp32",
    "sampling": Sampling(1.0),
    "max_new_tokens": 5,
    "stop_at_eos": False,
    "seed": 1,
    "role": "floor",
    "planned": PlannedMethod.of(METHODS.get("sjd")(window=5)),
}


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_cell_of_another_setting_has_another_id(name):
    assert cell(**{name: CHANGES[name]}).id != cell().id


def test_the_order_of_methods_and_other_cells_change_no_id():
    first = {c.id for c in planned(methods=["sjd", "jacobi"]).cells}
    assert first == {c.id for c in planned(methods=["jacobi", "sjd"]).cells}
    assert first < {c.id for c in planned(methods=["jacobi", "sjd"], temperature=[0, 1]).cells}


def test_each_setting_above_zero_has_a_second_baseline():
    plan = planned(temperature=[0, 1])
    assert [(c.role, c.sampling.temperature) for c in plan.cells] == [
        ("baseline", 0),
        ("method", 0),
        ("baseline", 1),
        ("floor", 1),
        ("method", 1),
    ]
    assert [plan.floor(c) is None for c in plan.cells] == [True, True, False, False, False]


def test_autoregressive_named_among_the_methods_runs_once():
    assert [c.role for c in planned(methods=["autoregressive", "sjd"]).cells] == ["baseline", "method"]


SKIPS = {
    "drafter": (
        {"methods": [{"name": "speculative", "drafter": "nope"}], "backbones": ["random-llama-1m"]},
        "nope",
    ),
    "text": ({"tasks": ["continuation"]}, "tokenizer"),
}


@pytest.mark.parametrize("case", SKIPS)
def test_a_cell_that_cannot_start_is_skipped_with_its_reason(case):
    data, word = SKIPS[case]
    reasons = [c.skip for c in planned(**data).cells if c.role == "method"]
    assert reasons and all(reason is not None and word in reason for reason in reasons)


def test_methods_that_differ_in_the_seventh_digit_have_different_keys():
    """--resume and the gate compare the manifest's key."""
    keys = [planned(methods=[{"name": "sjdpp", "tau": tau}]).manifest()["key"] for tau in (0.12345671, 0.12345672)]
    assert keys[0] != keys[1]


def test_each_prompt_of_a_swept_task_is_part_of_the_key(tmp_path):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    second.write_text("the same words again and again " * 40)
    keys = []
    for text in ("one text of some length ", "other words in their place "):
        first.write_text(text * 40)
        tasks = [{"name": "continuation", "file": [str(first), str(second)]}]
        keys.append(planned(backbones=["random-llama-1m"], tasks=tasks).manifest()["key"])
    assert keys[0] != keys[1]


def test_a_wrong_entry_without_a_file_is_named_by_its_position():
    with pytest.raises(UsageError, match=r"\(methods\.0\): multi_head: delta is 1\.5"):
        planned(methods=[{"name": "multi_head", "delta": 1.5}])


def test_an_entry_can_be_limited_to_some_temperatures(write):
    loaded = resolve.load(
        write("methods: [prompt_lookup, {name: sjd, at: 1}]\nbackbones: tabular\ntasks: tabular\ntemperature: [0, 1]\n")
    )
    cells = [(cell.name, cell.sampling.temperature) for cell in expand(loaded).cells if cell.role == "method"]
    assert cells == [("prompt_lookup", 0), ("prompt_lookup", 1), ("sjd", 1)]


def test_an_entry_can_be_limited_to_some_tasks(write):
    """An adapter trained on GSM8K decodes GSM8K alone."""
    tasks = "tasks: [gsm8k, {name: continuation, limit: 1}]\nbackbones: embedded-code\n"
    path = write("methods: [prompt_lookup, {name: sjd, tasks: continuation}]\n" + tasks)
    cells = [(cell.name, cell.task.name) for cell in expand(resolve.load(path)).cells if cell.role == "method"]
    assert cells == [("prompt_lookup", "gsm8k"), ("prompt_lookup", "continuation"), ("sjd", "continuation")]


def test_a_backbones_entry_takes_parameters_of_its_adapter(write):
    text = "methods: [{name: sjd, backbones: embedded-image}]\n"
    text += "tasks: [{name: emoji_scenes, backbones: [embedded-image]}]\n"
    text += "backbones: [embedded-image, {name: embedded-image, weights: int4, guidance: 3}]\n"
    plan = expand(resolve.load(write(text)))
    assert {cell.backbone for cell in plan.runnable if cell.name == "sjd"} == {
        "embedded-image",
        "embedded-image:weights=int4,guidance=3",
    }
    assert len({cell.id for cell in plan.cells}) == len(plan.cells)


SUITE_WITH_CHAT = """methods: [prompt_lookup]
backbones:
  - {name: tiny:qwen2.5-7b, chat: true, max_new_tokens: 90}
  - tiny:llama3-8b
  - {name: tiny:llama3-8b, weights: int8}
tasks: [{name: gsm8k, max_new_tokens: 20}]
max_new_tokens: 30
"""


def test_a_backbones_entry_has_a_budget_of_its_own(write):
    plan = expand(resolve.load(str(write(SUITE_WITH_CHAT))))
    budgets = {cell.backbone: cell.max_new_tokens for cell in plan.cells}
    assert budgets == {"tiny:qwen2.5-7b:chat=true": 90, "tiny:llama3-8b": 20, "tiny:llama3-8b:weights=int8": 20}
    assert [entry.get("max_new_tokens") for entry in plan.manifest()["key"]["backbones"]] == [90, None, None]


def test_a_backbones_entry_has_a_sampling_of_its_own(write):
    """LLaDA and Dream have theirs whatever the suite's temperatures."""
    entry = "{name: tiny:dream-7b, sampling: {temperature: 0.2, top_p: 0.95}}"
    rest = "methods: [masked_diffusion, prompt_lookup]\ntasks: [gsm8k]\ntemperature: [0, 1]\n"
    path = write(f"backbones: [tiny:llama3-8b, {entry}]\n{rest}")
    plan = expand(resolve.load(path))
    assert {(c.backbone, c.sampling.temperature, c.sampling.top_p) for c in plan.cells} == {
        ("tiny:dream-7b", 0.2, 0.95),
        ("tiny:llama3-8b", 0.0, 1.0),
        ("tiny:llama3-8b", 1.0, 1.0),
    }
    assert plan.manifest()["key"]["backbones"][1]["sampling"] == {"temperature": 0.2, "top_p": 0.95}


def test_a_task_has_its_repetitions_and_the_command_line_replaces_them(write):
    """GenEval has four pictures a prompt next to tasks of one."""
    tasks = "tasks: [{name: tabular, prompts_count: 2, repetitions: 4}, {name: tabular, prompts_count: 3}]\n"
    path = write("methods: [sjd]\nbackbones: tabular\nrepetitions: 2\n" + tasks)

    def expected(**values):
        plan = expand(resolve.load(path, resolve.Overrides(values)))
        return {len(plan.prompts[cell.task]): plan.meta(cell).expected for cell in plan.cells}

    assert expected() == {2: 8, 3: 6}
    assert expected(repetitions=1) == {2: 2, 3: 3}


def test_a_bare_name_of_the_command_line_takes_the_suites_entry(write):
    """`--backbone NAME` of a model that the suite has with parameters alone; a model of its own name stays plain."""

    def chosen(*names):
        resolved = resolve.load(str(write(SUITE_WITH_CHAT)), resolve.Overrides({"backbones": list(names)}))
        return [(entry.name, entry.max_new_tokens) for entry in resolved.suite.backbones]

    assert chosen("tiny:qwen2.5-7b") == [("tiny:qwen2.5-7b:chat=true", 90)]
    assert chosen("tiny:llama3-8b", "tabular") == [("tiny:llama3-8b", None), ("tabular", None)]
    assert chosen("tiny:qwen2.5-7b:chat=false") == [("tiny:qwen2.5-7b:chat=false", None)]
