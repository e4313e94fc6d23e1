"""Hidden rows and conditions of the mesh decoders: equal to the trained module's, kept by a session through trees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stridebench.harness.backbones.mesh import bpt_tokens
from stridebench.harness.backbones.mesh.fused_mesh import MeshBackbone
from stridebench.harness.backbones.mesh.published import PointMesh
from stridebench.harness.backbones.text.wrapped import NoisyBackbone
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.cache import Window
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.synthetic import furniture, shapes
from tests.support.caches import acceptance, session
from tests.support.tiny_mesh import tiny_mesh, tiny_point_mesh

NEAR = 1e-4
TOKENS = (bpt_tokens.SOS, 3, 900, 14, 4700, 31, 31, 2000)
TREE = Draft(torch.tensor([4, 812, 15, 4616]), parents=torch.tensor([-1, -1, 0, 1]))
CLOUD = shapes.points(furniture.shape(np.random.default_rng(1), "train", 0).mesh, 40, np.random.default_rng(1))


MODULE = tiny_mesh(context=64)


MODELS: dict[str, Backbone] = {"mesh": MeshBackbone.of(MODULE), "bpt": tiny_point_mesh("bpt")}
PROMPT = Prompt("p", condition=CLOUD)
every_model = pytest.mark.parametrize("name", MODELS)


def hidden(model: Backbone, tokens: Sequence[int], taps: tuple[int, ...]) -> Tensor:
    cache = model.open(PROMPT).cache()
    rows = cache.extend(Window(torch.tensor(tokens), torch.arange(len(tokens)), 0, None, 0, taps)).hidden
    assert rows is not None
    return rows


def entering(layers: Sequence[nn.Module]) -> list[Tensor]:
    """Inputs of the module's layers on `TOKENS`."""
    inputs: list[Tensor] = []
    hooks = [layer.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0][0])) for layer in layers]
    with torch.no_grad():
        MODULE(torch.tensor([TOKENS]), torch.from_numpy(CLOUD)[None])
    for hook in hooks:
        hook.remove()
    return inputs


def test_rows_are_the_inputs_of_the_trained_modules_layers() -> None:
    expected = torch.stack(entering([*MODULE.layers, MODULE.norm]), 1)
    expected[:, 3] = MODULE.norm(expected[:, 3]).detach()
    rows = hidden(MODELS["mesh"], TOKENS, (0, 1, 2, 3))
    assert expected.std() > 0.1
    torch.testing.assert_close(rows[:, 0], expected, rtol=0, atol=NEAR)


@every_model
def test_logits_are_the_unembedded_last_rows(name: str) -> None:
    model = MODELS[name]
    cache = model.open(PROMPT).cache()
    rows = cache.extend(Window(torch.tensor(TOKENS), torch.arange(8), 0, None, 3, (3,)))
    assert rows.hidden is not None and rows.logits.shape == (3, model.capabilities.vocabulary)
    logits = rows.hidden[-3:, 0, 0] @ model.tied_embeddings().unembed.T
    if isinstance(model, PointMesh):
        logits[:, :-1] += model._model.to_logits.bias
        assert torch.isinf(rows.logits[:, -1]).all()
    torch.testing.assert_close(logits[:, :-1], rows.logits[:, :-1], rtol=0, atol=NEAR)
    plain = model.open(PROMPT).cache().extend(Window(torch.tensor(TOKENS), torch.arange(8), 0, None, 3))
    assert plain.hidden is None and torch.equal(plain.logits, rows.logits)


@every_model
def test_a_session_keeps_the_rows_of_the_accepted_path(name: str) -> None:
    model = MODELS[name]
    encoded = model.open(PROMPT)
    target = session(encoded.cache(), model.capabilities, encoded.tokens, (0, "middle", -1))
    target.append(torch.tensor(TOKENS[1:]))
    target.prefill()
    assert target.hidden.shape == (7, 1, 3, 32)
    target.forward(TREE)
    target.grow(Draft(torch.tensor([23, 42]), parents=torch.tensor([3, 4])))
    assert target.newest.shape == (2, 1, 3, 32)
    target.commit(acceptance([1, 3, 4], 6, 1))
    expected = hidden(model, [*TOKENS, 812, 4616, 23], (0, 1, 3))
    torch.testing.assert_close(target.hidden, expected, rtol=0, atol=NEAR)


@every_model
def test_capabilities_and_the_condition_of_a_prompt(name: str) -> None:
    model = MODELS[name]
    capabilities = model.capabilities
    assert {Requirement.HIDDEN, Requirement.CONDITION} <= capabilities.meets and (
        capabilities.layers,
        capabilities.width,
    ) == (3, 32)
    condition = model.open(PROMPT).condition
    assert condition is not None and condition.shape[1] == capabilities.condition == {"mesh": 32, "bpt": 20}[name]
    assert model.variant({"layers": "2"}).capabilities.layers == 2
    other = model.open(Prompt("p", condition=CLOUD[:, [1, 0, 2, 4, 3, 5]])).condition
    assert other is not None and not torch.allclose(condition, other, atol=1e-3)


def test_a_run_has_the_condition_of_its_encoded_prompt() -> None:
    for model in (MODELS["mesh"], NoisyBackbone(MODELS["mesh"], 0.1, 0)):
        run = open_run(model, lambda name: MODELS["mesh"], PROMPT, Sampling(0.0), 4, SeededDraws(0, "t", "p", 0))
        expected = MODELS["mesh"].open(PROMPT).condition
        assert expected is not None and run.condition is not None and torch.equal(run.condition, expected)
