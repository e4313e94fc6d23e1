"""LLaDA, Dream and SDAR: the published layouts, and tiny models of random weights in the same files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from stridebench.harness.backbones.text.masked import MaskedModel, read_config
from stridebench.harness.core.cache import Window
from stridebench.harness.core.canvas import Canvas, Read
from stridebench.harness.core.clock import CpuClock, Stopwatch
from stridebench.harness.core.loop import decode
from stridebench.harness.errors import ContractError, WeightsError
from stridebench.methods.masked_diffusion import MaskedDiffusion
from tests.support.decodes import decoded, run_on
from tests.support.layouts import layout

MASK, VOCABULARY = 40, 48
CONFIGS: dict[str, dict[str, Any]] = {
    "llada_8b": {
        "model_type": "llada",
        "d_model": 4096,
        "mlp_hidden_size": 12288,
        "n_layers": 32,
        "n_heads": 32,
        "n_kv_heads": 32,
        "max_sequence_length": 4096,
        "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0,
        "embedding_size": 126464,
        "vocab_size": 126464,
        "mask_token_id": 126336,
        "eos_token_id": 126081,
        "block_type": "llama",
        "include_bias": False,
    },
    "dream_7b": {
        "model_type": "Dream",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "vocab_size": 152064,
        "mask_token_id": 151666,
        "eos_token_id": 151643,
    },
    "sdar_1.7b": {
        "model_type": "sdar",
        "attention_bias": False,
        "block_size": 4,
        "head_dim": 128,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000,
        "tie_word_embeddings": False,
        "vocab_size": 151936,
        "mask_token_id": 151669,
        "eos_token_id": 151643,
    },
}
TINY = {
    "llada_8b": {"d_model": 32, "mlp_hidden_size": 48, "n_layers": 2, "n_heads": 4, "n_kv_heads": 4}
    | {"max_sequence_length": 64, "embedding_size": VOCABULARY, "vocab_size": VOCABULARY},
    "dream_7b": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    | {"num_key_value_heads": 2, "max_position_embeddings": 64, "vocab_size": VOCABULARY},
    "sdar_1.7b": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    | {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "vocab_size": VOCABULARY},
}
NAMES = {"attn_norm": "input_layernorm", "ff_norm": "post_attention_layernorm"}
NAMES |= {"q_proj": "self_attn.q_proj", "k_proj": "self_attn.k_proj", "v_proj": "self_attn.v_proj"}
NAMES |= {
    "attn_out": "self_attn.o_proj",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}
"""Of a layer of LLaDA, and of one of Dream and SDAR."""
PROMPT = [3, 17, 29, 8]
CANVAS = [*PROMPT, 1, MASK, 22, MASK, 31, 5, MASK, 12, 27, 9, 36, 14, 20, 33, MASK, 7, 11]


def folder_of(kind: str, to: Path, **changed: Any) -> Path:
    """A tiny checkpoint in two files, under the published names."""
    to.mkdir(exist_ok=True)
    config = CONFIGS[kind] | TINY[kind] | {"mask_token_id": MASK, "eos_token_id": 41} | changed
    (to / "config.json").write_text(json.dumps(config))
    published = read_config("tiny", to)
    shapes = {key: tensor.shape for key, tensor in published.empty().state_dict().items()}
    names = [name for name in layout(kind) if published.name(name) in shapes]
    random = torch.Generator().manual_seed(7)
    state = {}
    for name in names:
        shape = shapes[published.name(name)]
        noise = torch.randn(shape, generator=random)
        state[name] = noise * 0.1 + 1 if (len(shape) == 1 and "norm" in name) or "ln_f" in name else noise * 0.3
    save_file({name: state[name] for name in names[::2]}, to / "model-00001-of-00002.safetensors")
    save_file({name: state[name] for name in names[1::2]}, to / "model-00002-of-00002.safetensors")
    return to


def load(folder: Path, **params: Any) -> MaskedModel:
    return MaskedModel.load("tiny", {"source": {"folder": str(folder)}, **params}, "fp32", "cpu")


@pytest.fixture(scope="module", params=list(CONFIGS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(kind, tmp_path_factory.mktemp(kind) / "weights")


def by_hand(folder: Path, kind: str, tokens: list[int]) -> Tensor:
    """Logits of a canvas from the published tensors, one head and one pair of a rotation after the other."""
    state = {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}
    config = json.loads((folder / "config.json").read_text())
    llada = kind == "llada_8b"
    layers, heads = (2, 4)
    shared = heads // (config["n_kv_heads"] if llada else config["num_key_value_heads"])
    stem = "model.transformer.blocks" if llada else "model.layers"

    def named(n: int, name: str) -> str:
        return f"{stem}.{n}.{name if llada else NAMES[name]}"

    def linear(x: Tensor, n: int, name: str) -> Tensor:
        key = named(n, name)
        return functional.linear(x, state[f"{key}.weight"], state.get(f"{key}.bias"))

    block = config.get("block_size") or len(tokens)
    order = torch.arange(len(tokens)) // block
    unseen = torch.zeros(len(tokens), len(tokens)).masked_fill(order[:, None] < order, -math.inf)

    def norm(x: Tensor, key: str) -> Tensor:
        scale: Tensor = (x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]).rsqrt()
        return x * scale * state[f"{key}.weight"]

    def rotate(x: Tensor) -> Tensor:
        half = x.shape[1] // 2
        out = torch.empty_like(x)
        for place in range(len(x)):
            for pair in range(half):
                angle = place * config["rope_theta"] ** (-pair / half)
                a, b = x[place, pair], x[place, pair + half]
                out[place, pair] = a * math.cos(angle) - b * math.sin(angle)
                out[place, pair + half] = b * math.cos(angle) + a * math.sin(angle)
        return out

    x = state["model.transformer.wte.weight" if llada else "model.embed_tokens.weight"][torch.tensor(tokens)]
    for n in range(layers):
        h, mixed = norm(x, named(n, "attn_norm")), []
        q, k, v = (linear(h, n, name) for name in ("q_proj", "k_proj", "v_proj"))
        for head in range(heads):
            query_columns, kv_columns = slice(head * 8, head * 8 + 8), slice(head // shared * 8, head // shared * 8 + 8)
            query, key = q[:, query_columns], k[:, kv_columns]
            if kind == "sdar_1.7b":
                query, key = norm(query, f"{stem}.{n}.self_attn.q_norm"), norm(key, f"{stem}.{n}.self_attn.k_norm")
            scores = rotate(query) @ rotate(key).T / math.sqrt(8) + unseen
            mixed.append(scores.softmax(-1) @ v[:, kv_columns])
        x = x + linear(torch.cat(mixed, 1), n, "attn_out")
        h = norm(x, named(n, "ff_norm"))
        x = x + linear(functional.silu(linear(h, n, "ff_proj")) * linear(h, n, "up_proj"), n, "ff_out")
    x = norm(x, "model.transformer.ln_f" if llada else "model.norm")
    logits = x @ state["model.transformer.ff_out.weight" if llada else "lm_head.weight"].T
    logits = torch.cat([logits[:1], logits[:-1]]) if kind == "dream_7b" else logits
    logits[:, MASK] = float("-inf")
    return logits


@pytest.mark.parametrize(("name", "size"), [("llada_8b", 16_031_162_368), ("dream_7b", 15_231_233_024)])
def test_the_layouts_have_the_published_size(name: str, size: int) -> None:
    """Two bytes each: the total_size of LLaDA's published index, and of the one of Qwen2.5-7B."""
    assert 2 * sum(math.prod(shape) for shape in layout(name).values()) == size


