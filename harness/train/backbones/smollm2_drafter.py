"""A drafter for SmolLM2: a few layers between its embedding and unembedding, distilled from SmolLM2's text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors import safe_open
from torch import Tensor, nn
from transformers import LlamaConfig

from stridebench.harness.backbones.checkpoints import sources, transformers_models
from stridebench.harness.backbones.text import drafter
from stridebench.harness.kernels import int8
from stridebench.harness.plan import presets
from stridebench.harness.registry import RECIPES
from stridebench.harness.train.passages import NGram, TextBatch, TextPlan, Texts, texts_of
from stridebench.harness.train.recipe import Recipe


@dataclass(frozen=True)
class DistilledDrafter(Recipe):
    """Soft targets: cross-entropy to the teacher's largest probabilities at every position.

    Args:
        teacher: a preset whose weights are on this machine.
        layers: the teacher's layers that the drafter starts from.
        kept: number of ids that the drafter proposes, the most probable ones under the teacher.
    """

    teacher: str = "smollm2-135m"
    layers: tuple[int, ...] = (0, 29)
    kept: int = 8192
    rows: int = 16
    steps: int = 400
    plan: TextPlan = field(default_factory=TextPlan)

    kind = "backbone"
    summary = "drafter of SmolLM2-135M: own layers between its embedding and unembedding"
    source = "text of SmolLM2-135M-Instruct (Apache-2.0) from prefixes of Python's standard library (PSF licence)"
    hours = 1.0
    rate = 8e-4
    warmup = 20
    fall = 0.7

    def build(self, requirements: Mapping[str, Path]) -> nn.Module:
        """Return a student. Generates the teacher's texts first if the cache holds none (ten minutes of a core)."""
        source = presets.resolve(self.teacher).params["source"]
        folder = sources.locate(self.teacher, sources.parse(self.teacher, source))
        return DistilledStudent(self, folder, texts_of(self.teacher, source, self.plan))

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, DistilledStudent)
        batch = model.texts.training[int(random.integers(len(model.texts.training)))]
        chosen = torch.from_numpy(random.permutation(len(batch.tokens))[: self.rows])
        drawn = TextBatch(batch.tokens[chosen], batch.start, batch.ids[chosen], batch.probs[chosen])
        return model.distance(drawn)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures on the tokens that the teacher wrote in held-out texts.

        - ``top1``: how often the drafter's most probable token is the teacher's.
        - ``top1_untrained``: the same, of the layers that the drafter started from.
        - ``top1_ngram``: the same, of an n-gram of the training texts.
        - ``accepted``: the sum of min(p, q) over the teacher's largest probabilities, at temperature 1.
        - ``covered``: the share of those probabilities that lies on ids that the drafter proposes.
        """
        assert isinstance(model, DistilledStudent)
        counts = NGram.of(batch.tokens for batch in model.texts.training)
        start = DistilledStudent(self, model.folder, model.texts).eval()
        sums = {"top1": 0.0, "top1_untrained": 0.0, "top1_ngram": 0.0, "accepted": 0.0, "covered": 0.0}
        for batch in model.texts.checks:
            own = slice(batch.start - 1, None)
            ids, p, tokens = batch.ids[:, own], batch.probs[:, own], batch.tokens[:, :-1]
            q = model(tokens)[:, own].softmax(-1)
            scores = {"top1": q, "top1_untrained": start(tokens)[:, own]}
            guesses = {key: model.ids[score.argmax(-1)] for key, score in scores.items()}
            guesses["top1_ngram"] = counts.guess(tokens)[:, own]
            for key, guess in guesses.items():
                sums[key] += float((guess == ids[..., 0]).float().mean())
            sums["accepted"] += float(torch.minimum(model.spread(q, ids), p).sum(-1).mean())
            sums["covered"] += float((p * (model.column[ids] >= 0)).sum(-1).mean())
        return {key: value / len(model.texts.checks) for key, value in sums.items()}

    def export(self, model: nn.Module, folder: Path) -> None:
        """Write the layers, the last norm and the proposed ids; the embedding stays with the teacher."""
        assert isinstance(model, DistilledStudent)
        rounded = {key: value.detach().to(torch.bfloat16) for key, value in model.body.state_dict().items()}
        int8.write_unpacked(folder / "model.safetensors", {**rounded, drafter.KEPT: model.ids.int()})
        model.config.save_pretrained(folder)


class DistilledStudent(nn.Module):
    """The drafter, its frozen embedding and its training data.

    Attributes:
        tied_embeddings: the frozen embedding, and its rows of the proposed ids.
        column: for each id of the vocabulary its place among the proposed ids; -1: it is not proposed.
    """

    def __init__(self, recipe: DistilledDrafter, folder: Path, texts: Texts) -> None:
        super().__init__()
        self.folder, self.texts = folder, texts
        config = transformers_models.read_config(recipe.teacher, folder)
        fields = {**config.to_dict(), "num_hidden_layers": len(recipe.layers), "tie_word_embeddings": False}
        embedding = drafter.read_embedding(recipe.teacher, folder)
        ids = most_probable(texts.training, len(embedding), recipe.kept)
        model = drafter.assemble(LlamaConfig.from_dict(fields), embedding, ids)
        self.config = model.config
        self.body: Any = model.model
        self.body.embed_tokens = None
        self.body.load_state_dict(_layers(folder, recipe.layers))
        self.tied_embeddings = (embedding, embedding[ids])
        self.ids = ids
        self.column = torch.full((len(embedding),), -1)
        self.column[ids] = torch.arange(len(ids))

    def forward(self, tokens: Int[Tensor, "B N"]) -> Float[Tensor, "B N K"]:
        """Logits of the proposed ids."""
        embedding, head = self.tied_embeddings
        hidden: Tensor = self.body(inputs_embeds=embedding[tokens], use_cache=False).last_hidden_state
        return hidden @ head.T

    def spread(self, q: Float[Tensor, "B N K"], ids: Int[Tensor, "B N T"]) -> Float[Tensor, "B N T"]:
        """The probabilities of ids under a distribution over the proposed ids; 0 for ids that are not proposed."""
        columns = self.column[ids]
        return q.gather(-1, columns.clamp_min(0)) * (columns >= 0)

    def distance(self, batch: TextBatch) -> Tensor:
        """Cross-entropy to the teacher's largest probabilities on proposed ids, normalised to sum to one."""
        columns = self.column[batch.ids]
        shares = batch.probs * (columns >= 0)
        logs = self(batch.tokens[:, :-1]).log_softmax(-1).gather(-1, columns.clamp_min(0))
        log_likelihood: Tensor = (shares * logs).sum(-1) / shares.sum(-1).clamp_min(1e-3)
        return -log_likelihood.mean()


def most_probable(batches: list[TextBatch], vocabulary: int, count: int) -> Int[Tensor, " K"]:
    """The ids with the largest sums of probability, in ascending order."""
    mass = torch.zeros(vocabulary)
    for batch in batches:
        mass.index_add_(0, batch.ids.flatten(), batch.probs.flatten())
    largest: Tensor = mass.topk(count).indices
    return largest.sort().values


def _layers(folder: Path, layers: tuple[int, ...]) -> dict[str, Tensor]:
    """Tensors of some layers of a folder, renumbered, and of the last norm."""
    return {
        key: tensor
        for path in sorted(folder.glob("*.safetensors"))
        for key, tensor in _renamed(path, {f"layers.{old}.": f"layers.{new}." for new, old in enumerate(layers)})
    }


def _renamed(path: Path, names: Mapping[str, str]) -> Iterator[tuple[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        for key in file.keys():  # noqa: SIM118  # no mapping
            plain = key.removeprefix("model.")
            if plain == "norm.weight":
                yield plain, file.get_tensor(key).float()
            for old, new in names.items():
                if plain.startswith(old):
                    yield plain.replace(old, new, 1), file.get_tensor(key).float()


RECIPES.register("smollm2-drafter")(DistilledDrafter())
