"""How likely a language model finds texts that another one wrote, and how much they repeat themselves.

The two belong together: a decoder that always says the same has a low perplexity. Generative perplexity as in Lou et
al. 2024, arXiv:2310.16834, section 5; distinct-n as in Li et al. 2016, arXiv:1510.03055, section 5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from harness.core.task import SetScore
from harness.errors import WeightsError
from harness.platform.quiet import quiet
from tasks.metrics.image_stats import mean

WEIGHTS = Path(str(files("harness"))) / "backbones" / "weights"


class Judge:
    """A causal language model and its tokenizer, which scores what others wrote.

    Args:
        name: of weights that come with the package, or a folder of a model of transformers.

    Raises:
        WeightsError: there is no such model.
    """

    def __init__(self, name: str) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = next((path for path in (WEIGHTS / name, Path(name).expanduser()) if path.is_dir()), None)
        if not name or folder is None:
            raise WeightsError(
                f"there is no judge {name!r}: give the name of weights that come with the package, or the folder of a "
                f"causal language model of transformers"
            )
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            with quiet():
                model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
        except (OSError, ValueError, KeyError) as error:
            raise WeightsError(f"the judge {name!r} cannot be read from {folder} ({error})") from error
        self._model = model.eval().requires_grad_(False)

    def nats(self, prompt: str, text: str) -> Float[Tensor, " N"]:
        """Minus the log-probability of each token of a text after its prompt, at T = 1."""
        asked, said = (self._tokenizer(part, add_special_tokens=False).input_ids for part in (prompt, text))
        logits = self._model(input_ids=torch.tensor([[*asked, *said]])).logits[0, len(asked) - 1 : -1]
        found: Float[Tensor, " N"] = -logits.log_softmax(-1).gather(1, torch.tensor(said)[:, None])[:, 0]
        return found


@lru_cache(maxsize=2)
def judge(name: str) -> Judge:
    """Read once; see `Judge`."""
    return Judge(name)


def perplexity(ids: Sequence[str], nats: Sequence[float], failures: int = 0) -> SetScore:
    """exp of the mean of nats a token over outputs of one length; the 95 % interval resamples prompts.

    Args:
        ids: prompt of each output. nats: mean over its tokens. failures: outputs without a token.
    """
    found = mean(ids, nats, failures)
    if found.value is None:
        return SetScore(None, found.n, found.failures, reason="no output has a token")
    low, high = (None if end is None else math.exp(end) for end in (found.low, found.high))
    return SetScore(math.exp(found.value), found.n, found.failures, low, high)


def distinct(texts: Mapping[str, Sequence[str]], n: int) -> SetScore:
    """Different n-grams of characters over all n-grams, in all texts together; none crosses the end of a text.

    It falls with the number of texts, so compare cells of as many prompts only.

    Args:
        texts: by prompt id.
    """
    grams = [text[at : at + n] for several in texts.values() for text in several for at in range(len(text) - n + 1)]
    count = sum(map(len, texts.values()))
    if not grams:
        return SetScore(None, count, reason=f"no output has {n} characters")
    return SetScore(len(set(grams)) / len(grams), count)
