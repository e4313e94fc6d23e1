"""Drafts of a small model, token by token or in one pass over masks, and policies of their length.

Sources of the policies: `keep`, Mamou et al. 2024 (DISCO), arXiv:2405.04304, with a threshold for a classifier, as in
transformers' ``ConfidenceCriteria``; `conf`, vLLM's ``draft_confidence_threshold``; `p_min`, llama.cpp; `entropy`,
Agrawal et al. 2024 (AdaEDL), arXiv:2410.18351; `ema`, SGLang's adaptive number of steps; `table`, vLLM's
``num_speculative_tokens_per_batch_size``; `head`, Huang et al. 2024 (SpecDec++), arXiv:2405.19715, Algorithm 1;
`budget`, vLLM's adaptive verification, with the highest probabilities in place of its fitted model of acceptance.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.core.batch import SharedFigures
from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.method import Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.core.session import Session
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.methods.drafters import checkpoint

POLICIES = {"conf": 0.4, "keep": 0.4, "p_min": 0.75, "entropy": 0.4, "ema": 0.2, "table": 1.0, "head": 0.3, "budget": 8}
"""Policies of the length of a draft, and the number of each unless it is given, as in ``conf:0.6``."""
BY_LAW = ("conf", "keep", "p_min", "entropy", "budget")
"""Policies that read the drafter's distribution."""
OF_MODELS = ("head", "budget")
"""Policies of drafts that a `ModelDrafter` draws."""
LEARNING = ("entropy", "ema")
"""Policies that follow how many drafts were accepted."""
SPREAD, TARGET_RATE, STEP, OLD_RATE, OLD_THRESHOLD = 0.2, 0.9, 0.01, 0.5, 0.9
"""Constants of `entropy`: gamma, the rate of acceptance that it aims at, epsilon, beta_1 and beta_2 of AdaEDL."""


