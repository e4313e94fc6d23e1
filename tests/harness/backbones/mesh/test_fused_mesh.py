"""The mesh decoder: its fast forward equals the trained module's in any window, tree or history."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from stridebench.harness.backbones.checkpoints import sources
from stridebench.harness.backbones.mesh import bpt_tokens
from stridebench.harness.backbones.mesh.fused_mesh import MeshBackbone, read
from stridebench.harness.backbones.mesh.network import MeshModel, MeshSizes, facing_rows
from stridebench.harness.backbones.mesh.published import PointMesh
from stridebench.harness.backbones.slots import lora
from stridebench.harness.backbones.slots.lora import LowRank
from stridebench.harness.backbones.text.wrapped import NoisyBackbone
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.cache import Window
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import OutputError, UsageError, WeightsError
from stridebench.harness.plan import presets
from stridebench.harness.record.outputs import Mesh
from stridebench.harness.synthetic import furniture
from stridebench.harness.train.backbones.shapes_mesh import ShapesMesh
from tests.support.caches import acceptance, feed, session
from tests.support.decodes import run_on
from tests.support.tiny_mesh import BACKBONES, MODELS, SIZES, points, tiny_mesh, tiny_point_mesh

NEAR = 1e-4
TOKENS = [bpt_tokens.SOS, *np.random.default_rng(0).permutation(bpt_tokens.EOS)[:47].tolist()]


CLOUD = points(1)
SHARING = tiny_mesh(shared_coordinates=True)


@pytest.mark.parametrize("model", [*MODELS.values(), SHARING], ids=[*MODELS, "shared coordinates"])
def test_a_window_equals_the_trained_module(model: MeshModel) -> None:
    """The contract of caches compares windows of other sizes with it."""
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS]), CLOUD[None])[0]
    assert len(set(TOKENS)) >= 16 and expected.std() > 0.1
    torch.testing.assert_close(feed(MeshBackbone.of(model).bind(CLOUD), TOKENS, 0), expected, rtol=0, atol=NEAR)


def test_a_window_hides_earlier_entries() -> None:
    """One layer of window 6 attends five entries back. An entry also holds the one before it and its block's name,
    which lies up to five entries earlier: eleven entries back at most."""
    cut = MeshBackbone.of(tiny_mesh(6))
    cut._decoder = cut._decoder.pick((0,))
    base = feed(cut.bind(CLOUD), TOKENS[:20], 0)[-1]
    for back, same in ((12, True), (5, False)):
        row = list(TOKENS[:20])
        row[19 - back] = 77
        row_logits = feed(cut.bind(CLOUD), row, 0)[-1]
        assert torch.allclose(row_logits, base, atol=1e-6) is same


def test_the_condition_matters_and_its_order_does_not() -> None:
    backbone = BACKBONES[0]
    base = feed(backbone.bind(CLOUD), TOKENS[:4], 0)
    assert (feed(backbone.bind(points(2)), TOKENS[:4], 0) - base).abs().max() > 0.01
    torch.testing.assert_close(feed(backbone.bind(CLOUD.flip(0)), TOKENS[:4], 0), base, rtol=0, atol=NEAR)


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        (None, "no condition"),
        (np.zeros((9, 3), np.float32), r"shape \(9, 3\)"),
        (np.zeros((0, 6), np.float32), r"shape \(0, 6\)"),
        (np.zeros(6, np.float32), r"shape \(6,\)"),
        (np.full((4, 6), np.nan, np.float32), "not all finite"),
    ],
)
def test_a_wrong_condition_is_a_usage_error(condition: np.ndarray | None, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        BACKBONES[0].open(Prompt("p", condition=condition))


def test_output_is_a_mesh_or_a_failure_with_a_reason() -> None:
    one = furniture.shape(np.random.default_rng(0), "test")
    row = bpt_tokens.encode(one.mesh)
    mesh = BACKBONES[0].decode(row)
    assert isinstance(mesh, Mesh) and len(mesh.faces) == len(bpt_tokens.quantise(one.mesh).faces)
    with pytest.raises(OutputError, match="no end token"):
        BACKBONES[0].decode(row[:-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the recipe exports."""
    path = tmp_path_factory.mktemp("mesh")
    ShapesMesh(sizes=SIZES).export(MODELS[0], path)
    return path