def test_the_decoder_has_the_tensors_of_the_published_checkpoint_and_no_other(kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[kind]))
    published = read_config(kind, tmp_path)
    shapes = {name: tuple(tensor.shape) for name, tensor in published.empty().state_dict().items()}
    assert {published.name(name): shape for name, shape in layout(kind).items()} == shapes
    assert (published.mask, published.shifted) == (CONFIGS[kind]["mask_token_id"], kind == "dream_7b")
    assert published.block == (4 if kind == "sdar_1.7b" else 0)


def test_logits_are_those_of_a_forward_by_hand(folder: Path, kind: str) -> None:
    model, expected = load(folder), by_hand(folder, kind, CANVAS)
    assert len(set(CANVAS)) >= 16 and expected[:, :MASK].std() > 0.5
    target = Canvas(model.cache(), model.capabilities, PROMPT, length=17, stopwatch=Stopwatch(CpuClock()))
    for rows in (21, 21, 17, 1):
        logits = target.read(torch.tensor(CANVAS), range(21), "all", rows=rows)
        torch.testing.assert_close(logits, expected[21 - rows :], rtol=0, atol=2e-5)


def test_a_window_over_cached_entries_attends_to_both_sides(folder: Path, kind: str) -> None:
    """The last rows alone are read again and attend to the cached entries of the others."""
    model = load(folder)
    target = Canvas(model.cache(), model.capabilities, PROMPT, length=17, stopwatch=Stopwatch(CpuClock()))
    logits = target.read(torch.tensor(CANVAS), range(21), "all")
    again = target.read(torch.tensor(CANVAS[15:]), range(15, 21), "all", rows=5)
    torch.testing.assert_close(again, logits[16:], rtol=0, atol=2e-5)
    changed = target.read(torch.tensor([*CANVAS[15:20], 30]), range(15, 21), "all", rows=5)
    moved = (changed - logits[16:])[:, :MASK].abs().amax(1) > 1e-3
    assert moved.tolist() == [kind != "sdar_1.7b"] * 4 + [True], "blocks of four do not see the last position"


