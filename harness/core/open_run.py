"""Opening a run on one prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.core.backbone import Backbone
from harness.core.draws import Draws
from harness.core.models import Models
from harness.core.run import Run
from harness.core.sampling import Sampling
from harness.core.task import Prompt


def open_run(
    backbone: Backbone,
    load_drafter: Callable[[str], Backbone],
    prompt: Prompt | Sequence[int],
    sampling: Sampling,
    budget: int,
    draws: Draws,
) -> Run:
    """A run on one prompt, which decodes alone and is timed by the CPU's clock; for others see `Run.of`.

    Args:
        load_drafter: loads a drafter by name; called when a method opens it.
        prompt: or bare token ids.
        budget: output tokens allowed.
    """
    return Run.of(Models(backbone, load_drafter, prompt), sampling, budget, draws)
