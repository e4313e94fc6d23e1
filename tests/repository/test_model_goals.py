"""Goals of the models that come with the package, measured on held-out prompts; unreached goals are strict xfails.

A measurement takes minutes and needs STRIDE_MEASURE=1. The cards record the figures of the training.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.models import Models
from stridebench.harness.core.run import Run, open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Scored
from stridebench.harness.errors import OutputError
from stridebench.harness.plan import presets
from stridebench.harness.record import paired_tests, stats
from stridebench.harness.registry import METHODS
from stridebench.reports.papers.xspecmesh_facts import MARGIN
from stridebench.tasks.emoji_scenes import EmojiScenes
from stridebench.tasks.shapes import Shapes

GOALS = {"object": 0.95, "colour": 0.9, "count": 0.85, "position": 0.85, "overall": 0.75}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("STRIDE_MEASURE"), reason="takes ten minutes; STRIDE_MEASURE=1 asks for it"),
]


@pytest.fixture(scope="module")
def pictures() -> list[Scored]:
    """Of 256 held-out captions, at T = 1 and the guidance of the preset."""
    model, task = presets.load("embedded-image", "fp32"), EmojiScenes(limit=256)
    outputs = []
    with torch.inference_mode():
        for prompt in task.prompts():
            draws = SeededDraws(0, "emoji_scenes", prompt.id, 0)
            models = Models(model, lambda name: model, prompt)
            run = Run.of(models, Sampling(1.0), model.capabilities.grid.length, draws, stop_at_eos=False)
            tokens = decode(METHODS.get("autoregressive")(), run).tokens
            picture = model.decode(tokens)
            outputs.append(Scored(prompt, 0, picture, task.score(prompt, picture, tokens)))
    return outputs


@pytest.mark.parametrize("name", GOALS)
def test_pictures_agree_with_their_captions(pictures, name):
    scores = [one.scores[name] for one in pictures if name in one.scores]
    print(name, np.mean(scores), "of", len(scores))
    assert np.mean(scores) >= GOALS[name]


def test_pictures_do_not_agree_with_other_captions(pictures):
    swapped = EmojiScenes(limit=256).score_set(pictures)["swapped"]
    print("under another caption:", swapped)
    assert swapped.value <= 0.05


JACOBI = {
    "SJD": ("sjd", {"window": 16}),
    "paper": ("sjdpp", {"window": 16}),
    "M": ("sjdpp", {"window": 16, "reuse": "M"}),
    "G": ("sjdpp", {"window": 16, "reuse": "G"}),
}


def jacobi(dtype: str, names: Iterable[str]):
    """Tokens and target passes of 96 captions by method, one after the other for each caption.

    Sampling and window are those of papers/sjdpp_exact. 24 captions do not tell the gain of reuse from 0.
    """
    model = presets.load("embedded-image", dtype)
    rows = {name: [] for name in names}
    with torch.inference_mode():
        for prompt in EmojiScenes(limit=96).prompts():
            for name, records in rows.items():
                method, options = JACOBI[name]
                draws = SeededDraws(0, "emoji_scenes", prompt.id, 0)
                settings = (Sampling(1.0, top_k=250), model.capabilities.grid.length, draws)
                run = Run.of(Models(model, lambda name: model, prompt), *settings, stop_at_eos=False)
                result = decode(METHODS.get(method)(**options), run)
                totals = {"output": len(result.tokens), "nfe": sum(s.nfe for s in result.steps)}
                records.append({"prompt": prompt.id, "repetition": 0, **totals})
    return {name: pd.DataFrame(records).set_index(["prompt", "repetition"]) for name, records in rows.items()}


@pytest.fixture(scope="module")
def passes():
    return jacobi("fp32", JACOBI)


def test_sjd_makes_1_8_tokens_a_pass(passes):
    tokens_per_pass = stats.ratio(passes["SJD"], "output", "nfe")
    print("SJD:", tokens_per_pass)
    assert tokens_per_pass.estimate >= 1.8


@pytest.mark.parametrize("reuse", ["paper", "M", "G"])
def test_reuse_makes_more_tokens_a_pass_than_sjd(passes, reuse):
    """Paired by caption; the lower bound is one-sided at 97.5 %."""
    gain = stats.difference(passes["SJD"], passes[reuse], "output", "nfe")
    print(f"{reuse} less SJD:", gain)
    assert gain.low > 0


def summary(folder: Path, *words: str) -> pd.DataFrame:
    """Summary of a run with one thread in a process of its own."""
    threads = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "stridebench.harness.cli.main", "run", *words, "--out", str(folder)]
    subprocess.run(command, check=True, env=threads)
    return pd.read_csv(folder / "report" / "summary.csv")


def compared(folder: Path, method: str, backbone: str, task: str, *more: str) -> pd.DataFrame:
    """Rows of a method and of one token at a time, on an idle machine, in a process without annotation checks."""
    words = ("--method", method, "--backbone", backbone, "--task", task, "--set", "prove=false", *more)
    rows = summary(folder / "run", *words).set_index("method")
    figures = [name for name in ("speedup", "speedup_low", "speedup_high", "speedup_n", "tau", "scr") if name in rows]
    print(rows[figures].T.to_string())
    return rows


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_sjdpp_is_faster_than_one_token_at_a_time(dtype, tmp_path):
    more = ("--set", "top_k=250", "--dtype", dtype, "-t", "1", "--max-new-tokens", "8192")
    scenes = "{name: emoji_scenes, limit: 24}"
    rows = compared(tmp_path, "{name: sjdpp, window: 16}", "embedded-image", scenes, *more)
    assert rows.loc["sjdpp", "speedup"] >= 1.5 and rows.loc["sjdpp", "speedup_n"] == 24


@pytest.mark.model
@pytest.mark.xfail(strict=True, reason="1.48 with the fastest tree; see 'What a tree must accept' in ARCHITECTURE.md")
def test_eagle2_is_1_5_times_as_fast_as_one_token_at_a_time(tmp_path):
    """The tree of `quick`."""
    method, more = "{name: eagle2, depth: 2, width: 2, nodes: 4}", ("-t", "0", "--dtype", "bf16")
    problems = "{name: humaneval, limit: 24}"
    rows = compared(tmp_path, method, "smollm2-135m", problems, *more, "--max-new-tokens", "32")
    assert rows.loc["eagle2", "speedup"] >= 1.5


def missed(row: str, figure: str):
    """A goal of the host that is not reached, with what was measured on an idle machine."""
    reason = f"{figure}; see reports/data/results/host.yaml"
    return pytest.param(row, marks=pytest.mark.xfail(strict=True, reason=reason))


def benchmarks(part):
    """The benchmarks whose names have a part, by name; on an idle machine, in a process of their own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.jsonl"
        subprocess.run([sys.executable, "-m", "tests.bench", part, "--minutes", "60", "--out", str(out)], check=False)
        rows = {row["name"]: row for row in map(json.loads, out.read_text().splitlines()[1:])}
    print({name: (row["ours"], row["ratio"], row["low"], row["high"]) for name, row in rows.items()})
    return rows