def test_it_decodes_without_a_mask_in_the_output(folder: Path, kind: str) -> None:
    """Dream's schedule of four steps; each block of SDAR has the whole of it."""
    model = load(folder)
    result = decoded(MaskedDiffusion("entropy", 4), model, PROMPT, 16, temperature=1.0)
    assert len(result.tokens) == 16 and MASK not in result.tokens
    assert sum(step.nfe for step in result.steps) == (16 if kind == "sdar_1.7b" else 4)


@pytest.mark.parametrize("cache", ["none", "blocks"])
def test_a_text_of_blocks_ends_with_the_block_that_holds_its_end(cache: Any, tmp_path: Path) -> None:
    texts = []
    for number, end in enumerate((MASK, 41)):  # no text has a mask
        model = load(folder_of("sdar_1.7b", tmp_path / str(number), eos_token_id=end))
        method = MaskedDiffusion(rule="static:1", cache=cache)
        texts.append(decoded(method, model, PROMPT[:3], 16, temperature=1.0).tokens)
    whole, text = texts
    assert text == whole[:13] and 41 in text[9:] and 41 not in text[:9], "the blocks begin at 1, 5, 9 and 13"


@pytest.mark.parametrize(
    ("kind", "changed", "rule"), [("sdar_1.7b", {}, "joint:0.3"), ("llada_8b", {"block_size": 8}, "static:1")]
)
def test_the_entries_of_full_blocks_may_be_reused(
    kind: str, changed: dict[str, int], rule: str, tmp_path: Path
) -> None:
    """The tokens are those of passes over the whole text, and no pass but those that write entries reads it again."""
    model = load(folder_of(kind, tmp_path / "w", **changed, eos_token_id=MASK))  # which no text has
    results = []
    for cache in ("none", "blocks"):
        run = run_on(model, PROMPT[:3], 16, temperature=1.0)
        results.append((decode(MaskedDiffusion(rule=rule, cache=cache), run).tokens, run.canvas))
    (tokens, whole), (same, canvas) = results
    written = [len(read.positions) for read in canvas.history if isinstance(read, Read) and read.rows == 0]
    assert len(tokens) == 16 and same == tokens
    assert written == [model.capabilities.block] * (18 // model.capabilities.block)
    assert canvas.passes == whole.passes + len(written) and canvas.rows < whole.rows


def test_a_tied_head_is_not_in_the_files(kind: str, tmp_path: Path) -> None:
    tied = folder_of(kind, tmp_path / "w", **{"weight_tying" if kind == "llada_8b" else "tie_word_embeddings": True})
    for file in tied.glob("*.safetensors"):
        heads = ("lm_head.weight", "model.transformer.ff_out.weight")
        save_file({key: value for key, value in load_file(file).items() if key not in heads}, file)
    embeddings = load(tied)._net.tied_embeddings()
    assert torch.equal(embeddings.embed, embeddings.unembed) and embeddings.embed.shape == (VOCABULARY, 32)


def test_windows_that_a_masked_model_cannot_serve_are_refused(folder: Path, kind: str) -> None:
    model = load(folder)
    causal = Window(torch.tensor([1, 2]), torch.arange(2), 0, None, 1)
    with pytest.raises(ContractError, match="a masked model gives no distribution of a next token"):
        model.cache().extend(causal)
    gap = Window(torch.tensor([1, 2]), torch.tensor([0, 2]), 0, torch.ones(2, 2, dtype=torch.bool), 1)
    if kind == "dream_7b":
        with pytest.raises(ContractError, match="reads neighbouring positions"):
            model.cache().extend(gap)
    else:
        assert model.cache().extend(gap).logits.shape == (1, VOCABULARY)


def tokenizer_files(folder: Path, kind: str) -> None:
    """Words a to z and the special ids, in the files that the models come with."""
    vocabulary = {chr(97 + n): n for n in range(26)}
    if kind != "llada_8b":
        (folder / "vocab.json").write_text(json.dumps(vocabulary))
        (folder / "merges.txt").write_text("#version: 0.2\n")
        config = {"tokenizer_class": "DreamTokenizer", "auto_map": {"AutoTokenizer": ["own.DreamTokenizer", None]}}
    else:
        model = {"type": "BPE", "vocab": vocabulary, "merges": []}
        document = {"version": "1.0", "added_tokens": [], "model": model}
        (folder / "tokenizer.json").write_text(json.dumps(document))
        config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_an_sdar_folder_without_its_block_and_mask_has_those_of_its_release(tmp_path: Path) -> None:
    folder = folder_of("sdar_1.7b", tmp_path / "w")
    config = json.loads((folder / "config.json").read_text())
    bare = {key: value for key, value in config.items() if key not in ("block_size", "mask_token_id")}
    (folder / "config.json").write_text(json.dumps({**bare, "eos_token_id": [3, 5]}))
    with pytest.raises(WeightsError, match=r"no mask_token_id, and no added_tokens\.json beside it has <\|MASK\|>"):
        read_config("x", folder)
    (folder / "added_tokens.json").write_text(json.dumps({"<|MASK|>": 44}))
    published = read_config("x", folder)
    assert (published.block, published.mask, published.eos) == (4, 44, {3, 5})


def test_a_text_ends_at_the_first_end_of_text_id(kind: str, tmp_path: Path) -> None:
    folder = folder_of(kind, tmp_path / "w", eos_token_id=9)
    tokenizer_files(folder, kind)
    model = load(folder)
    assert model.encode("cab") == [2, 0, 1] and model.decode([2, 0, 9, 1]).replace(" ", "") == "ca"


@pytest.mark.parametrize(("kind", "turn"), [("llada_8b", "<|eot_id|>"), ("sdar_1.7b", "<|im_end|>")])
def test_the_end_of_a_turn_ends_an_answer_too(kind: str, turn: str, tmp_path: Path) -> None:
    """The configuration names the end of text alone; the tokenizer has the other one."""
    folder = folder_of(kind, tmp_path / "w", eos_token_id=9)
    tokenizer_files(folder, "llada_8b")
    file = folder / "tokenizer.json"
    document = json.loads(file.read_text())
    number = len(document["model"]["vocab"])
    mark = {"id": number, "content": turn, "single_word": False, "lstrip": False, "rstrip": False}
    document["added_tokens"] = [{**mark, "normalized": False, "special": True}]
    file.write_text(json.dumps(document))
    capabilities = load(folder).capabilities
    assert (capabilities.eos, capabilities.turn_ends) == ({9, number}, {number})


COUNTS = r"\({} tensors missing, 0 of another shape, {} unknown\)"


@pytest.mark.parametrize(
    ("kind", "changed", "message"),
    [
        ("llada_8b", {"model_type": "gpt2"}, "is of model_type 'gpt2'; give llada, Dream or sdar"),
        ("llada_8b", {"block_type": "sequential"}, "has block_type: 'sequential', and only models with 'llama'"),
        ("llada_8b", {"mask_token_id": None}, "has no field 'mask_token_id'"),
        ("llada_8b", {"n_layers": 3}, rf"lacks model\.layers\.2\S+.* {COUNTS.format(9, 0)}"),
        ("llada_8b", {"n_layers": 1}, rf"has, and the model has not, model\.layers\.1\S+.* {COUNTS.format(0, 9)}"),
        ("sdar_1.7b", {"rope_scaling": {"rope_type": "yarn"}}, r"has rope_scaling: .* only models with None are"),
        ("sdar_1.7b", {"block_size": -4}, r"block_size is -4; an SDAR model has blocks of 1 or more"),
        ("dream_7b", {"use_sliding_window": True}, r"has use_sliding_window: True, and only models with False"),
        ("dream_7b", {"block_size": 4}, r"block_size is 4; the shifted rows of Dream have no blocks here"),
    ],
)
def test_folders_of_other_models_are_refused(kind: str, changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = folder_of(kind, tmp_path / "w")
    config = json.loads((folder / "config.json").read_text()) | changed
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    with pytest.raises(WeightsError, match=message) as raised:
        load(folder)
    assert str(folder) in str(raised.value)


def test_files_that_are_missing_or_damaged_are_named(tmp_path: Path) -> None:
    folder = folder_of("dream_7b", tmp_path / "w")
    second = folder / "model-00002-of-00002.safetensors"
    second.write_bytes(second.read_bytes()[:-40])
    with pytest.raises(WeightsError, match=f"{second} is damaged"):
        load(folder)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(WeightsError, match=f"no \\*.safetensors in {folder}; fetch the whole folder"):
        load(folder)
