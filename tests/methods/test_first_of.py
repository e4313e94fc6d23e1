"""The first drafter with a proposal: which one drafts, what the second one needs, and wrong settings."""

from __future__ import annotations

import pytest

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, decode
from stridebench.harness.core.method import Claim
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import UnknownNameError, UsageError
from stridebench.harness.proof.distance import toy_drafter
from stridebench.methods.eagle2 import Eagle2
from stridebench.methods.first_of import FirstOf, parsed
from stridebench.methods.specinfer import SpecInfer

MODEL = Tabular("tabular", {"vocabulary": 6, "context": 300})
SELF = "speculative drafter=self gamma=2"


def decoded(method: FirstOf, temperature: float = 0.0) -> Decode:
    draws = SeededDraws(0, "t", "p", 0)
    return decode(method, open_run(MODEL, toy_drafter(MODEL), (0, 1, 2, 0, 1), Sampling(temperature), 60, draws))


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


def test_wrong_settings_are_errors() -> None:
    with pytest.raises(UsageError, match="take suffix or sam or ngram_mod or prompt_lookup"):
        FirstOf("speculative")
    with pytest.raises(UsageError, match="without a policy"):
        FirstOf("suffix policy=ema")
    with pytest.raises(UnknownNameError, match="eagle2"):
        FirstOf(then="eagle4")
    with pytest.raises(UsageError, match=r"is no setting of eagle2: .*branches"):
        FirstOf(then="eagle2 branches=3")
    with pytest.raises(UsageError, match="decodes from left to right"):
        FirstOf(then="masked_diffusion")
    with pytest.raises(UsageError, match="least is 0"):
        FirstOf(least=0)
