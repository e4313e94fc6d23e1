"""Decodes with a sampler and audits its tokens one by one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch

from stridebench.harness.audit.bets import bet, gains_of, mixture, newton_path
from stridebench.harness.audit.laws import MARGINS, laws_of, outcomes_of
from stridebench.harness.audit.outcomes import FloatArray
from stridebench.harness.audit.output import drafter_logits, target_logits, unguided_logits
from stridebench.harness.audit.verdict import audit
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.loop import decode
from stridebench.harness.core.models import Models
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import warp
from stridebench.harness.core.task import Prompt
from stridebench.harness.plan import presets
from stridebench.harness.proof.mutants import injected
from stridebench.harness.record.metrics import REFUTED
from stridebench.harness.registry import METHODS, TASKS
from tests.power.biases import Sampler, Setting


@dataclass(frozen=True)
class Trial:
    """What the audit saw of one sampler.

    Args:
        outputs: token ids by prompt and repetition.
        path: log e-value after each token, in the order of repetitions and prompts.
        impossible: tokens so far that cannot be drawn, after each token.
        visible: total variation a token that 9 of 10 audits of so many tokens see; None: not every kind of bias.
        ideal: tokens after which a bet on the sampler's own distribution reaches 1000 on average; None: not known.
    """

    outputs: tuple[tuple[tuple[int, ...], ...], ...]
    path: FloatArray
    impossible: FloatArray
    visible: float | None
    ideal: float | None

    @property
    def refuted_after(self) -> int | None:
        """The first token at which the e-value reaches 1000, or that cannot be drawn; None: there is none."""
        reached = (self.path >= np.log(REFUTED)) | (self.impossible > 0)
        return int(reached.argmax()) + 1 if reached.any() else None


@cache
def model(name: str) -> Backbone:
    return presets.load(name, "fp32")


@cache
def prompts(setting: Setting) -> tuple[Prompt, ...]:
    return tuple(TASKS.get(setting.task)().prompts()[: setting.prompts])


def decoded(sampler: Sampler) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Outputs by prompt and repetition, with the bias in place."""
    setting, backbone = sampler.setting, model(sampler.setting.backbone)
    method = METHODS.get(sampler.method)(**sampler.params)
    load_drafter = cache(partial(presets.drafter, backbone))
    rows = []
    with ExitStack() as stack:
        for mutant in sampler.mutants:
            stack.enter_context(injected(mutant))
        for prompt in prompts(setting):
            outputs = []
            for repetition in range(setting.repetitions):
                draws = sampler.draws(7, sampler.name, prompt.id, repetition)
                models = Models(backbone, load_drafter, prompt)
                run = Run.of(models, sampler.sampling or setting.sampling, setting.tokens, draws)
                outputs.append(decode(method, run).tokens)
            rows.append(tuple(outputs))
    return tuple(rows)


def audited(sampler: Sampler, outputs: Sequence[Sequence[Sequence[int]]]) -> Trial:
    """The e-value after each token: all prompts once, then again."""
    setting, gains, tilts, impossible, parts, nats = sampler.setting, [], [], [], [], []
    backbone = model(setting.backbone)
    for repetition in range(setting.repetitions):
        for prompt, by_repetition in zip(prompts(setting), outputs, strict=True):
            tokens = by_repetition[repetition]
            target = target_logits(backbone, prompt, tokens)
            laws = laws_of(target, setting.sampling, MARGINS["fp32"])
            start = backbone.open(prompt).tokens
            q = None
            if setting.drafter:
                load = partial(presets.drafter, backbone)
                q = warp(drafter_logits(backbone, load, setting.drafter, prompt, tokens), setting.sampling)
            logits = unguided_logits(backbone, partial(presets.drafter, backbone), prompt, tokens)
            plain = None if logits is None else warp(logits, setting.sampling)
            outcomes = outcomes_of(laws, [*start, *tokens], len(start), setting.sampling.top_p, q, plain)
            ids, row = np.array(tokens), np.arange(len(tokens))
            index = torch.tensor(tokens)[:, None]
            near, probs = (table.gather(1, index)[:, 0].numpy() for table in (laws.near, laws.probs))
            bets, place = gains_of(outcomes), outcomes.of(ids)
            counted = (~near & (probs > 0))[:, None]
            gains.append(bets.log[row, place] * counted)
            tilts.append(bets.tilts[row, place] * counted)
            impossible.append(~near & (probs <= 0))
            parts.append(bet(outcomes, ids, near, probs))
            if sampler.sampling is not None:  # then its distribution is known at each place
                drawn, p = (warp(target, way).double() for way in (sampler.sampling, setting.sampling))
                nats.append(float(torch.where(drawn > 0, drawn * (drawn / p).log(), 0.0).sum(-1).mean()))
    path = mixture(np.concatenate(gains).cumsum(0), newton_path(np.concatenate(tilts)))
    frozen = tuple(tuple(tuple(map(int, one)) for one in by_repetition) for by_repetition in outputs)
    ideal = np.log(REFUTED) / np.mean(nats) if nats else None
    return Trial(frozen, path, np.concatenate(impossible).cumsum(), audit(parts).visible_tv, ideal)


def tried(sampler: Sampler) -> Trial:
    """Decode with a sampler, then audit it without its bias."""
    with torch.inference_mode():
        return audited(sampler, decoded(sampler))