@dataclass
class DraftLength:
    """Decides where the drafts of one prompt end, before their most tokens.

    A draft may end for anything that is known before its next token is drawn, or behind a token for that token itself.
    To drop a drawn token for its value would bias the output: the tokens that stay were not drawn from q then.

    Args:
        name: of the policy; "" ends no draft.
        value: its number.
        steps: of `table`: decodes in the batch, and the most tokens from that number on.
        threshold: the number, which `entropy` moves.
        rate: share of the drafts that were accepted, of `entropy`; accepted drafts a step, of `ema`.
    """

    name: str = ""
    value: float = 0.0
    steps: tuple[tuple[int, int], ...] = ()
    threshold: float = 0.0
    rate: float = 0.0

    @classmethod
    def of(cls, method: str, policy: str, most: int, has_law: bool = True, of_model: bool = False) -> DraftLength:
        """Return the policy ``NAME`` or ``NAME:NUMBER``; ``table:1=8,4=3`` lists batch sizes and most tokens.

        Args:
            has_law: false for drafters that propose point masses.
            of_model: whether a `ModelDrafter` draws the drafts.

        Raises:
            UsageError: there is no such policy, its number is out of range, or it needs a distribution.
        """
        name, _, number = policy.partition(":")
        if policy and name not in POLICIES:
            raise UsageError(f"{method}: policy is {policy!r}; known: {', '.join(POLICIES)}")
        if name in BY_LAW and not has_law:
            raise UsageError(
                f"{method}: policy {name} reads the drafter's distribution, and copied tokens have none; take "
                f"{' or '.join(other for other in POLICIES if other not in BY_LAW)}"
            )
        if name in OF_MODELS and not of_model:
            raise UsageError(f"{method}: policy {name} is one of speculative's; take ema or table, or conf if it has q")
        if name == "budget":
            if number and not (number.isdecimal() and int(number)):
                raise UsageError(f"{method}: policy is {policy!r}; give the drafts of a batch, as in budget:12")
            return cls(name, float(number or POLICIES[name]))
        if name == "table":
            return cls(name, steps=_steps(method, policy, number))
        value = _share(method, policy, number) if number else POLICIES.get(name, 0.0)
        return cls(name, value, (), value, float(most) if name == "ema" else TARGET_RATE)

    def limit(self, run: Run, most: int) -> int:
        """Return the most tokens of the next draft."""
        if self.name == "ema":
            return min(most, 1 + round(self.rate))
        if self.name == "table":
            running = 1 if run.slot is None else run.slot.served
            return min([most, *(tokens for decodes, tokens in self.steps if decodes <= running)][-1], most)
        return most

    def law(self, run: Run, logits: Float[Tensor, "1 V"], q: Float[Tensor, "1 V"]) -> Float[Tensor, "1 V"]:
        """Return the distribution that is looked at: q, or that of temperature 1 at T = 0, where q is one token."""
        return q if run.sampling.temperature > 0 or self.name not in BY_LAW else warp(logits, Sampling(1.0))

    def ends_before(self, law: Float[Tensor, "m V"]) -> bool:
        """Return whether no token is drawn from this distribution (m = 1 if so); reads it on its device."""
        return self.name in BEFORE and bool(BEFORE[self.name](law) < self.threshold)

    def ends_behind(self, law: Float[Tensor, "m V"], x: Int[Tensor, " n"], kept: float = 1.0) -> bool:
        """Return whether ``x`` is the last token (m = n = 1 if so); reads its probability on its device.

        Args:
            kept: probability that all drafts before ``x`` are accepted, by a head that has not read ``x``.
        """
        return (self.name == "keep" and bool(law[0, x] < self.threshold)) or (
            self.name == "head" and 1 - kept > self.threshold
        )

    def in_budget(self, run: Run, survivals: Sequence[float]) -> int:
        """Return how many drafts are among the `value` ones of all decodes in the batch that most likely survive.

        A draft that is left out was never looked at: its rank, and those of drafts before it, follow from distributions
        given drafts that stay. So the outputs of all decodes have the target's distribution jointly.

        Args:
            survivals: of each draft, falling.
        """
        if self.name != "budget":
            return len(survivals)
        shared = SharedFigures.alone(survivals) if run.slot is None else run.slot.share(survivals)
        ranked = sorted(
            (-survival, depth, row)
            for row, figures in enumerate(shared.figures)
            for depth, survival in enumerate(figures)
        )
        return sum(row == shared.own for _, _, row in ranked[: int(self.value)])

    def follow(self, drafted: int, acceptance: Acceptance) -> None:
        """Learn from a step; reads its acceptance if the policy learns."""
        if self.name in LEARNING:
            self.learn(drafted, acceptance.read().accepted)

    def learn(self, drafted: int, accepted: int) -> None:
        """Move the rate, and the threshold of `entropy`, which an empty draft lowers."""
        if self.name == "ema":
            self.rate += self.value * (accepted - self.rate)
            return
        if drafted:
            self.rate = OLD_RATE * self.rate + (1 - OLD_RATE) * accepted / drafted
        moved = self.threshold + (STEP if drafted and self.rate < TARGET_RATE else -STEP)
        self.threshold = OLD_THRESHOLD * self.threshold + (1 - OLD_THRESHOLD) * moved


def highest(law: Float[Tensor, "m V"]) -> Float[Tensor, ""]:
    """Return the probability of the most probable token, of all rows."""
    return law.max()


def calm(law: Float[Tensor, "1 V"]) -> Float[Tensor, ""]:
    """Return 1 - sqrt(gamma H), AdaEDL's lower bound of the rate of acceptance, with the entropy H in nats."""
    entropy: Tensor = torch.special.entr(law).sum()
    return 1 - (SPREAD * entropy).sqrt()


BEFORE = {"conf": highest, "p_min": highest, "entropy": calm}
"""Of policies that end a draft before a position: the figure of its distribution that must reach the threshold."""


