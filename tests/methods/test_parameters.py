"""Parameters out of range are refused when a method is made, with the values found."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS

TREE = "give a depth from 0, a width and nodes from 1"
NEIGHBOURS = "give neighbours and a mass, 0 or more"
MEMORIES = ("suffix", "sam", "ngram_mod")

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("adt_tree", {"nodes": 0}, "nodes 0"),
    ("adt_tree", {"depths": (0, 3)}, "depths are 0 to 3"),
    ("adt_tree", {"widths": (5, 4)}, "widths are 5 to 4"),
    ("adt_tree", {"step_k": -1}, "steps are 1 and -1"),
    ("adt_tree", {"radius": 0.0}, "radius 0"),
    ("adt_tree", {"first": (0, 4)}, r"first \(0, 4\)"),
    ("adt_tree", {"delta": -1.0}, "the bound -1"),
    ("blockwise", {"distance": -1}, "distance -1"),
    ("blockwise", {"least": 0}, "least 0"),
    ("blockwise", {"levels": -2}, "levels is -2"),
    ("blockwise", {"top": 0}, "top 0"),
    ("cllm", {"block": 1}, "block is 1"),
    *(
        ("cllm", bad, "give 1 or 2, a ratio above 0 and up to 1, and a pool of 0 or more")
        for bad in ({"blocks": 3}, {"ratio": 0.0}, {"ratio": nan}, {"ratio": 1.1}, {"pool": -1})
    ),
    ("cross_regression", {"beta": 1.0}, r"beta is 1; it is the memory of a running mean, from 0 to below 1"),
    ("cross_regression", {"beta": -0.1}, r"beta is -0\.1"),
    ("cross_regression", {"beta": nan}, r"beta is nan"),
    ("cross_regression", {"mode": "alg2", "tau": 0.5}, r"tau is 0\.5; it bounds energies from below"),
    ("cross_regression", {"mode": "det", "tau": -inf}, r"tau is -inf; .* a number up to 0"),
    ("cross_regression", {"tau": -1.0}, r"tau is -1 and mode std has no threshold"),
    ("cross_regression", {"horizon": 0}, r"horizon is 0 and draft_top 0; give 1 and 0 or more"),
    ("cross_regression", {"carry": False}, r"joint tests drafts of an earlier step; take layout=sequential"),
    ("eagle1", {"widths": (2, 0)}, "give a child or more for each level"),
    *(
        (name, {parameter: low}, TREE)
        for name in ("eagle2", "eagle3")
        for parameter, low in (("depth", -1), ("width", 0))
    ),
    *((name, {"nodes": 0}, TREE) for name in ("eagle2", "eagle3", "lantern")),
    *(("gsd", bad, "gsd: ") for bad in ({"window": 1}, {"width": -1}, {"gap": 0.0}, {"reach": -1.0})),
    *(("hydra", bad, "hydra: nodes is") for bad in ({"nodes": 0}, {"epsilon": 1.0}, {"alpha": 0.0})),
    ("jacobi", {"window": 1}, "window is 1"),
    *(("lantern", bad, NEIGHBOURS) for bad in ({"k": -1}, {"delta": -0.1}, {"delta": nan})),
    *(("lanternpp", bad, NEIGHBOURS) for bad in ({"k": -1}, {"factor": -0.1})),
    *(
        ("linear_spec", bad, "give 2 rows or more, and 0 to 1")
        for bad in ({"block": 1}, {"threshold": 1.5}, {"threshold": nan})
    ),
    *(
        (
            "sbd",
            bad,
            "give 2 rows or more, and one of threshold:0.9, factor:1, entropy:0.15, static:1, or",
        )
        for bad in (
            {"block": 1},
            *({"rule": rule} for rule in ("joint:0.5", "entropy:x", "entropy:-1", "", "threshold:nan", "static:0.5")),
        )
    ),
    *(("lookahead", bad, "an ngram from 3, a window from 2") for bad in ({"ngram": 2}, {"window": 1}, {"guesses": 0})),
    ("masked_diffusion", {"steps": -1}, "steps, block, alg_temp and cfg_scale are 0 or more"),
    ("masked_diffusion", {"order": "entropy", "block": 2}, "blocks are LLaDA's; order entropy fills the whole canvas"),
    ("masked_diffusion", {"alg_temp": 0.5}, "alg_temp is for maskgit_plus, topk_margin, entropy; order is low"),
    ("medusa", {"nodes": 0}, "nodes is 0"),
    ("medusa", {"levels": -1}, "levels -1"),
    ("medusa", {"epsilon": 1.0}, "epsilon is 1"),
    ("medusa", {"alpha": 0.0}, "alpha 0"),
    *(
        ("mulo_sd", {name: -1}, f"mulo_sd: {name}")
        for name in ("k", "radius", "window", "draft_window", "delta", "tau")
    ),
    ("mulo_sd", {"tau": nan}, "mulo_sd: tau is nan"),
    *(("mulo_sd", bad, "give 2 or more, and a multiple") for bad in ({"factor": 1}, {"band": 3}, {"band": 0})),
    *(("multi_head", {"delta": delta}, r"delta is .* between 0 and 1") for delta in (0.0, 1.0, -0.1, 1.5, nan)),
    ("multi_head", {"levels": -1}, "levels is -1"),
    ("multi_head", {"accept_top": 0}, "accept_top 0"),
    ("multi_head", {"draft_top": 0}, "draft_top 0"),
    *(("prompt_lookup", bad, "both start at 1") for bad in ({"length": 0}, {"max_ngram": 0})),
    *(("sjd", bad, "leaves no draft") for bad in ({"window": 1}, {"window": 0, "window_counts_refed": False})),
    ("sjdpp", {"window": 1}, "sjdpp: window is 1, which leaves no draft"),
    *(("sjdpp", {"tau": tau}, r"tau is .*ratio of probabilities") for tau in (-0.1, nan, -inf)),
    *(("specinfer", {"widths": widths}, "give a child or more for each of one or more") for widths in ((), (2, 0))),
    *(("spectr", bad, "draft one continuation of one token or more") for bad in ({"k": 0}, {"gamma": 0})),
    ("speculative", {"gamma": 0}, "gamma is 0; draft at least one token"),
    *(("suffix", bad, "suffix: ") for bad in ({"length": 0}, {"depth": 1}, {"factor": 0.0}, {"min_prob": 1.5})),
    *(("sam", bad, "sam: ") for bad in ({"length": 0}, {"factor": 0.0})),
    *((name, {"memory": "global"}, f"{name}: memory is 'global'; choose one of prompt, run") for name in MEMORIES),
    ("sam", {"bias": -1}, "sam was given bias=-1; it must be 0 or more"),
    *(("sjd_pac", bad, "sjd_pac: ") for bad in ({"window": 1}, {"depth": 0}, {"width": 0})),
    ("jacobi", {"init": "v-repeat"}, "jacobi: init is 'v-repeat'; choose one of "),
    *((name, {"init": "diagonal"}, f"{name}: init is 'diagonal'; choose one of ") for name in ("sjd", "gsd")),
    ("sjdpp", {"reuse": "Z"}, "sjdpp: reuse is 'Z'; choose one of "),
    ("zipar", {"schedule": "foo"}, "zipar: schedule is 'foo'; choose one of "),
    ("zipar", {"window": 0}, "window is 0; a row begins behind 1 or more"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("name", "params", "message"), REFUSED)
def test_it_is_refused(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        METHODS.get(name)(**params)
