"""Folders and files of models that are damaged, foreign or hostile: one error that says what and where."""

from __future__ import annotations

import json
import pickle
import random
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from stridebench.harness.backbones.checkpoints import components, convert
from stridebench.harness.backbones.slots import lora
from stridebench.harness.errors import WeightsError, WeightsWarning
from stridebench.harness.plan import presets
from stridebench.methods.drafters.eagle.net import FeatureDrafterNet
from stridebench.methods.drafters.eagle.published import FeatureNetShape
from tests.support.cli import stride
from tests.support.gguf_files import write_gguf
from tests.support.tiny_text import tiny

SIZES = {"vocab_size": 31, "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1}
CODE = "open({mark!r}, 'w').close()\nprint('the code of a folder runs')\nclass Mine: pass\n"
AUTO = {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Mine", "AutoTokenizer": ["mine.Mine", None]}
INDICES = ("[]", "{", '{"weight_map": {"lm_head.weight": "nowhere"}}')
Damage = Callable[[Path], Any]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    LlamaForCausalLM(LlamaConfig(**SIZES, num_attention_heads=2, num_key_value_heads=2)).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "model"))


def change(file: str, **entries: Any) -> Damage:
    def act(folder: Path) -> None:
        path = folder / file
        body = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(body | entries))

    return act


def text(file: str, content: str, without: str = "") -> Damage:
    def act(folder: Path) -> None:
        (folder / file).write_text(content)
        if without:
            (folder / without).unlink()

    return act


def words_of(folder: Path) -> tuple[object, ...]:
    return "run", "--method", "sjd", "--backbone", folder, "--task", "{name: tabular, limit: 1}"


def message(folder: Path, damage: Damage) -> str:
    """The one error of a damaged folder, which is a user's own."""
    damage(folder)
    with pytest.raises(WeightsError) as raised:
        presets.load(str(folder), "fp32")
    assert str(folder) in str(raised.value)
    assert "Delete it" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    "damage",
    [
        change("config.json", auto_map=AUTO, model_type="mine"),
        change("config.json", auto_map=AUTO, model_type=None),
        change("tokenizer_config.json", auto_map={"AutoTokenizer": ["mine.Mine", None]}, tokenizer_class="Mine"),
    ],
)
def test_code_of_a_folder_is_never_run(
    folder: Path, capfd: pytest.CaptureFixture[str], damage: Damage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *words: pytest.fail("a question was asked"))
    mark = folder / "ran"
    (folder / "mine.py").write_text(CODE.format(mark=str(mark)))
    text = message(folder, damage)
    assert "Python code (auto_map), which is never run here" in text
    assert "trust_remote_code" not in text
    assert not mark.exists()
    assert capfd.readouterr().out == ""


def test_a_known_model_whose_folder_brings_code_is_read_without_it(folder: Path) -> None:
    mark = folder / "ran"
    (folder / "mine.py").write_text(CODE.format(mark=str(mark)))
    change("config.json", auto_map=AUTO)(folder)
    assert presets.load(str(folder), "fp32").capabilities.vocabulary == SIZES["vocab_size"]
    assert "2 runs" in stride(*words_of(folder), "--dry-run").out
    assert not mark.exists()