def test_an_exported_model_loads(folder: Path) -> None:
    backbone = MeshBackbone.load("mine", {"source": {"folder": str(folder)}}, "fp32", "cpu")
    assert len(backbone.fingerprint) == 64
    logits = feed(backbone.bind(CLOUD), TOKENS[:9], 0)
    rounded = tiny_mesh(0)
    for weight in rounded.parameters():
        weight.data = weight.data.bfloat16().float()
    expected = feed(MeshBackbone.of(rounded).bind(CLOUD), TOKENS[:9], 0)
    torch.testing.assert_close(logits, expected, rtol=0, atol=NEAR)
    low = MeshBackbone.load("mine", {"source": {"folder": str(folder)}}, "bf16", "cpu")
    encoded = low.open(Prompt("p", condition=CLOUD.numpy()))
    row = encoded.cache().extend(Window(torch.tensor([bpt_tokens.SOS]), torch.arange(1), 0, None, 1)).logits
    assert row.dtype == torch.bfloat16 and bool(row.isfinite().all())


def test_the_error_of_a_damaged_folder_names_the_fault(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["norm.weight"]
    for file, content, says in (
        ("config.json", b'{"width": 32}', "whole numbers"),
        ("model.safetensors", save(tensors), "norm.weight"),
        ("model.safetensors", b"nothing", "does not hold a mesh model"),
    ):
        damaged = Path(shutil.copytree(folder, tmp_path / says))
        (damaged / file).write_bytes(content)
        with pytest.raises(WeightsError, match=says):
            read("mine", damaged)


def test_a_configuration_written_before_an_option_came_still_loads(folder: Path, tmp_path: Path) -> None:
    older = Path(shutil.copytree(folder, tmp_path / "older"))
    fields = json.loads((older / "config.json").read_text())
    del fields["shared_coordinates"]
    (older / "config.json").write_text(json.dumps(fields))
    assert read("m", older).sizes == SIZES


def test_the_encoder_reads_the_decoders_rows_of_shared_coordinates() -> None:
    """The latents follow a row of a coordinate that a point has."""
    model = tiny_mesh(shared_coordinates=True)
    with torch.no_grad():
        before = model.latents(CLOUD[None])
        model.codes.steps[0] += 1.0
        assert not torch.allclose(before, model.latents(CLOUD[None]))


def test_a_point_on_a_face_has_the_row_of_the_faces_coordinate() -> None:
    coordinates = SHARING.codes.coordinates()
    assert coordinates.shape == (3, bpt_tokens.SIZE, SIZES.width)
    centre = (20 + 0.5) / bpt_tokens.SIZE * 2 - 1
    one = torch.tensor([[[0.3, centre, -0.2, 0.0, -1.0, 0.0]]])
    torch.testing.assert_close(facing_rows(one, coordinates)[0, 0], coordinates[1, 20])


# A mesh backbone stored as low-rank matrices beside its base model: the added product, and refused folders.


LOW_RANK_SIZES = MeshSizes(width=32, layers=2, heads=2, hidden=48, latents=8, encoder_layers=1, context=24, window=0)
LAYER = "layers.1.qkv"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MeshModel(LOW_RANK_SIZES)
    (tmp_path / "base").mkdir()
    ShapesMesh(sizes=LOW_RANK_SIZES).export(model, tmp_path / "base")
    return tmp_path / "base"


def test_the_scaled_product_is_added_and_rounded_to_bf16(base: Path, tmp_path: Path) -> None:
    """Rank 2, a scale of 3."""
    tuned, draws = tmp_path / "tuned", torch.Generator().manual_seed(1)
    pair = LowRank(torch.randn(2, 32, generator=draws), torch.randn(96, 2, generator=draws))
    tie = {"backbone": str(base), "fingerprint": sources.digest(base)}
    lora.write(tuned, {LAYER: pair}, 6, "FEATURE_EXTRACTION", tie)
    before, after = (read("m", folder).state_dict() for folder in (base, tuned))
    stored = LowRank(*(lora.int8.read(tuned / lora.TENSORS)[f"{lora.PREFIX}{LAYER}.lora_{k}.weight"] for k in "AB"))
    expected = (before[f"{LAYER}.weight"] + 3 * stored.up.float() @ stored.down.float()).bfloat16().float()
    assert torch.equal(after[f"{LAYER}.weight"], expected)
    assert all(torch.equal(before[key], after[key]) for key in before if key != f"{LAYER}.weight")
    (base / "config.json").write_text((base / "config.json").read_text() + " ")  # another fingerprint
    with pytest.raises(WeightsError, match=r"tuned was trained for other weights of .*base \("):
        read("m", tuned)


def test_row_e_ships_as_matrices_of_rank_16_beside_shapes_mesh() -> None:
    folder = sources.SHIPPED / "xspecmesh-cross-lora" / "backbone"
    settings = json.loads((folder / lora.SETTINGS).read_text())
    assert (settings["base_model_name_or_path"], settings["r"], settings["lora_alpha"]) == ("shapes-mesh", 16, 32)
    base, tuned = (presets.load(name, "fp32") for name in ("embedded-mesh", "embedded-mesh-cross-lora"))
    heads = json.loads((folder.parent / "config.json").read_text())
    assert heads["fingerprint"] == tuned.fingerprint != base.fingerprint
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_300_000


# Hidden rows and conditions of the mesh decoders: equal to the trained module's, kept by a session through trees.


ROW = (bpt_tokens.SOS, 3, 900, 14, 4700, 31, 31, 2000)
TREE = Draft(torch.tensor([4, 812, 15, 4616]), parents=torch.tensor([-1, -1, 0, 1]))


LENDERS: dict[str, Backbone] = {"mesh": BACKBONES[0], "bpt": tiny_point_mesh("bpt")}
PROMPT = Prompt("p", condition=CLOUD.numpy())
every_lender = pytest.mark.parametrize("name", LENDERS)


def hidden(model: Backbone, tokens: Sequence[int], taps: tuple[int, ...]) -> Tensor:
    cache = model.open(PROMPT).cache()
    rows = cache.extend(Window(torch.tensor(tokens), torch.arange(len(tokens)), 0, None, 0, taps)).hidden
    assert rows is not None
    return rows


def entering(layers: Sequence[nn.Module]) -> list[Tensor]:
    """Inputs of the module's layers on `ROW`."""
    inputs: list[Tensor] = []
    hooks = [layer.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0][0])) for layer in layers]
    with torch.no_grad():
        MODELS[0](torch.tensor([ROW]), CLOUD[None])
    for hook in hooks:
        hook.remove()
    return inputs


