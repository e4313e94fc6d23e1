"""The first drafter with a proposal: which one drafts, and what the second one needs."""

from __future__ import annotations

import pytest

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.loop import Decode
from stridebench.harness.core.method import Claim
from stridebench.harness.core.sampling import Sampling
from stridebench.methods.eagle2 import Eagle2
from stridebench.methods.first_of import FirstOf, parsed
from stridebench.methods.specinfer import SpecInfer
from tests.support import toys

SELF = "speculative drafter=self gamma=2"


def decoded(method: FirstOf, temperature: float = 0.0) -> Decode:
    return toys.decoded(method, Sampling(temperature), 60, prompt=(0, 1, 2, 0, 1), vocabulary=6, context=300)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_step_without_a_long_copy_is_one_of_the_second_method(temperature: float) -> None:
    """Drafts of the target itself are all accepted, also behind steps whose tokens its session did not see."""
    steps = decoded(FirstOf("sam", SELF, 3), temperature).steps[:-2]
    second = [step for step in steps if step.nfe > 1]  # passes of the target itself as a drafter
    copied = [step for step in steps if step.nfe == 1]
    assert second and copied
    assert all(step.drafted == step.accepted == 2 for step in second) and all(step.drafted >= 3 for step in copied)


def test_copies_of_any_length_go_first_if_one_token_is_enough() -> None:
    assert decoded(FirstOf("suffix", SELF, 1)).steps[0].nfe == 1
    assert decoded(FirstOf("suffix", SELF, 50)).steps[0].nfe > 1


def test_it_needs_what_the_second_method_needs() -> None:
    method, eagle = FirstOf(), Eagle2()
    assert (method.claim, method.taps, method.requirements) == (Claim.SAME_LAW, eagle.taps, eagle.requirements)
    assert list(method.components) == list(eagle.components) and method.probes().keys() == eagle.probes().keys()
    assert FirstOf(then=SELF).drafters() == ("self",) and Requirement.DRAFTER in FirstOf(then=SELF).requirements
    assert FirstOf(then="zipar window=2").claim is Claim.APPROXIMATE


def test_a_setting_is_read_as_tables_print_it() -> None:
    assert parsed("specinfer drafter=self:layers=26 widths=(2, 1) replacement=False") == SpecInfer(
        "self:layers=26", widths=(2, 1), replacement=False
    )