@pytest.fixture(scope="module")
def overhead():
    """What a step costs outside passes."""
    return {name.removeprefix("overhead "): row for name, row in benchmarks("overhead").items()}


@pytest.mark.model
@pytest.mark.parametrize(
    "row",
    [
        missed("autoregressive T=0 bf16", "2.25 % [2.18, 2.34] of a step, 2 wanted"),
        missed("prompt_lookup T=0 bf16", "3.68 % [3.55, 3.81] of a step, 2 wanted"),
        "autoregressive T=1 top_p bf16",
        missed("prompt_lookup T=1 top_p bf16", "6.02 % [5.78, 6.25] of a step, 4 wanted"),
        "autoregressive random-llama-5m",
        missed("sjd random-llama-5m", "0.656 ms [0.641, 0.679] a step, 0.5 wanted"),
    ],
)
def test_the_host_takes_no_more_of_a_step_than_its_goal(overhead, row):
    """The whole interval is below it: 2 % of a step, 4 % with top-p, 0.25 ms and 0.5 ms on the model of 5 M."""
    assert overhead[row]["verdict"] == "pass"


@pytest.mark.model
@pytest.mark.skipif(not os.environ.get("STRIDE_LLAMA_BENCH"), reason="names llama.cpp's llama-bench")
def test_four_bits_are_as_fast_as_in_llama_cpp_and_a_window_is_faster():
    """At least 0.9 of its rate one row at a time, and 1.3 times its rate in a window of eight."""
    rows = benchmarks("llama-bench")
    assert len(rows) == 2 and all(row["verdict"] == "pass" for row in rows.values())


@pytest.mark.model
@pytest.mark.parametrize("part", ["startup first token", "startup peak memory"])
def test_what_surrounds_a_decode_keeps_its_bounds(part):
    """A first token within 4 s, and no more memory than imports, weights, the greedy check's copy and 300 MB."""
    assert all(row["verdict"] == "pass" for row in benchmarks(part).values())


@pytest.mark.model
@pytest.mark.xfail(strict=True, reason="3.5 GB where 1.2 are asked for; see ARCHITECTURE.md")
def test_a_long_prompt_keeps_the_bound_of_memory(tmp_path):
    """Imports (251 MB), weights (269), the caches of a target and a drafter on 8,128 tokens (188 each), and 300."""
    words = ("context", "--limit", "2", "--task", "{name: long_context, length: 8128, limit: 6}")
    peaks = summary(tmp_path / "run", *words)["peak_mb"]
    print("peak MB:", peaks.to_dict())
    assert peaks.max() <= 251 + 269 + 2 * 188 + 300