def _share(method: str, policy: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise UsageError(f"{method}: policy is {policy!r}; give a number from 0 to 1 behind the colon, or none")
    return value


def _steps(method: str, policy: str, table: str) -> tuple[tuple[int, int], ...]:
    pairs = [pair.split("=") for pair in table.split(",")]
    if not all(len(pair) == 2 and all(number.isdecimal() for number in pair) for pair in pairs):
        raise UsageError(
            f"{method}: policy is {policy!r}; list batch sizes and tokens of a draft, as in table:1=8,4=3,16=0"
        )
    return tuple(sorted((int(decodes), int(tokens)) for decodes, tokens in pairs))


class AcceptanceHead(nn.Module):
    """The probability that a drafted token is accepted if those before it are, from the drafter's last row at it.

    Blocks of x + SiLU(W x + b), and two logits, of which the second one is that of acceptance.

    Args:
        width: E.
        layers: blocks; the released head has three, which share one W.

    Source: Huang et al. 2024, arXiv:2405.19715, section 4.
    """

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.last = nn.Linear(width, 2)

    def forward(self, row: Float[Tensor, " E"]) -> Float[Tensor, ""]:
        """Return the probability."""
        row = row.to(self.last.weight.dtype)
        for block in self.blocks:
            row = row + functional.silu(block(row))
        logits: Tensor = self.last(row)
        return logits.softmax(0)[1]

    @classmethod
    def open(cls, run: Run, name: str, session: Session) -> AcceptanceHead:
        """Return the head of this name for the drafter of a session, read once for all prompts.

        Raises:
            WeightsError: it is not there, damaged, or for rows of another width.
        """
        return acceptance_head(run.component("acceptance head", name), session.capabilities.width, session.device)

    @classmethod
    def load(cls, folder: Path) -> AcceptanceHead:
        """Read a head in the layout of hacky/acchead-llama2-chat-7bx70b; a block that is not stored is the first one.

        Raises:
            WeightsError: the folder holds something else.
        """
        file = folder / "config.json"
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
            head = cls(int(config["hidden_size"]), layers := int(config.get("num_layers", 0)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise WeightsError(f"{file} is not that of an acceptance head ({error!r:.100}); {HEAD_FILES}") from error
        state = checkpoint.tensors(folder)
        names = {f"last.{leaf}": f"model.{layers}.{leaf}" for leaf in ("weight", "bias")}
        for block in range(layers):
            stored = block if any(key.startswith(f"model.{block}.") for key in state) else 0
            names |= {f"blocks.{block}.{leaf}": f"model.{stored}.linear.{leaf}" for leaf in ("weight", "bias")}
        others = {key: value for key, value in state.items() if key not in names.values()}
        own = {key: state[name] for key, name in names.items() if name in state}
        checkpoint.fill(folder, head, own | others, names)
        return head.eval().requires_grad_(False)


HEAD_FILES = (
    "put config.json with hidden_size and num_layers into the folder, and model.safetensors or pytorch_model.bin with "
    "the tensors model.0.linear.weight and so on, as SpecDec++ saves them"
)


@lru_cache(maxsize=4)
def acceptance_head(folder: Path | None, width: int, device: torch.device) -> AcceptanceHead:
    """Return the head in a folder, or a toy's, for rows of this width; see `AcceptanceHead.open`."""
    if folder is not None:
        head = AcceptanceHead.load(folder)
        if head.last.in_features != width:
            raise WeightsError(
                f"the acceptance head in {folder} reads rows of width {head.last.in_features}, and those of the "
                f"drafter have {width}: take the head that was trained for this drafter"
            )
        return head.to(device)
    head = AcceptanceHead(width, 1).double().requires_grad_(False)
    head.last.bias.zero_()
    for weight in (*head.blocks.parameters(), head.last.weight):
        weight.copy_(torch.arange(1, 1 + weight.numel(), dtype=weight.dtype).square().sin().view(weight.shape))
    return head


@dataclass
class ModelDrafter:
    """Draws ``gamma`` tokens from a drafter's distribution, warped as the target's.

    Args:
        gamma: drafts a step, fewer near the end.
        length: ends a draft before that. By `p_min` the most probable tokens are drafted, as point masses.
        coupled: draw by the clocks of each position, as a target does that is verified by them.
        mask: the id whose copies the drafter fills, all drafts in one pass; or None for a pass each.
        head: name of the head of policy `head`, whose first look is at the second pass, which reads the first draft.
    """

    session: Session
    gamma: int
    length: DraftLength = field(default_factory=DraftLength)
    coupled: bool = False
    mask: int | None = None
    head: str = ""

    def propose(self, run: Run) -> Draft:
        """Draw a chain of drafts; the whole distribution of each is kept."""
        self.session.sync(run.target.tokens)
        tokens: list[Tensor] = []
        probs: list[Tensor] = []
        survivals: list[float] = []
        kept = survival = 1.0
        head = AcceptanceHead.open(run, self.head, self.session) if self.head else None
        room = self.session.capabilities.context - len(self.session)
        for logits in self._rows(min(self.length.limit(run, self.gamma), run.room - 1, room)):
            q = run.probs(logits)
            law = self.length.law(run, logits, q)
            if self.length.ends_before(law):
                break
            if head is not None and tokens:
                kept *= float(head(self.session.newest[-1, 0, 0]))
            x = self._token(run, q)
            if self.length.name == "budget":
                survival *= float(highest(law))
            self.session.append(x)
            tokens.append(x)
            probs.append(q)
            survivals.append(survival)
            if self.length.ends_behind(law, x, kept):
                break
        count = self.length.in_budget(run, survivals[: len(tokens)])
        if not count:
            return run.nothing
        return Draft(torch.cat(tokens[:count]), None if self.length.name == "p_min" else torch.cat(probs[:count]))

    def _rows(self, drafts: int) -> Iterator[Float[Tensor, "1 V"]]:
        """Yield the logits of each draft. A pass reads the drafts before it; with masks, one pass reads none of them.

        The masks are not committed, so their entries leave the cache before the next pass.
        """
        if self.mask is None:
            for _ in range(drafts):
                yield self.session.forward()
        elif drafts > 0:
            masks = Draft(torch.full((drafts - 1,), self.mask, device=self.session.device))
            yield from torch.split(self.session.forward(masks), 1)

    def _token(self, run: Run, q: Float[Tensor, "1 V"]) -> Int[Tensor, " 1"]:
        if self.length.name == "p_min":
            return q.argmax(-1)
        return run.draws.race(q, [len(self.session)]) if self.coupled else run.draws.categorical(q, "draft")


# Bugs to inject, which `stride verify` must catch.

OTHER_PROBS_RECORDED = Mutant(
    f"{__name__}:ModelDrafter.propose",
    "probs.append(q)",
    "probs.append((q + 0.1) / (q + 0.1).sum())",
    "the recorded distribution is not the one that was sampled",
)
NOT_NORMALISED = Mutant(
    f"{__name__}:ModelDrafter.propose",
    "probs.append(q)",
    "probs.append(q / 2)",
    "tli_unnormalised: the recorded distribution still lacks the share of tokens that the target does not have",
)
MOST_PROBABLE_DRAFTS = Mutant(
    f"{__name__}:ModelDrafter._token",
    'run.draws.categorical(q, "draft")',
    "q.argmax(-1)",
    "the most probable tokens are drafted and judged with the whole distribution, as in transformers",
)
DROPPED_FOR_ITS_PROBABILITY = Mutant(
    f"{__name__}:ModelDrafter.propose",
    "if self.length.ends_behind(law, x, kept):",
    "if self.length.ends_behind(law, x, kept) and (tokens.pop(), probs.pop()):",
    "a drawn token is dropped because it is improbable",
)
DROPPED_FOR_ANOTHER = Mutant(
    f"{__name__}:ModelDrafter.propose",
    "survival *= float(highest(law))",
    "survival *= float(law[0, x])",
    "the budget of a batch goes to the drafts that turned out probable",
)
DROPPED_FOR_ITS_DOUBT = Mutant(
    f"{__name__}:ModelDrafter.propose",
    "if self.length.ends_behind(law, x, kept):",
    "if self.length.ends_behind(law, x, kept) and (tokens := tokens[:-2], probs := probs[:-2]):",
    "the drawn token that the head doubts is dropped, and the one behind it",
)
