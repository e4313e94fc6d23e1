"""Masked diffusion decoding: LLaDA's, Dream's and SDAR's.

Source: Nie et al. 2025, arXiv:2502.09992, with ``generate.py`` of ML-GSAI/LLaDA at 41760b9; Ye et al. 2025,
arXiv:2508.15487, with Dream's generation_utils.py. Rules: `threshold` and `factor`, and caches, of Wu et al. 2025
(Fast-dLLM), arXiv:2505.22618; `entropy` of Ben-Hamu et al. 2025, arXiv:2505.24857; `joint` of LLaDA2.1,
arXiv:2602.08676, as ``joint_threshold.py`` of SGLang has it. Models of blocks: Cheng et al. 2025 (SDAR),
arXiv:2510.06303, with ``generate.py`` of JetAstra/SDAR.
Symbols: L positions of the canvas, S steps, b positions of a block, M masked positions that a step may fill, k filled.
All positions begin masked. Without a cache, each pass reads the whole canvas, and fills k of the masked positions. Each
is filled from its own distribution: given the rest of the canvas, but not given each other. Filled positions stay,
except with the rule `joint`, which edits them until its block is stable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.canvas import Canvas
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Fill
from stridebench.harness.core.draws import Draws
from stridebench.harness.core.method import Claim, Method, Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.errors import UsageError, one_of
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.blocks import FAILED_ONE_FILLED_TOO, RULES, filled_by_rule, rule_of

Order = Literal["low_confidence", "random", "origin", "maskgit_plus", "topk_margin", "entropy"]
LLADA: tuple[Order, ...] = ("low_confidence", "random")
DREAM: tuple[Order, ...] = ("origin", "maskgit_plus", "topk_margin", "entropy")
BY_TOKEN: tuple[Order, ...] = ("low_confidence", "maskgit_plus")
"""Orders that depend on the token drawn, so that one is drawn at every masked position."""
Reuse = Literal["none", "prefix", "dual", "blocks"]
EPSILON = 1e-3
"""The time at which Dream's schedule ends."""


def confidence(
    order: Order, logits: Float[Tensor, "M V"], x: Int[Tensor, " M"], sampling: Sampling
) -> Float[Tensor, " M"]:
    """Return the model's confidence at each position; larger is more confident.

    Args:
        logits: raw.
        x: the tokens drawn; read by the orders of ``BY_TOKEN`` only.
        sampling: top-k and top-p cut Dream's distributions, and T > 0 divides its logits. LLaDA's stay as they are.

    Returns:
        low_confidence, maskgit_plus: p(x). topk_margin: the largest p less the second. entropy: sum of p log p.

    Source: LLaDA, ``generate.py`` at ML-GSAI/LLaDA 41760b9; Dream, ``sample_tokens`` of its generation_utils.py.
    """
    if order == "low_confidence":
        return logits.double().softmax(-1).gather(1, x[:, None])[:, 0]
    p = warp(logits, replace(sampling, temperature=sampling.temperature or 1.0))
    if order == "topk_margin":
        top = p.topk(2).values
        return top[:, 0] - top[:, 1]
    return -torch.special.entr(p).sum(-1) if order == "entropy" else p.gather(1, x[:, None])[:, 0]


def most_confident(confidences: Float[Tensor, " M"], k: int, alg_temp: float, draws: Draws) -> Int[Tensor, " k"]:
    """Return the k most confident positions, ties to the first.

    With ``alg_temp`` > 0 they are drawn from softmax(confidences / alg_temp) without replacement.
    """
    if alg_temp > 0:
        return draws.distinct((confidences / alg_temp).softmax(-1)[None], k, "noise")[0]
    return confidences.sort(descending=True, stable=True).indices[:k]


def unmasked_fraction(step: int, steps: int) -> float:
    """Return 1 - s / t, the share of the masked positions that Dream fills in a step, from step 0; all in the last.

    Source: Dream, ``_sample``: t runs evenly from 1 to 0.001 in S steps.
    """
    t, s = (1 - (1 - EPSILON) * at / steps for at in (step, step + 1))
    return 1.0 if step == steps - 1 else 1 - s / t