def test_nothing_grows_faster_than_its_work():
    rows = benchmarks("scale by")
    assert len(rows) == 5 and all(row["verdict"] != "fail" and row["ratio"] <= 1.1 for row in rows.values())


DEAREST = pytest.mark.xfail(strict=True, reason="18 s where 10 are wanted; see ARCHITECTURE.md")
"""Of the method whose settings branch most."""


@pytest.mark.parametrize(
    ("words", "most"),
    [
        pytest.param((), 90, id="all"),
        *(pytest.param((name,), 10, id=name) for name in sorted(set(METHODS) - {"cross_regression"})),
        pytest.param(("cross_regression",), 10, id="cross_regression", marks=DEAREST),
    ],
)
def test_proofs_take_at_most_their_seconds_on_two_cores(words, most):
    """Without the laws that earlier commands kept, on an idle machine."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "stridebench.harness.cli.main", "verify", *words, "--fresh"]
    done = subprocess.run(command, check=False)
    seconds = time.monotonic() - begin
    print("stride verify", *words, seconds)
    assert done.returncode == 0 and seconds <= most


def test_predictions_of_this_machine_are_near(tmp_path):
    """Medians over outputs of at least 40 cells of text, pictures and meshes; on an idle machine."""
    stride = [sys.executable, "-m", "stridebench.harness.cli.main"]
    subprocess.run([*stride, "run", "scatter", "--out", str(tmp_path / "run")], check=True)
    subprocess.run([*stride, "doctor", "--profile", str(tmp_path / "here.yaml")], check=True)
    words = ("paper", "predict", str(tmp_path / "run"), "--machine", str(tmp_path / "here.yaml"))
    done = subprocess.run([*stride, *words, "--measured", "--json"], capture_output=True, text=True, check=True)
    spread = json.loads(done.stdout)["scatter"]
    print("predicted against measured:", spread)
    assert spread["cells"] >= 40 and spread["median"] <= 0.08 and spread["worst"] <= 0.25


def test_zipar_is_three_times_as_fast_as_one_token_at_a_time(tmp_path):
    """Prints what it loses."""
    more = ("--dtype", "bf16", "-t", "1", "--max-new-tokens", "272")
    scenes = "{name: emoji_scenes, limit: 24}"
    rows = compared(tmp_path, "{name: zipar, window: 3}", "embedded-image", scenes, *more)
    print("right in all:", rows["score.overall"].to_dict())
    assert rows.loc["zipar", "speedup"] >= 3


BPT = "{name: shapes, limit: 24, sampling: {temperature: 0.5, top_k: 50, top_p: 0.95, order: filter_first}}"
"""Meshes of test shapes, by BPT's own sampling."""


@pytest.mark.xfail(strict=True, reason="1.15, and 1.18 on the weights before; see ARCHITECTURE.md")
def test_prompt_lookup_is_1_2_times_as_fast_as_one_token_of_a_mesh_at_a_time(tmp_path):
    """The setting of `embedded`."""
    method = "{name: prompt_lookup, length: 3, max_ngram: 2, prefer: last}"
    rows = compared(tmp_path, method, "embedded-mesh", BPT, "--dtype", "bf16", "--max-new-tokens", "400")
    assert rows.loc["prompt_lookup", "speedup"] >= 1.2 and rows.loc["prompt_lookup", "speedup_n"] >= 20


def decoded(backbone, method, task):
    """The meshes that a method makes of a task's shapes by BPT's sampling, and its tokens a pass."""
    model, outputs, counts = presets.load(backbone, "fp32"), [], []
    bpt = Sampling(0.5, top_k=50, top_p=0.95, order="filter_first")
    with torch.inference_mode():
        for prompt in task.prompts():
            draws = SeededDraws(0, "shapes", prompt.id, 0)
            done = decode(method, open_run(model, lambda name: model, prompt, bpt, 400, draws))
            counts.append((len(done.tokens), len(done.steps)))
            try:
                output = model.decode(done.tokens)
                outputs.append(Scored(prompt, 0, output, task.score(prompt, output, done.tokens)))
            except OutputError:
                continue
    tokens, passes = np.sum(counts, 0)
    return outputs, float(tokens / passes)


