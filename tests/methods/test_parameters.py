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
    ("ddtree", {"nodes": 0}, "ddtree: block is 0 and nodes 0"),
    ("dflash", {"block": 1}, "dflash: block is 1"),
    ("dflash2", {"block": 1}, "dflash2: block is 1"),
    ("dspark", {"confidence": 1.0}, "confidence 1"),
    ("eagle1", {"widths": (2, 0)}, "give a child or more for each level"),
    *(
        (name, {parameter: low}, TREE)
        for name in ("eagle2", "eagle3")
        for parameter, low in (("depth", -1), ("width", 0))
    ),
    *((name, {"nodes": 0}, TREE) for name in ("eagle2", "eagle3", "lantern")),
    ("first_of", {"copies": "speculative"}, "take suffix or sam or ngram_mod or prompt_lookup"),
    ("first_of", {"copies": "suffix policy=ema"}, "without a policy"),
    ("first_of", {"then": "eagle4"}, "eagle2"),
    ("first_of", {"then": "eagle2 branches=3"}, "is no setting of eagle2: .*branches"),
    ("first_of", {"then": "masked_diffusion"}, "decodes from left to right"),
    ("first_of", {"least": 0}, "least is 0"),
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
    *(("lpd", {"groups": groups}, "give sizes of 1 or more") for groups in ("", "0", "1,,2", "1,x", 0, -1)),
    ("lpd", {"repulsion": -1}, "repulsion is -1"),
    *(("lookahead", bad, "an ngram from 3, a window from 2") for bad in ({"ngram": 2}, {"window": 1}, {"guesses": 0})),
    ("masked_diffusion", {"steps": -1}, "steps, block, alg_temp and cfg_scale are 0 or more"),
    ("masked_diffusion", {"order": "entropy", "block": 2}, "blocks are LLaDA's; order entropy fills the whole canvas"),
    ("masked_diffusion", {"alg_temp": 0.5}, "alg_temp is for maskgit_plus, topk_margin, entropy; order is low"),
    (
        "masked_diffusion",
        {"order": "entropy", "confidence_eos_eot_inf": True},
        "is of low_confidence; order is entropy",
    ),
    ("masked_diffusion", {"rule": "treshold:0.9"}, "one of threshold:0.9, factor:1, entropy:0.15, static:1, joint:0.5"),
    *(
        ("masked_diffusion", {"rule": rule}, "or another number")
        for rule in ("static:0", "static:1.5", "threshold:high", "factor:-1", "threshold:nan")
    ),
    ("masked_diffusion", {"rule": "entropy"}, "rule entropy is of order entropy"),
    ("masked_diffusion", {"rule": "threshold", "steps": 2}, "without steps"),
    ("masked_diffusion", {"edit": 0.5}, "edit and edits are of rule joint; rule is ''"),
    ("masked_diffusion", {"rule": "joint", "edit": 1.5}, "edit is 1.5 and edits 16; give 0 to 1, and 0 or more"),
    ("masked_diffusion", {"cache": "suffix"}, "cache is 'suffix'; choose one of none, prefix, dual, blocks"),
    ("masked_diffusion", {"cache": "dual", "cfg_scale": 1.0}, "cache dual keeps one branch, and cfg_scale reads two"),
    ("medusa", {"nodes": 0}, "nodes is 0"),
    ("medusa", {"levels": -1}, "levels -1"),
    ("medusa", {"epsilon": 1.0}, "epsilon is 1"),
    ("medusa", {"alpha": 0.0}, "alpha 0"),
    *((name, {"depth": 0}, f"{name}: .*depth is 0") for name in ("mtp", "p_eagle")),
    *((name, {"policy": "p_min"}, f"{name}: .*take conf") for name in ("mtp", "p_eagle")),
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
    *(("ngram_mod", bad, "ngram_mod: ") for bad in ({"ngram": 0}, {"shortest": 0}, {"length": 8, "shortest": 9})),
    ("par", {"regions": 0}, "regions is 0"),
    *(("prompt_lookup", bad, "both start at 1") for bad in ({"length": 0}, {"max_ngram": 0})),
    ("recycling", {"widths": (9,)}, "recycling: widths are"),
    *(("sjd", bad, "leaves no draft") for bad in ({"window": 1}, {"window": 0, "window_counts_refed": False})),
    ("sjdpp", {"window": 1}, "sjdpp: window is 1, which leaves no draft"),
    *(("sjdpp", {"tau": tau}, r"tau is .*ratio of probabilities") for tau in (-0.1, nan, -inf)),
    *(("specinfer", {"widths": widths}, "give a child or more for each of one or more") for widths in ((), (2, 0))),
    *(("spectr", bad, "draft one continuation of one token or more") for bad in ({"k": 0}, {"gamma": 0})),
    ("speculative", {"gamma": 0}, "gamma is 0; draft at least one token"),
    ("speculative", {"verifier": "blok"}, "verifier is 'blok'; known: token, block"),
    ("speculative", {"mask": -1}, "mask is -1 and drafter self; give an id"),
    ("speculative", {"mask": 1, "drafter": "toy:vocab=tli"}, "a drafter that has the target's vocabulary"),
    *(
        ("speculative", {"acceptance": rule}, message)
        for rule, message in (
            ("lenient", "known: exact, mixture, cascade, cascade_token, typical, relaxed, thresholds, fly"),
            ("mixture:1.5", "give numbers from 0 to 1, as in mixture:0.9"),
            ("relaxed:3", "as in relaxed:3,0.2"),
            ("typical:high,low", "as in typical:0.09,0.3"),
            ("fly:0,0.3", "give a number of drafts from 1 on and an entropy in nats, as in fly:6,0.3"),
            ("fly:1.5,0.3", "a number of drafts"),
            ("fly:2", "a number of drafts"),
        )
    ),
    ("speculative", {"acceptance": "fly", "gamma": 1}, "looks at the drafts behind one, and gamma is 1; take 2 or"),
    ("speculative", {"acceptance": "typical", "verifier": "block"}, "typical and verifier block; take verifier token"),
    ("speculative", {"acceptance": "mixture", "verifier": "coupled"}, "take verifier token"),
    *(
        ("speculative", {"policy": policy}, message)
        for policy, message in (
            ("confidence", "policy is 'confidence'; known: conf, keep, p_min, entropy, ema"),
            ("conf:2", "policy is 'conf:2'; give a number from 0 to 1 behind the colon"),
            ("keep:low", "policy is 'keep:low'; give a number"),
            ("table", "as in table:1=8,4=3,16=0"),
            ("head:0.3", "give policy head:0.3 and head=FOLDER together"),
            ("budget:0", "give the drafts of a batch, as in budget:12"),
        )
    ),
    ("speculative", {"policy": "p_min", "verifier": "coupled"}, "p_min drafts the most probable tokens"),
    ("speculative", {"head": "folder"}, "policy is '', head 'folder' and mask None"),
    ("speculative", {"policy": "head", "head": "folder", "mask": 1}, "without a mask, and put config.json with"),
    *(("eagle1", {"policy": name, "widths": (1,)}, f"{name} is one of speculative's") for name in ("budget", "head")),
    ("eagle1", {"policy": "ema"}, "policy ema is for chains; give widths of 1"),
    ("eagle1", {"verifier": "block", "widths": (2, 1)}, "verifier block is for chains; give widths of 1"),
    ("eagle1", {"policy": "p_min", "widths": (1,)}, "take conf"),
    ("prompt_lookup", {"policy": "conf:0.4"}, "copied tokens have none; take ema or table"),
    ("suffix", {"policy": "entropy"}, "suffix: policy entropy reads the drafter's distribution"),
    *(("suffix", bad, "suffix: ") for bad in ({"length": 0}, {"depth": 1}, {"factor": 0.0}, {"min_prob": 1.5})),
    *(("sam", bad, "sam: ") for bad in ({"length": 0}, {"factor": 0.0})),
    *((name, {"memory": "global"}, f"{name}: memory is 'global'; choose one of prompt, run") for name in MEMORIES),
    ("sam", {"bias": -1}, "sam was given bias=-1; it must be 0 or more"),
    *(("sjd_pac", bad, "sjd_pac: ") for bad in ({"window": 1}, {"depth": 0}, {"width": 0})),
    ("jacobi", {"init": "v-repeat"}, "jacobi: init is 'v-repeat'; choose one of "),
    *((name, {"init": "diagonal"}, f"{name}: init is 'diagonal'; choose one of ") for name in ("sjd", "gsd")),
    ("sjdpp", {"reuse": "Z"}, "sjdpp: reuse is 'Z'; choose one of "),
    *(
        ("uniform_diffusion", bad, "uniform_diffusion: steps .* are 1 or more, hot .* above 0, bound")
        for bad in ({"steps": 0}, {"stable": 0}, {"bound": -0.1}, {"cold": 0.0}, {"sure": -1.0})
    ),
    ("zipar", {"schedule": "foo"}, "zipar: schedule is 'foo'; choose one of "),
    ("zipar", {"window": 0}, "window is 0; a row begins behind 1 or more"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("name", "params", "message"), REFUSED)
def test_it_is_refused(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        METHODS.get(name)(**params)