def _without(logits: Float[Tensor, "M V"], ids: frozenset[int]) -> Float[Tensor, "M V"]:
    """Return the logits with -inf at these ids."""
    index = torch.tensor(sorted(ids), dtype=torch.long, device=logits.device)
    return logits.index_fill(1, index, float("-inf"))


MASKS_REUSED = Mutant(
    f"{__name__}:MaskedDiffusion._read",
    'if self.cache == "blocks":',
    'if self.cache == "blocks" and not canvas.passes:',
    "cache blocks: a full block keeps the entries of its last pass, in which some positions were masks",
)
FIRST_TOKEN_GREEDY = Mutant(
    f"{__name__}:MaskedDiffusion._by_rule",
    'x = run.draws.categorical(p, "draft")',
    'x = torch.cat([p[:1].argmax(1), run.draws.categorical(p[1:], "draft")])',
    "first_token_argmax: the first masked token of a block is the most probable one above T = 0 (Fast-dLLM v2)",
)
EDITED_BY_ANY_TOKEN = Mutant(
    f"{__name__}:MaskedDiffusion._edited",
    "if token != tokens[place] and sure > self.edit",
    "if token != tokens[place]",
    "a token is edited whatever the probability of the new one",
)


@dataclass
class CanvasProgress:
    """How far the canvas is.

    Args:
        done: passes so far; of this block, if the model has blocks.
        cached: where the block begins whose first pass wrote the entries that later passes reuse; -1: none was read.
    """

    done: int = 0
    cached: int = -1