@pytest.fixture(scope="module")
def meshes():
    """The share of 200 test shapes that become meshes, by BPT's sampling; Chamfer distances of these and controls."""
    task, (outputs, _) = Shapes(), decoded("embedded-mesh", METHODS.get("autoregressive")(), Shapes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stridebench.tasks.shapes.POOL", 1500)
        controls = {name: score.value for name, score in task.score_set(outputs).items()}
    chamfer = float(np.mean([one.scores["chamfer"] for one in outputs]))
    figures = {"valid": len(outputs) / len(task.prompts()), "chamfer": chamfer, **controls}
    print(figures)
    return figures


def test_97_of_100_samples_are_meshes(meshes):
    assert meshes["valid"] >= 0.97


def test_meshes_are_nearer_to_their_points_than_what_they_must_not_copy(meshes):
    """At most 1.5 times the floor, nearer than the nearest training shape, and 2.5 times as near as another shape."""
    assert meshes["chamfer"] <= 1.5 * meshes["floor_chamfer"]
    assert meshes["chamfer"] < meshes["retrieval_chamfer"]
    assert meshes["swapped_chamfer"] >= 2.5 * meshes["chamfer"]


@pytest.mark.model
def test_an_adapter_makes_1_3_tokens_a_pass_and_keeps_the_targets_tokens(tmp_path: Path):
    """In fp32 at T = 0, on prompts, voices and texts absent from its training."""
    method = "{name: cross_regression, horizon: 8, redraft: placeholders}"
    words = ["--method", method, "--backbone", "whisper-base", "--task", "utterances", "--dtype", "fp32", "-t", "0"]
    rows = summary(tmp_path / "run", *words, "--max-new-tokens", "64").set_index("method")
    figures = rows.loc["cross_regression", ["scr", "scr_low", "scr_high", "scr_n", "agreement"]]
    print("Cross-Regression:", figures.to_dict())
    assert figures["scr"] >= 1.3 and figures["agreement"] == 1 and figures["scr_n"] == 104


XSPECMESH = """
methods:
  - {name: multi_head, heads: xspecmesh-cross-lora, backbones: embedded-mesh-cross-lora}
backbones: [embedded-mesh-cross-lora]
tasks:
  - {name: shapes, limit: 64, sampling: {temperature: 0.5, top_k: 50, top_p: 0.95, order: filter_first}}
max_new_tokens: 400
prove: false
"""
UNREACHED = pytest.mark.xfail(strict=True, reason="see the card of xspecmesh-cross-lora")


@pytest.fixture(scope="module")
def tuned():
    """Meshes and tokens a pass of row E on 64 shapes."""
    method = METHODS.get("multi_head")(heads="xspecmesh-cross-lora")
    outputs, rate = decoded("embedded-mesh-cross-lora", method, Shapes(limit=64))
    print(len(outputs), rate, np.mean([one.scores["chamfer"] for one in outputs]))
    return outputs, rate


def test_tuned_heads_make_more_tokens_a_pass_than_stage_1_of_the_model_before(tuned):
    assert tuned[1] > 1.32


@UNREACHED
def test_tuned_heads_make_1_8_tokens_a_pass(tuned):
    assert tuned[1] >= 1.8


@UNREACHED
def test_tuned_heads_gain_time(tmp_path):
    """Rows of 64 shapes by row E of XSpecMesh's Table 3."""
    (tmp_path / "suite.yaml").write_text(XSPECMESH)
    rows = summary(tmp_path / "run", str(tmp_path / "suite.yaml"))
    rows = rows[rows["role"] == "method"].set_index("backbone")
    print(rows[["scr", "scr_low", "scr_high", "speedup", "speedup_low", "speedup_high"]])
    assert rows.loc["embedded-mesh-cross-lora", "speedup"] >= 1.1


@pytest.fixture(scope="module")
def rebuilt():
    """Scores of row E's meshes and of the base's, by shape: as many shapes as the power analysis asks for."""
    task = Shapes(limit=690)
    method = METHODS.get("multi_head")(heads="xspecmesh-cross-lora")
    outputs = {
        "base": decoded("embedded-mesh", METHODS.get("autoregressive")(), task)[0],
        "tuned": decoded("embedded-mesh-cross-lora", method, task)[0],
    }
    return {
        name: pd.DataFrame({"prompt": one.prompt.id, "repetition": 0, **one.scores} for one in of_model).set_index(
            ["prompt", "repetition"]
        )
        for name, of_model in outputs.items()
    }


@UNREACHED
@pytest.mark.parametrize("distance", ["chamfer", "hausdorff"])
def test_meshes_of_tuned_heads_are_as_near_as_the_bases(rebuilt, distance):
    """Within the margin of the report, paired by shape."""
    tuned, base = rebuilt["tuned"][distance].dropna(), rebuilt["base"][distance].dropna()
    shared = tuned.index.intersection(base.index)
    equivalence = paired_tests.equivalence(base[shared], tuned[shared], MARGIN * float(base[shared].mean()))
    print(distance, float(base[shared].mean()), float(tuned[shared].mean()), equivalence)
    assert equivalence.verdict == "equivalent"
