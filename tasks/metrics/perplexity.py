"""Generative perplexity of texts under a judge, and distinct-n.

They belong together, because a decoder that repeats one text has a low perplexity. Generative perplexity follows Lou et
al. 2024, arXiv:2310.16834, section 5, and distinct-n Li et al. 2016, arXiv:1510.03055, section 5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stridebench.harness.core.task import SetScore
from stridebench.harness.errors import WeightsError
from stridebench.harness.machine.surroundings import quiet
from stridebench.tasks.metrics.features import mean

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

WEIGHTS = Path(str(files("stridebench.harness"))) / "backbones" / "weights"


class Judge:
    """A causal language model and its tokenizer, which scores texts of other models.

    Args:
        name: of weights that come with the package, or a folder of a model of transformers.

    Raises:
        WeightsError: there is no such model.
    """

    def __init__(self, name: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = next((path for path in (WEIGHTS / name, Path(name).expanduser()) if path.is_dir()), None)
        if not name or folder is None:
            raise WeightsError(
                f"there is no judge {name!r}: give the name of weights that come with the package, or the folder of a "
                f"causal language model of transformers"
            )
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            with quiet():
                model: Any = AutoModelForCausalLM.from_pretrained(
                    folder, local_files_only=True, trust_remote_code=False, dtype=torch.float32
                )
        except Exception as error:  # a damaged folder may cause anything
            raise WeightsError(f"the judge {name!r} cannot be read from {folder} ({error})") from error
        self._model = model.eval().requires_grad_(False)

    def nats(self, prompt: str, text: str) -> Float[Tensor, " N"]:
        """Return minus the log-probability of each token of a text after its prompt, at T = 1."""
        import torch

        prompt_ids, text_ids = (self._tokenizer(part, add_special_tokens=False).input_ids for part in (prompt, text))
        logits = self._model(input_ids=torch.tensor([[*prompt_ids, *text_ids]])).logits[0, len(prompt_ids) - 1 : -1]
        nats: Float[Tensor, " N"] = -logits.log_softmax(-1).gather(1, torch.tensor(text_ids)[:, None])[:, 0]
        return nats


@lru_cache(maxsize=2)
def judge(name: str) -> Judge:
    """Load a judge once; see `Judge`."""
    return Judge(name)


def perplexity(ids: Sequence[str], nats: Sequence[float], failures: int = 0) -> SetScore:
    """Return exp of the mean nats a token over outputs of one length; the 95 % interval resamples prompts.

    Args:
        nats: mean over the tokens of each output.
    """
    score = mean(ids, nats, failures)
    if score.value is None:
        return SetScore(None, score.n, score.failures, reason="no output has a token")
    low, high = (None if bound is None else math.exp(bound) for bound in (score.low, score.high))
    return replace(score, value=math.exp(score.value), low=low, high=high)


def distinct(texts: Mapping[str, Sequence[str]], n: int) -> SetScore:
    """Return different n-grams of characters over all n-grams, in all texts together; no n-gram spans two texts.

    It falls with the number of texts, so compare cells with equal numbers of prompts only.
    """
    grams = [text[at : at + n] for of_prompt in texts.values() for text in of_prompt for at in range(len(text) - n + 1)]
    count = sum(map(len, texts.values()))
    if not grams:
        return SetScore(None, count, reason=f"no output has {n} characters")
    return SetScore(len(set(grams)) / len(grams), count)