@METHODS.register("masked_diffusion")
@dataclass(frozen=True)
class MaskedDiffusion(Method[CanvasProgress]):
    """Fill a masked canvas in S passes, the positions of highest confidence first.

    Args:
        order: which positions. LLaDA's fill L / S a step: ``low_confidence``, the tokens of largest probability;
            ``random``. Dream's fill 1 - s/t of those masked: ``origin``, each with that probability;
            ``maskgit_plus``, ``topk_margin``, ``entropy``, the most confident by probability, margin or entropy.
        steps: S; 0: one token a step, the reference. A step of Dream's schedule may fill nothing: that pass counts. On
            a model of blocks, LLaDA's orders may take more, and Dream's take S a block.
        block: b, of blocks filled from left to right (LLaDA); 0: one block. In a model's own block, of parts of it.
        alg_temp: temperature of Dream's choice of positions; 0: the most confident.
        logits_eos_inf: the end of text has no probability, as LLaDA's authors set it for HumanEval.
        confidence_eos_eot_inf: ends of text and turn have no confidence, so other positions are filled first; theirs
            for GSM8K, MATH and MBPP.
        cfg_scale: s of z_u + (s + 1) (z - z_u), where z_u reads the prompt as masks in a second pass; 0: one pass.
        rule: instead of steps, how many a pass fills, and at least one: ``threshold:0.9``, all whose token has that
            probability; ``factor:1``, n of them while (n + 1) (1 - the smallest probability) is less; ``static:2``, so
            many; all of order low_confidence. ``entropy:0.15``, of order entropy, those that follow no more than that
            sum of entropies. ``joint:0.5``, as threshold, and tokens of the block are edited: a step takes the passes
            of a block, and emits it when nothing changes any more.
        edit: of rule joint: a filled token becomes the most probable one of its row if that has more probability.
        edits: of rule joint: the most passes of a block behind its last mask.
        cache: what a pass reuses. ``prefix``: the entries before the block, from its first pass; ``dual``: those behind
            it too. A later pass reads the token before the block (a model with shifted rows needs it) and what is not
            reused. Approximate, since all entries of these models see the whole canvas. ``blocks``: the entries of
            full blocks, which one more pass writes. Exact on a model of blocks (SDAR), without effect on others.
    """

    order: Order = "low_confidence"
    steps: int = 0
    block: int = 0
    alg_temp: float = 0.0
    logits_eos_inf: bool = False
    confidence_eos_eot_inf: bool = False
    cfg_scale: float = 0.0
    rule: str = ""
    edit: float = 0.0
    edits: int = 16
    cache: Reuse = "none"

    requirements = frozenset({Requirement.BIDIRECTIONAL})
    source = "arXiv:2502.09992; arXiv:2508.15487"
    exact_at = "one token a step: steps = 0 without a rule, static:1, factor:0, or threshold above 1"
    mutants = (FAILED_ONE_FILLED_TOO, FIRST_TOKEN_GREEDY, EDITED_BY_ANY_TOKEN, MASKS_REUSED)

    def __post_init__(self) -> None:
        if min(self.steps, self.block, self.alg_temp, self.cfg_scale) < 0:
            raise UsageError("masked_diffusion: steps, block, alg_temp and cfg_scale are 0 or more")
        one_of("masked_diffusion", "cache", self.cache, get_args(Reuse))
        if self.cache != "none" and self.cfg_scale > 0:
            raise UsageError(f"masked_diffusion: cache {self.cache} keeps one branch, and cfg_scale reads two")
        if (self.edit, self.edits) != (0.0, 16) and not self.rule.startswith("joint"):
            raise UsageError(f"masked_diffusion: edit and edits are of rule joint; rule is {self.rule!r}")
        if not 0 <= self.edit <= 1 or self.edits < 0:
            raise UsageError(
                f"masked_diffusion: edit is {self.edit:g} and edits {self.edits}; give 0 to 1, and 0 or more"
            )
        if self.rule:
            self._check_rule()
        if self.block and self.order in DREAM and not self.rule:
            raise UsageError(f"masked_diffusion: blocks are LLaDA's; order {self.order} fills the whole canvas")
        if self.alg_temp and self.order not in DREAM[1:]:
            raise UsageError(f"masked_diffusion: alg_temp is for {', '.join(DREAM[1:])}; order is {self.order}")
        if self.confidence_eos_eot_inf and self.order != "low_confidence":
            raise UsageError(f"masked_diffusion: confidence_eos_eot_inf is of low_confidence; order is {self.order}")

    def _check_rule(self) -> None:
        rule = rule_of(self.rule)
        if rule is None:
            known = ", ".join(f"{known}:{number:g}" for known, number in RULES.items())
            raise UsageError(f"masked_diffusion: rule is {self.rule!r}; write one of {known}, or another number")
        order = "entropy" if rule[0] == "entropy" else "low_confidence"
        if self.order != order or self.steps or self.alg_temp:
            raise UsageError(f"masked_diffusion: rule {rule[0]} is of order {order}, without steps and alg_temp")

    @property
    def claim(self) -> Claim:
        """Return SAME_LAW if a rule fills one token a step as the baseline of masked models does, which has no rule."""
        name, bound = rule_of(self.rule) or ("", 0.0)
        one_token = (
            bound == {"static": 1.0, "factor": 0.0}.get(name)
            or (name == "threshold" and bound > 1)
            or (name == "joint" and bound > 1 and self.edit == 1)
        )
        compared = self.cache in ("none", "blocks") and self.reference == MaskedDiffusion()
        return Claim.SAME_LAW if one_token and compared else Claim.APPROXIMATE

    @property
    def reference(self) -> MaskedDiffusion:
        return replace(self, steps=0, rule="", edit=0.0, edits=16, cache="none")

    def start(self, run: Run) -> CanvasProgress:
        length, steps = run.canvas.end - run.canvas.start, self.steps or 1
        block = length if run.capabilities.block else self.block or length  # the last block of a model may be shorter
        if length % block:
            raise UsageError(f"masked_diffusion: blocks of {block} do not divide the canvas of {length} positions")
        if self.order in LLADA and (length % steps or (self.steps and steps % (length // block))):
            raise UsageError(
                f"masked_diffusion: {steps} steps do not divide the canvas of {length} positions in {length // block} "
                f"block(s): give a multiple of the blocks that divides {length}"
            )
        if self.cache == "blocks":
            run.canvas.read_full_blocks()
        return CanvasProgress()

    def step(self, run: Run, state: CanvasProgress) -> Fill:
        canvas, block = run.canvas, self._block(run.canvas)
        if self.rule.startswith("joint"):
            return self._stable_block(run, state, block)
        positions = [i for i in block if i not in canvas.tokens]
        if canvas.capabilities.block and state.cached != block.start:
            state.done = 0  # each block has the whole of Dream's schedule
        while True:
            count = self._count(len(positions), state.done, canvas.end - canvas.start)
            logits = self._read(run, state, block, positions, canvas.tokens)
            chosen = self._chosen(run, logits, min(count, len(positions)))
            if len(chosen.tokens):
                return replace(chosen, positions=torch.tensor(positions, device=canvas.device)[chosen.positions])

    def _stable_block(self, run: Run, state: CanvasProgress, block: range) -> Fill:
        """Fill and edit a block until a pass changes nothing; each pass reads the device once."""
        tokens: dict[int, int] = {}
        left = self.edits
        while len(tokens) < len(block) or left:
            masked = [i for i in block if i not in tokens]
            left -= not masked
            logits = self._read(run, state, block, block, {**run.canvas.tokens, **tokens})
            changed = self._edited(logits, block, tokens)
            if masked:
                rows = logits[[i - block.start for i in masked]]
                fill = self._by_rule(run, rows, run.probs(rows))
                changed |= {masked[index]: token for index, token in fill.read()}
            if not changed:
                break
            tokens |= changed
        placed = sorted(tokens.items())
        return Fill(*torch.tensor(placed, device=run.canvas.device).T)

    def _edited(self, logits: Float[Tensor, "B V"], block: range, tokens: Mapping[int, int]) -> dict[int, int]:
        """Return the new tokens of positions that are edited, whatever the temperature."""
        p, best = logits.double().softmax(-1).max(-1)
        rows = zip(block, best.tolist(), p.tolist(), strict=True)
        likely = [(place, token, sure) for place, token, sure in rows if place in tokens]
        return {place: token for place, token, sure in likely if token != tokens[place] and sure > self.edit}

    def _block(self, canvas: Canvas) -> range:
        """Return the positions of the first block with masks: of the model, of the method, or of both."""
        whole = canvas.open_block
        start, first = max(canvas.start, whole.start), next(i for i in whole if i not in canvas.tokens)
        size = self.block or len(whole)
        begin = first - (first - start) % size
        return range(begin, min(begin + size, whole.stop))

    def _read(
        self, run: Run, state: CanvasProgress, block: range, positions: Sequence[int], tokens: Mapping[int, int]
    ) -> Float[Tensor, "M V"]:
        """Return the logits of these positions of a block, from a pass over all that is not reused."""
        canvas, mask = run.canvas, run.capabilities.mask
        reused = self.cache in ("prefix", "dual") and state.cached == block.start
        state.done, state.cached = state.done + 1, block.start
        if self.cache == "blocks":
            canvas.read_full_blocks()
        first = canvas.open_block.start if self.cache == "blocks" else block.start - 1 if reused else 0
        seen = range(first, block.stop if reused and self.cache == "dual" else canvas.open_block.stop)
        holes = [i for i in seen if i not in tokens]
        fill = [mask] * len(holes)
        if mask is None:  # the model knows uniform noise, so any id may stand there
            if self.cfg_scale > 0:
                raise UsageError("masked_diffusion: cfg_scale reads the prompt as masks, and this backbone has no mask")
            fill = run.draws.integers(len(holes), run.capabilities.vocabulary, "noise").tolist()
        placed = {**dict(zip(holes, fill, strict=True)), **tokens}
        ids = torch.tensor([placed[i] for i in seen], device=canvas.device)
        count, index = seen.stop - positions[0], [i - positions[0] for i in positions]
        logits = canvas.read(ids, seen, "all", rows=count)[index]
        if self.cfg_scale > 0 and mask is not None:
            blank = torch.where(torch.arange(len(ids), device=canvas.device) < canvas.start, mask, ids)
            other = canvas.read(blank, seen, "all", rows=count)[index]
            logits = other + (self.cfg_scale + 1) * (logits - other)
            logits[:, mask] = float("-inf")  # which both branches are there
        if self.logits_eos_inf:
            logits = _without(logits, run.capabilities.eos - run.capabilities.turn_ends)
        return logits

    def _count(self, masked: int, done: int, length: int) -> float:
        """Return how many to fill; for ``origin``, the mean."""
        if not self.steps:
            return 1.0
        if self.order in LLADA:
            return float(length // self.steps)
        part = unmasked_fraction(done, self.steps)
        return part * masked if self.order == "origin" else float(int(part * masked))

    def _chosen(self, run: Run, logits: Float[Tensor, "M V"], count: float) -> Fill:
        """Choose indices among the masked positions, and their tokens."""
        p = run.probs(logits)
        if self.rule:
            return self._by_rule(run, logits, p)
        if count and self.order in BY_TOKEN:
            x = run.draws.categorical(p, "draft")
            judged = _without(logits, run.capabilities.eos) if self.confidence_eos_eot_inf else logits
            index = most_confident(
                confidence(self.order, judged, x, run.sampling), int(count), self.alg_temp, run.draws
            )
            return Fill(index, x[index])
        index = self._positions(run, logits, count)
        return Fill(index, run.draws.categorical(p[index], "draft"))

    def _by_rule(self, run: Run, logits: Float[Tensor, "M V"], p: Float[Tensor, "M V"]) -> Fill:
        rule = rule_of(self.rule)
        assert rule is not None  # `__post_init__` has seen it
        x = run.draws.categorical(p, "draft")
        judged = _without(logits, run.capabilities.eos) if self.confidence_eos_eot_inf else logits
        ranked = confidence(self.order, judged, x, run.sampling).sort(descending=True, stable=True)
        index = ranked.indices[: filled_by_rule(*rule, ranked.values)]
        return Fill(index, x[index])

    def _positions(self, run: Run, logits: Float[Tensor, "M V"], count: float) -> Int[Tensor, " k"]:
        """Choose positions that do not depend on the tokens drawn there."""
        size = len(logits)
        if self.order == "random" or (self.order == "origin" and not self.steps):
            return run.draws.distinct(logits.new_full((1, size), 1 / size), int(count), "noise")[0]
        if self.order == "origin":
            accept_probs = logits.new_tensor([1 - count / size, count / size]).clamp(0, 1)
            return run.draws.categorical(accept_probs.expand(size, 2), "accept").nonzero()[:, 0]
        x = torch.zeros(size, dtype=torch.long, device=logits.device)
        return most_confident(confidence(self.order, logits, x, run.sampling), int(count), self.alg_temp, run.draws)

    @classmethod
    def variants(cls) -> Sequence[MaskedDiffusion]:
        return (
            cls(steps=2),
            cls("random", steps=2),
            cls("random", steps=2, block=2),
            *(cls(order, steps=2) for order in DREAM),
            cls("entropy", steps=2, alg_temp=1.0),
            cls(rule="threshold:0.6"),
            cls(rule="factor:1.5"),
            cls("entropy", rule="entropy:1"),
            cls(rule="static:2"),
            cls(block=2, rule="joint:0.6", edit=0.5),
            *(cls(rule="threshold:0.6", block=2, cache=cache) for cache in get_args(Reuse)[1:]),
            *(cls(rule=rule) for rule in ("static:1", "factor:0", "threshold:1.1")),
            cls(rule="joint:1.1", edit=1.0),
            cls(rule="static:1", cache="blocks"),
        )
