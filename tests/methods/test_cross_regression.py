"""Cross-Regression: the exact test, the cost of the printed ones, and what both streams read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, log
from typing import Any

import pytest
import torch

from stridebench.harness.backbones.toy import GATED, Tabular
from stridebench.harness.core.cache import Window
from stridebench.harness.core.clock import CpuClock, Stopwatch
from stridebench.harness.core.draft import Acceptance, Draft, Path
from stridebench.harness.core.loop import Decode
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.session import Session
from stridebench.harness.errors import ContractError, UsageError
from stridebench.harness.proof.cases import CASES, Case
from stridebench.harness.proof.distance import distance
from stridebench.harness.proof.prove import EXACT
from stridebench.methods.cross_regression import CrossRegression, Layout
from stridebench.methods.verifiers.energy import NEVER, EnergyRule, energies, smoothed, without_last_node
from tests.support import toys

A, B = Case(2, 4, 40, Sampling(1.0)), Case(3, 3, 41, Sampling(1.0))
GREEDY = next(case for case in CASES if (case.length, case.sampling.temperature, case.eos) == (5, 0.0, (1,)))
LAYOUTS: tuple[Layout, ...] = ("sequential", "joint")
SEQUENTIAL, JOINT = CrossRegression(horizon=2, layout="sequential"), CrossRegression(horizon=2)
PRINTED = CrossRegression(horizon=2, layout="alg1_as_printed")


def cost(method: Method[Any], case: Case = A) -> float:
    return distance(method, case)


def alg2(tau: float, noise: Any = "logU") -> CrossRegression:
    return replace(SEQUENTIAL, mode="alg2", tau=tau, noise=noise)


@pytest.mark.usefixtures("unchecked")
class TestExact:
    def test_drafts_among_the_likeliest_tokens_record_their_own_distribution(self) -> None:
        assert cost(replace(JOINT, draft_top=2), B) < EXACT

    @pytest.mark.parametrize(
        "changed",
        [{"beta": 0.5}, {"mode": "alg2", "tau": -4.0, "noise": "uni"}, {"mode": "det", "tau": -14.0, "clip": True}],
        ids=str,
    )
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_every_mode_is_exact_at_t_0(self, layout: Layout, changed: dict[str, Any]) -> None:
        assert cost(CrossRegression(horizon=3, layout=layout, **changed), GREEDY) < EXACT


@pytest.mark.usefixtures("unchecked")
class TestCosts:
    """Pinned: another number is another algorithm."""

    @pytest.mark.parametrize(
        ("method", "tv"),
        [
            (alg2(0.0), 0.796698505),
            (alg2(-1.0), 0.276041867),
            (alg2(-12.0), 4.502616e-6),
            (alg2(-1.0, "uni"), 0.193396140),
            (alg2(-12.0, "uni"), 0.444503493),
            (replace(SEQUENTIAL, beta=0.5), 0.059418219),
            (replace(SEQUENTIAL, beta=0.9), 0.091159900),
            (replace(SEQUENTIAL, mode="det", tau=-1.0), 0.459633985),
            (PRINTED, 0.250491747),
            (replace(PRINTED, carry=False), 0.257161147),
            (replace(PRINTED, mode="alg2"), 0.848625650),
        ],
        ids=str,
    )
    def test_total_variation_on_two_tokens(self, method: CrossRegression, tv: float) -> None:
        assert method.claim is Claim.APPROXIMATE
        assert cost(method) == pytest.approx(tv, abs=1e-6, rel=1e-3 if tv < 1e-5 else 0)


X = torch.tensor([0, 1, 2, 1])
P = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.4, 0.5, 0.1], [0.7, 0.0, 0.3], [0.2, 0.3, 0.5]]).double()
Q = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.3, 0.5], [0.1, 0.3, 0.6], [0.5, 0.25, 0.25]]).double()


class TestRule:
    @pytest.mark.parametrize("beta", [0.0, 0.5])
    def test_the_mean_is_that_of_the_printed_recursion(self, beta: float) -> None:
        rho, expected = 0.0, []
        for k, energy in enumerate(energies(X, Q, P).tolist(), 1):
            rho = beta * rho + (1 - beta) * energy
            expected.append(rho / (1 - beta**k))
        torch.testing.assert_close(smoothed(energies(X, Q, P), beta), torch.tensor(expected).double())

    @pytest.mark.parametrize("beta", [0.0, 0.5])
    @pytest.mark.parametrize("noise", ["logU", "uni"])
    @pytest.mark.parametrize("tau", [-0.3, -5.0])
    def test_thresholds_are_integrated_out(self, noise: Any, tau: float, beta: float) -> None:
        """10,000 thresholds, evenly spread over their distribution, compared with rho as Algorithm 2 prints it."""
        share = (torch.arange(10_000).double() + 0.5) / 10_000
        u = tau * (1 - share) if noise == "uni" else (exp(tau) + (1 - exp(tau)) * share).log()
        rho = smoothed(energies(X, Q, P), beta)
        bound = tau * (torch.arange(1, 5).double() / 16).sqrt()
        expected = (rho[None] >= torch.maximum(bound[None], u[:, None])).double().mean(0)
        acceptance_probs = EnergyRule("alg2", beta, tau, noise).passes(energies(X, Q, P))
        torch.testing.assert_close(acceptance_probs, expected, atol=1e-4, rtol=0)

    def test_std_is_the_ratio_and_det_a_bound(self) -> None:
        ratio = [0.5 / 0.8, 1.0, 0.1 / 0.6, 0.0]
        torch.testing.assert_close(EnergyRule().passes(energies(X, Q, P)), torch.tensor(ratio).double())
        assert EnergyRule("det", tau=log(0.5)).passes(energies(X, Q, P)).tolist() == [1, 1, 0, 0]

    def test_a_clipped_energy_offsets_no_negative_one(self) -> None:
        """Energies log .625, log 2: their mean passes -0.1; clipped it is log(.625) / 3 = -0.157 with beta .5."""
        assert EnergyRule("det", 0.5, -0.1).passes(energies(X[:2], Q[:2], P)).tolist() == [0, 1]
        assert EnergyRule("det", 0.5, -0.1, clip=True).passes(energies(X[:2], Q[:2], P)).tolist() == [0, 0]

    def test_a_token_that_the_target_cannot_emit_has_a_finite_energy(self) -> None:
        assert energies(X, Q, P)[3] == NEVER
        assert EnergyRule("det", 0.9, -1000.0).passes(energies(X, Q, P)).tolist() == [1, 1, 1, 0]


def decoded(method: CrossRegression, context: int = 200) -> Decode:
    return toys.decoded(method, Sampling(1.0), 40, vocabulary=4, context=context)


class TestCounts:
    def test_joint_takes_one_pass_a_step_over_text_and_stream(self) -> None:
        steps, room, carried = decoded(CrossRegression(horizon=6)).steps, 40, 0
        for step in steps:
            slots = min(6, room)
            assert (step.nfe, step.reused) == (1, carried)
            assert step.rows == 1 + carried + slots
            complete = step.tested == carried + 1
            assert step.drafted == carried + complete
            assert step.emitted == min(step.accepted + 1, carried + 1)
            room -= step.emitted
            carried = min(slots - step.emitted, room - 1)
        assert room == 0
        assert any(step.emitted == step.accepted > 1 for step in steps), "a draft that no pass had read closes a step"

    @pytest.mark.parametrize("bonus", [True, False])
    def test_sequential_takes_two_passes_a_step(self, bonus: bool) -> None:
        steps, room = decoded(CrossRegression(horizon=4, layout="sequential", bonus=bonus)).steps, 40
        for step in steps:
            slots = min(4, room - bonus)
            assert step.drafted in (slots, slots - (not bonus))
            assert step.nfe == 2 or room <= 4, "at the end all slots may hold drafts, and none is drafted anew"
            assert step.emitted <= slots + bonus
            room -= step.emitted
        assert sum(step.reused for step in steps) > 0

    def test_without_carry_over_nothing_is_tested_twice(self) -> None:
        steps = decoded(CrossRegression(horizon=4, layout="sequential", carry=False)).steps
        assert not any(step.reused for step in steps)

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_an_adapter_without_effect_drafts_from_the_targets_distribution(
        self, layout: Layout, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Then q is p for the first new draft, so it always passes if position, mask and row are right."""
        monkeypatch.setattr(Tabular, "adapter", lambda self, folder: 0)
        steps = decoded(CrossRegression(horizon=3, layout=layout)).steps
        for step in (step for step in steps if step.drafted):
            assert step.accepted > step.reused or step.tested <= step.reused