def test_rows_are_the_inputs_of_the_trained_modules_layers() -> None:
    expected = torch.stack(entering([*MODELS[0].layers, MODELS[0].norm]), 1)
    expected[:, 3] = MODELS[0].norm(expected[:, 3]).detach()
    rows = hidden(LENDERS["mesh"], ROW, (0, 1, 2, 3))
    assert expected.std() > 0.1
    torch.testing.assert_close(rows[:, 0], expected, rtol=0, atol=NEAR)


@every_lender
def test_logits_are_the_unembedded_last_rows(name: str) -> None:
    model = LENDERS[name]
    cache = model.open(PROMPT).cache()
    rows = cache.extend(Window(torch.tensor(ROW), torch.arange(8), 0, None, 3, (3,)))
    assert rows.hidden is not None and rows.logits.shape == (3, model.capabilities.vocabulary)
    logits = rows.hidden[-3:, 0, 0] @ model.tied_embeddings().unembed.T
    if isinstance(model, PointMesh):
        logits[:, :-1] += model._model.to_logits.bias
        assert torch.isinf(rows.logits[:, -1]).all()
    torch.testing.assert_close(logits[:, :-1], rows.logits[:, :-1], rtol=0, atol=NEAR)
    plain = model.open(PROMPT).cache().extend(Window(torch.tensor(ROW), torch.arange(8), 0, None, 3))
    assert plain.hidden is None and torch.equal(plain.logits, rows.logits)


@every_lender
def test_a_session_keeps_the_rows_of_the_accepted_path(name: str) -> None:
    model = LENDERS[name]
    encoded = model.open(PROMPT)
    target = session(encoded.cache(), model.capabilities, encoded.tokens, (0, "middle", -1))
    target.append(torch.tensor(ROW[1:]))
    target.prefill()
    assert target.hidden.shape == (7, 1, 3, 32)
    target.forward(TREE)
    target.grow(Draft(torch.tensor([23, 42]), parents=torch.tensor([3, 4])))
    assert target.newest.shape == (2, 1, 3, 32)
    target.commit(acceptance([1, 3, 4], 6, 1))
    expected = hidden(model, [*ROW, 812, 4616, 23], (0, 1, 3))
    torch.testing.assert_close(target.hidden, expected, rtol=0, atol=NEAR)


@every_lender
def test_capabilities_and_the_condition_of_a_prompt(name: str) -> None:
    model = LENDERS[name]
    capabilities = model.capabilities
    assert {Requirement.HIDDEN, Requirement.CONDITION} <= capabilities.meets and (
        capabilities.layers,
        capabilities.width,
    ) == (3, 32)
    condition = model.open(PROMPT).condition
    assert condition is not None and condition.shape[1] == capabilities.condition == {"mesh": 32, "bpt": 20}[name]
    assert model.variant({"layers": "2"}).capabilities.layers == 2
    other = model.open(Prompt("p", condition=CLOUD[:, [1, 0, 2, 4, 3, 5]].numpy())).condition
    assert other is not None and not torch.allclose(condition, other, atol=1e-3)


def test_a_run_has_the_condition_of_its_encoded_prompt() -> None:
    for model in (LENDERS["mesh"], NoisyBackbone(LENDERS["mesh"], 0.1, 0)):
        run = run_on(model, PROMPT, 4)
        expected = LENDERS["mesh"].open(PROMPT).condition
        assert expected is not None and run.condition is not None and torch.equal(run.condition, expected)
