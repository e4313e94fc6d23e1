"""A drafter for SmolLM2: a few layers between its embedding's two ends, distilled from its own text and laws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig

from harness.backbones.checkpoints import sources, transformers_models
from harness.backbones.text import drafter_files
from harness.plan import presets
from harness.registry import RECIPES
from harness.train.loop import Recipe
from harness.train.ngram_control import NGram
from harness.train.teacher_passages import Batch, Plan, Texts, texts


@dataclass(frozen=True)
class Distil(Recipe):
    """Soft targets: the drafter's law is drawn towards the teacher's largest probabilities at every position.

    Args:
        teacher: a preset whose weights are on this machine. layers: of the teacher, which the drafter's start from.
        kept: ids proposed, the likeliest under the teacher's laws. rows: of a step. plan: of the text.
    """

    teacher: str = "smollm2-135m"
    layers: tuple[int, ...] = (0, 29)
    kept: int = 8192
    rows: int = 16
    steps: int = 400
    plan: Plan = field(default_factory=Plan)

    kind = "backbone"
    summary = "drafter of SmolLM2-135M: own layers between the two ends of its embedding"
    source = "text of SmolLM2-135M-Instruct (Apache-2.0) from prefixes of Python's standard library (PSF licence)"
    hours = 1.0
    rate = 8e-4
    warmup = 20
    fall = 0.7

    def build(self, parts: Mapping[str, Path]) -> nn.Module:
        """Generates the teacher's text first where the cache holds none: about ten minutes of one core.

        Raises:
            WeightsError: the teacher's weights are not on this machine.
        """
        source = presets.resolve(self.teacher).params["source"]
        folder = sources.locate(self.teacher, sources.parse(self.teacher, source))
        return Student(self, folder, texts(self.teacher, source, self.plan))

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, Student)
        batch = model.texts.training[int(random.integers(len(model.texts.training)))]
        chosen = torch.from_numpy(random.permutation(len(batch.tokens))[: self.rows])
        picked = Batch(batch.tokens[chosen], batch.start, batch.ids[chosen], batch.laws[chosen])
        return model.distance(picked)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """On held-out text, where the teacher wrote it: how often the likeliest token is the teacher's own likeliest.

        ``top1_untrained``: of the layers it started from. ``top1_ngram``: of counts of three tokens in the training
        text. ``accepted``: the sum of min(p, q) over the teacher's largest probabilities, at temperature 1.
        """
        assert isinstance(model, Student)
        counts = NGram.of(batch.tokens for batch in model.texts.training)
        start = Student(self, model.folder, model.texts).eval()
        found = {"top1": 0.0, "top1_untrained": 0.0, "top1_ngram": 0.0, "accepted": 0.0, "covered": 0.0}
        for batch in model.texts.checks:
            here = slice(batch.start - 1, None)
            best = batch.ids[:, here, 0]
            law = model(batch.tokens[:, :-1])[:, here].softmax(-1)
            share = model.spread(law, batch.ids[:, here])
            guesses = {"top1": law, "top1_untrained": start(batch.tokens[:, :-1])[:, here]}
            for key, guess in guesses.items():
                found[key] += float((model.ids[guess.argmax(-1)] == best).float().mean())
            found["top1_ngram"] += float((counts.guess(batch.tokens[:, :-1])[:, here] == best).float().mean())
            found["accepted"] += float(torch.minimum(share, batch.laws[:, here]).sum(-1).mean())
            found["covered"] += float((batch.laws[:, here] * (model.column[batch.ids[:, here]] >= 0)).sum(-1).mean())
        return {key: value / len(model.texts.checks) for key, value in found.items()}

    def export(self, model: nn.Module, folder: Path) -> None:
        """The layers, the norm behind them and the kept ids; the embedding stays with the teacher."""
        assert isinstance(model, Student)
        rounded = {key: value.detach().to(torch.bfloat16) for key, value in model.body.state_dict().items()}
        save_file(
            {**rounded, drafter_files.KEPT: model.ids.int()}, folder / "model.safetensors", metadata={"format": "pt"}
        )
        model.config.save_pretrained(folder)


class Student(nn.Module):
    """The drafter, its frozen embedding and what it is trained on.

    Attributes:
        body: its layers. ends: the frozen embedding, and its rows of the ids proposed. ids: those, [K].
        column: of each id in its laws, -1 where there is none, [V].
    """

    def __init__(self, recipe: Distil, folder: Path, found: Texts) -> None:
        super().__init__()
        self.folder, self.texts = folder, found
        config = transformers_models.read_config(recipe.teacher, folder)
        fields = {**config.to_dict(), "num_hidden_layers": len(recipe.layers), "tie_word_embeddings": False}
        embedding = drafter_files.read_embedding(recipe.teacher, folder)
        ids = likeliest(found.training, len(embedding), recipe.kept)
        whole = drafter_files.assemble(LlamaConfig.from_dict(fields), embedding, ids)
        self.config = whole.config
        self.body: Any = whole.model
        self.body.embed_tokens = None
        self.body.load_state_dict(_layers(folder, recipe.layers))
        self.tied_embeddings = (embedding, embedding[ids])
        self.ids = ids
        self.column = torch.full((len(embedding),), -1)
        self.column[ids] = torch.arange(len(ids))

    def forward(self, tokens: Int[Tensor, "B N"]) -> Float[Tensor, "B N K"]:
        """Logits of the ids proposed."""
        embedding, head = self.tied_embeddings
        hidden: Tensor = self.body(inputs_embeds=embedding[tokens], use_cache=False).last_hidden_state
        return hidden @ head.T

    def spread(self, law: Float[Tensor, "B N K"], ids: Int[Tensor, "B N T"]) -> Float[Tensor, "B N T"]:
        """What a law over the ids proposed gives these ids; 0 to those never proposed."""
        columns = self.column[ids]
        return law.gather(-1, columns.clamp_min(0)) * (columns >= 0)

    def distance(self, batch: Batch) -> Tensor:
        """Cross-entropy to the teacher's largest probabilities among the ids proposed, scaled to sum to one."""
        columns = self.column[batch.ids]
        shares = batch.laws * (columns >= 0)
        logs = self(batch.tokens[:, :-1]).log_softmax(-1).gather(-1, columns.clamp_min(0))
        found: Tensor = (shares * logs).sum(-1) / shares.sum(-1).clamp_min(1e-3)
        return -found.mean()


def likeliest(batches: list[Batch], vocabulary: int, count: int) -> Int[Tensor, " K"]:
    """The ids with the largest probability in all, in order of their number."""
    mass = torch.zeros(vocabulary)
    for batch in batches:
        mass.index_add_(0, batch.ids.flatten(), batch.laws.flatten())
    largest: Tensor = mass.topk(count).indices
    return largest.sort().values


def _layers(folder: Path, layers: tuple[int, ...]) -> dict[str, Tensor]:
    """Tensors of some of a folder's layers, numbered anew, and of the norm behind the last."""
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


RECIPES.register("smollm2-drafter")(Distil())