class TestStreams:
    MODEL = Tabular("tabular", {"vocabulary": 4})

    def session(self, tokens: Sequence[int]) -> Session:
        session = Session(self.MODEL.cache(), self.MODEL.capabilities, tokens, stopwatch=Stopwatch(CpuClock()))
        session.adapter = GATED
        return session

    def stream(self, tokens: Sequence[int], nodes: Sequence[int]) -> torch.Tensor:
        """Rows of gated entries after a prefix, in a separate cache: the last token again, then nodes."""
        cache = self.MODEL.cache()
        cache.extend(Window(torch.tensor(tokens[:-1]), torch.arange(len(tokens) - 1), 0, None, 0))
        fed, base = torch.tensor([tokens[-1], *nodes]), len(tokens) - 1
        gate = torch.ones(len(fed), dtype=torch.bool)
        places = torch.arange(base, base + len(fed))
        rows: torch.Tensor = cache.extend(Window(fed, places, base, None, len(fed), gate=gate, adapter=GATED)).logits
        return rows

    @pytest.mark.parametrize("pending", [1, 3])
    def test_a_node_beside_the_last_token_reads_it_again_without_attending_to_it(self, pending: int) -> None:
        tokens = [0, 1, 2, 3, 1]
        session = self.session(tokens[: 5 - pending + 1])
        session.prefill()
        session.append(torch.tensor(tokens[5 - pending + 1 :], dtype=torch.long))
        draft = Draft(
            torch.tensor([2, 3, 1, 0, 3]),
            parents=torch.tensor([-1, 0, -2, 2, 3]),
            gate=torch.arange(5) >= 2,
            probes=3,
        )
        rows = session.forward(draft)
        assert torch.equal(rows[:3], self.session(tokens).forward(Draft(torch.tensor([2, 3]))))
        assert torch.equal(rows[3:], self.stream(tokens, [0, 3]))

    def test_a_gate_without_an_adapter_is_a_contract_error(self) -> None:
        session = self.session([0, 1])
        session.adapter = None
        with pytest.raises(ContractError, match=r"needs an adapter; open it with `run\.adapt`"):
            session.forward(Draft(torch.tensor([1]), gate=torch.tensor([True])))