class Opens:
    """A pickle of it creates a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("write", [torch.save, lambda body, path: path.write_bytes(pickle.dumps(body))])
def test_code_in_a_pickle_is_never_run(folder: Path, write: Callable[[Any, Path], Any]) -> None:
    mark = folder / "ran"
    (folder / "model.safetensors").unlink()
    text = message(folder, lambda folder: write({"lm_head.weight": Opens(mark)}, folder / "pytorch_model.bin"))
    assert "its pickle is damaged or holds more than tensors; nothing in it was run" in text
    with pytest.raises(WeightsError, match="cannot be read as weights"):
        components.read_state("mine", folder / "pytorch_model.bin")
    assert not mark.exists()


@pytest.mark.parametrize("share", [0.0, 1e-4, 0.01, 0.999])
def test_cut_safetensors_are_one_error(folder: Path, share: float) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    assert "cannot be loaded" in message(folder, lambda _: path.write_bytes(content[: int(len(content) * share)]))
    with pytest.raises(WeightsError, match="cannot be read as weights"):
        components.read_state("mine", path)


@pytest.mark.parametrize(
    "damage",
    [
        text("config.json", "[]"),
        text("config.json", "{"),
        text("config.json", "[" * 100_000),
        change("config.json", hidden_size="wide"),
        change("config.json", hidden_size=None),
        change("config.json", hidden_size=-4),
        change("config.json", eos_token_id="end"),
        change("config.json", rope_parameters={"rope_type": "unheard"}),
        text("generation_config.json", "[]"),
        text("tokenizer.json", "{"),
        text("tokenizer_config.json", "[]"),
        text("tokenizer.json", '{"model": {"type": "BPE", "vocab": [], "merges": 3}}'),
        *(text("model.safetensors.index.json", index, without="model.safetensors") for index in INDICES),
    ],
)
def test_damaged_settings_are_one_error(folder: Path, damage: Damage) -> None:
    message(folder, damage)


def test_only_what_was_downloaded_may_be_deleted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "model.safetensors").write_bytes(b"")
    monkeypatch.setenv("STRIDE_CACHE", str(folder.parent))
    with pytest.raises(WeightsError, match="Delete it and fetch it again"):
        presets.load(str(folder), "fp32")


@pytest.mark.parametrize(
    "damage",
    [
        change("config.json", auto_map=AUTO, model_type="mine"),
        change("tokenizer_config.json", auto_map={"AutoTokenizer": ["mine.Mine", None]}, tokenizer_class="Mine"),
        change("config.json", model_type="t5", is_encoder_decoder=True),
        change("config.json", vocab_size="many", text_config=3),
        text("config.json", "{"),
        lambda folder: (folder / "config.json").unlink(),
    ],
)
def test_a_dry_run_refuses_a_folder_as_the_run_does(folder: Path, tmp_path: Path, damage: Damage) -> None:
    damage(folder)
    words = words_of(folder)
    ran, planned = stride(*words, "--out", tmp_path / "run"), stride(*words, "--dry-run")
    told, foretold = (outcome.err[outcome.err.rindex(": WeightsError: ") :] for outcome in (ran, planned))
    assert (ran.code, planned.code, foretold) == (2, 2, told)
    assert "0 runs, 0 needs a part, 0 needs weights, 2 cannot" in planned.out
    assert "Traceback" not in planned.err


def test_the_cells_of_a_dry_run_of_a_damaged_folder_are_listed(folder: Path) -> None:
    text("config.json", "[]")(folder)
    listed = stride(*words_of(folder), "--dry-run", "--json")
    assert {cell["outcome"] for cell in listed.document["cells"]} == {"cannot"} and listed.code == 2


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf").read_bytes()


def converted(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "mine.gguf"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"mine\.gguf") as raised:
        convert.to_folder("mine", path, tmp_path / "ready")
    assert "Delete it" not in str(raised.value)
    return str(raised.value)


def test_a_gguf_file_cut_anywhere_is_one_error(tmp_path: Path, gguf_bytes: bytes) -> None:
    for length in [*range(0, 2_000, 37), 3_000, len(gguf_bytes) // 2, len(gguf_bytes) - 1]:
        converted(tmp_path, gguf_bytes[:length])


def test_random_bytes_after_the_magic_of_gguf_are_one_error(tmp_path: Path, gguf_bytes: bytes) -> None:
    generator = random.Random(0)
    starts = [b"GGUF", b"GGUF" + struct.pack("<I", 3), b"GGUF" + struct.pack("<IQQ", 3, 1, 1)]
    for start in starts:
        for _ in range(10):
            converted(tmp_path, start + generator.randbytes(3_000))
    for counts in ((2**60, 20), (12, 2**60), (0, 2**62), (2**62, 0)):
        converted(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, *counts) + gguf_bytes[24:])


def test_a_shape_that_a_configuration_contradicts_is_named(folder: Path) -> None:
    text = message(folder, change("config.json", hidden_size=48))
    assert re.search(r"has lm_head\.weight in the shape \(31, 24\), and its configuration needs \(31, 48\)", text)


def test_tensors_that_a_model_does_not_read_are_named(folder: Path) -> None:
    """A warning, because folders of models hold drafters too; the first ten of twelve."""
    state = load_file(folder / "model.safetensors")
    more = {f"model.junk.{number:02}": torch.ones(1) for number in range(12)}
    save_file({**state, **more}, folder / "model.safetensors", metadata={"format": "pt"})
    names = ", ".join(sorted(more)[:10])
    with pytest.warns(WeightsWarning, match=rf"12 tensors that the model does not read: {names} and 2 more\."):
        presets.load(str(folder), "fp32")


def test_a_shape_that_the_settings_of_a_gguf_file_contradict_is_named(tmp_path: Path) -> None:
    content = write_gguf(tmp_path / "wide.gguf", feed_forward=48).read_bytes()
    text = converted(tmp_path, content)
    assert "mlp.gate_proj.weight" in text
    assert "[64, 32]" in text and "[48, 32]" in text


def test_a_shape_of_a_published_checkpoint_is_named() -> None:
    module, state = nn.Linear(3, 2), {"weight": torch.zeros(2, 5), "bias": torch.zeros(2)}
    message = r"has weight in the shape \(2, 5\), not \(2, 3\) \(0 tensors missing, 1 of another shape, 0 unknown\)"
    with pytest.raises(WeightsError, match=message):
        components.fill("mine", Path("mine.pt"), module, state)


def test_a_shape_of_an_eagle_drafter_is_named(tmp_path: Path) -> None:
    net = FeatureDrafterNet(FeatureNetShape("eagle1", 8, 2, 2, 12))
    (tmp_path / "config.json").write_text(json.dumps(vars(net.shape)))
    state = net.state_dict()
    shape = [*state["down.weight"].shape, 2]
    save_file({**state, "down.weight": torch.zeros(shape)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=rf"(?s)down\.weight.*{re.escape(str(shape))}"):
        FeatureDrafterNet.load(tmp_path)


@pytest.mark.parametrize(
    ("down", "up", "message"),
    [
        ((2, 48, 2), (48, 2), r"lora_A of shape \(2, 48, 2\) and lora_B of shape \(48, 2\)"),
        ((3, 48), (48, 2), r"lora_A of shape \(3, 48\) and lora_B of shape \(48, 2\)"),
        ((2, 40), (48, 2), r"self_attn\.q_proj by 48 x 40 numbers, that has 48 x 48"),
    ],
)
def test_a_shape_of_an_adapter_is_named(
    tmp_path: Path, down: tuple[int, ...], up: tuple[int, ...], message: str
) -> None:
    model = tiny()
    layer = "model.layers.0.self_attn.q_proj"
    pair = lora.LowRank(torch.zeros(2, 48), torch.zeros(48, 2))
    lora.write(tmp_path, {layer: pair}, 2, None, {"backbone": "tiny", "fingerprint": model.fingerprint})
    model.adapter(tmp_path)
    prefix = f"{lora.PREFIX}{layer}.lora_"
    tensors = {f"{prefix}A.weight": torch.zeros(down), f"{prefix}B.weight": torch.zeros(up)}
    save_file(tensors, tmp_path / lora.TENSORS)
    with pytest.raises(WeightsError, match=message):
        tiny().adapter(tmp_path)