class TestParameters:
    def test_a_horizon_beyond_the_context_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"horizon is 16 and the context of tabular 16; take a shorter one"):
            decoded(CrossRegression(), context=16)

    @pytest.mark.parametrize("layout", [*LAYOUTS, "alg1_as_printed"])
    def test_the_claim_follows_rule_and_layout(self, layout: Layout) -> None:
        exact = CrossRegression(layout=layout).claim is Claim.SAME_LAW
        assert exact is (layout != "alg1_as_printed")
        assert CrossRegression(layout=layout, beta=0.1).claim is Claim.APPROXIMATE
        assert CrossRegression(layout=layout, mode="alg2", tau=-9.0).claim is Claim.APPROXIMATE


# Tests by energy: what becomes of a draft that no pass has read.


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_a_last_draft_without_a_node_is_passed_only_where_all_drafts_are_accepted(accepted: int) -> None:
    nodes = torch.tensor([*range(accepted), *[-1] * (3 - accepted)])
    path = Path(nodes, torch.tensor(accepted), torch.tensor(0.5))
    short = without_last_node(Acceptance(path, torch.tensor(7)))
    assert short.path.nodes.tolist() == nodes[:2].tolist()
    assert int(short.path.stop) == min(accepted, 2)
    assert bool(short.passed) is (accepted == 3)
    assert int(short.token) == 7
