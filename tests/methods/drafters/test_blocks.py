"""Block drafters: published files against a transcription, the cache, the tree, and what is refused."""

from __future__ import annotations

import heapq
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.cache import Window
from stridebench.harness.core.capabilities import Capabilities
from stridebench.harness.core.loop import decode
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import ContractError, UsageError, WeightsError, WeightsWarning
from stridebench.methods.autoregressive import Autoregressive
from stridebench.methods.ddtree import DDTree
from stridebench.methods.dflash import DFlash
from stridebench.methods.dflash2 import DFlash2
from stridebench.methods.drafters.block_net import BlockCache, BlockDrafterNet, CandidateSelector, MarkovHead
from stridebench.methods.drafters.block_shape import read_shape
from stridebench.methods.drafters.blocks import BLOCK_TAPS, BlockRows, best_tree, taps_of
from stridebench.methods.dspark import DSpark
from tests.support.feature_toys import PROMPT, run_on, tiny
from tests.support.published_drafters import PublishedBlocks

TORCH = torch.Generator().manual_seed(5)
FEATURES, EMBED = torch.randn(7, 2, 32, generator=TORCH), torch.randn(61, 32, generator=TORCH)
TIED = TiedEmbeddings(EMBED, EMBED)


def window(first: int, new: int, masks: int, rows: int) -> Window:
    """New entries from ``first`` on, the tokens 9, 10, ..., and masks."""
    tokens = torch.tensor([*range(9 + first, 9 + first + new), *[60] * masks])
    features = torch.cat([FEATURES[first : first + new], torch.zeros(masks, 2, 32)])[:, None]
    return Window(tokens, torch.arange(first, first + new + masks), 0, None, rows, (), features)


def computed(published: PublishedBlocks, folder: Path) -> tuple[BlockDrafterNet, torch.Tensor, torch.Tensor]:
    """The net, its vectors of a block's rows and their logits; two windows, the second with a block behind it.

    The vectors agree with the authors'.
    """
    net = BlockDrafterNet.load(published.save(folder)).packed()
    cache = BlockCache(net, TIED, Capabilities(61, 100))
    cache.extend(window(0, 4, 0, 0))
    rows = cache.extend(window(4, 3, 3, 4))
    expected = published(FEATURES.flatten(1), EMBED[[15, 60, 60, 60]])
    assert rows.hidden is not None
    torch.testing.assert_close(rows.hidden[2:, 0, 0], expected, rtol=1e-4, atol=1e-4)
    return net, expected, rows.logits


@pytest.mark.parametrize("rank", [0, 5])
def test_a_published_drafter_computes_as_its_authors_do(rank: int, tmp_path: Path) -> None:
    published = PublishedBlocks(rank)
    net, hidden, logits = computed(published, tmp_path)
    torch.testing.assert_close(logits, hidden @ EMBED.T, rtol=1e-4, atol=1e-3)
    if rank:
        before, head = torch.tensor([3, 4, 5, 6]), net.correction
        assert isinstance(head, MarkovHead)
        bias = published.markov_head["markov_w2"](published.markov_head["markov_w1"](before))
        torch.testing.assert_close(head.corrected(logits, hidden, before), logits + bias)
        read = torch.cat([hidden, published.markov_head["markov_w1"](before)], 1)
        judged = published.confidence_head["proj"](read)[:, 0]
        torch.testing.assert_close(head.confidence(hidden, before), judged, rtol=1e-4, atol=1e-4)


def test_a_published_dflash2_computes_as_its_authors_do(tmp_path: Path) -> None:
    published = PublishedBlocks(second=True)
    net, hidden, logits = computed(published, tmp_path)
    capped = 20 * torch.tanh(hidden @ EMBED.T * 0.2 / 20)
    torch.testing.assert_close(logits, capped, rtol=1e-4, atol=1e-3)
    head, before = net.correction, torch.tensor([3, 4, 5, 6])
    assert isinstance(head, CandidateSelector)
    chosen = torch.stack([published.selected(*row) for row in zip(logits, hidden, before.tolist(), strict=True)])
    torch.testing.assert_close(head.corrected(logits, hidden, before), chosen, rtol=1e-4, atol=1e-4)
    everywhere = replace(head, candidates=61).corrected(logits, hidden, before)
    torch.testing.assert_close(torch.where(chosen.isfinite(), everywhere, -torch.inf), chosen, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"is_causal": True},
        {"layer_types": ["sliding_attention"] * 2},
        {"layer_types": ["sliding_attention"] * 2, "use_sliding_window": True, "sliding_window": 3},
        {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0, "is_causal": False},
        {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0},
    ],
)
def test_what_rows_of_a_published_drafter_see(changes: dict[str, object], tmp_path: Path) -> None:
    """Layers that slide are causal too unless is_causal denies it; without layer_types those from a number on slide."""
    computed(PublishedBlocks(**changes), tmp_path)  # type: ignore[arg-type]


def test_the_entries_of_a_block_are_not_kept(tmp_path: Path) -> None:
    """A second pass over the same context, after a rejected block, is the first one."""
    net = BlockDrafterNet.load(PublishedBlocks().save(tmp_path))
    cache = BlockCache(net, TIED, Capabilities(61, 100))
    cache.extend(window(0, 6, 3, 4))
    cache.keep(6)
    again = cache.extend(window(6, 1, 3, 4)).logits
    fresh = BlockCache(net, TIED, Capabilities(61, 100)).extend(window(0, 7, 3, 4)).logits
    torch.testing.assert_close(again, fresh, rtol=1e-4, atol=1e-4)
    with pytest.raises(ContractError, match="forward a block anew"):
        cache.keep(3, (0,))
    with pytest.raises(ContractError, match="8 entries at most"):
        BlockCache(net, TIED, Capabilities(61, 8)).extend(window(0, 6, 3, 4))


def test_the_shape_of_a_published_file(tmp_path: Path) -> None:
    """Layer 0 of z-lab is our tap 1, which is what enters the second layer; a trained drafter is written alike."""
    shape = read_shape(PublishedBlocks(5).save(tmp_path))
    assert (shape.layers, shape.block, shape.mask, shape.ahead, shape.rank) == ((1, 3), 4, 60, True, 5)
    shape.write(tmp_path)
    assert read_shape(tmp_path) == shape
    assert taps_of(str(tmp_path)) == (1, 3)
    assert taps_of("dflash") == BLOCK_TAPS


def test_fields_of_dflash_lie_in_its_part_or_beside_it(tmp_path: Path) -> None:
    """As z-lab's model reads them; 16 is its block size if none is named."""
    folder = PublishedBlocks().save(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    ids, named = config.pop("dflash_config"), {"architectures": ["DFlashDraftModel"]}
    shapes = []
    for more in (
        {"dflash_config": {**ids, "block_size": 4}, "block_size": 9},
        {**ids, **named},
        {**ids, **named, "block_size": None},
        {**ids, "architectures": ["Qwen3DSparkModel"]},
    ):
        (folder / "config.json").write_text(json.dumps({**config, **more}))
        shapes.append(read_shape(folder))
    assert [(shape.block, shape.ahead) for shape in shapes] == [(4, False), (4, False), (16, False), (4, True)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["sliding_attention"]}, "layer_types is .* for 2 layers"),
        ({"layer_types": "sliding_attention"}, "layer_types is 'sliding_attention'"),
        ({"is_causal": "false"}, "is_causal is 'false'"),
        ({"dflash_config": {"use_swa": True}}, "use_swa: True"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"mask_token_id": 61}, "mask_token_id is 61, and not a whole number from 0 to 60"),
        ({"block_size": 0}, "block_size is 0"),
        ({"selector_top_k": 0}, "selector_top_k is 0"),
        ({"conv_group_size": 5}, "conv_group_size is 5, which does not divide hidden_size, 32"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu'"),
        ({"markov_head_type": "gated"}, "markov_head_type: 'gated'"),
        ({"block_size": "many"}, "holds no block drafter"),
        ({"num_hidden_layers": 3}, "lacks layers.2"),
        ({"intermediate_size": 40}, "in the shape"),
    ],
)
def test_another_computation_is_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    folder = PublishedBlocks(5).save(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(WeightsError, match=message):
        BlockDrafterNet.load(folder)


def test_keys_that_are_not_read(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """A tensor of DFlash2 in a DFlash is an error; an unknown key of the configuration is a note."""
    conv = {"layers.0.attention_conv.base_kernel": torch.ones(2)}
    with pytest.raises(WeightsError, match=r"does not read, layers\.0\.attention_conv\.base_kernel"):
        BlockDrafterNet.load(PublishedBlocks().save(tmp_path / "conv", **conv))
    BlockDrafterNet.load(PublishedBlocks(5).save(tmp_path / "known"))
    assert not recwarn.list
    with pytest.warns(WeightsWarning, match="newer_key"):
        BlockDrafterNet.load(PublishedBlocks(newer_key=1).save(tmp_path / "key"))


def searched(logits: torch.Tensor, nodes: int) -> set[tuple[int, ...]]:
    """Algorithm 1 of DDTree as it is printed: pop a prefix, push its next sibling and its first child."""
    scores, ids = logits.log_softmax(-1).sort(descending=True)
    heap, taken = [(-float(scores[0, 0]), (0,))], set()
    while heap and len(taken) < nodes:
        score, ranks = heapq.heappop(heap)
        taken.add(tuple(int(ids[depth, rank]) for depth, rank in enumerate(ranks)))
        depth, last = len(ranks) - 1, ranks[-1]
        if last + 1 < logits.shape[1]:
            heapq.heappush(
                heap, (score + float(scores[depth, last] - scores[depth, last + 1]), (*ranks[:-1], last + 1))
            )
        if len(ranks) < len(logits):
            heapq.heappush(heap, (score - float(scores[len(ranks), 0]), (*ranks, 0)))
    return taken


@pytest.mark.parametrize("nodes", [1, 16, 40])
def test_the_tree_is_that_of_the_best_first_search(nodes: int) -> None:
    logits = 2 * torch.randn(5, 9, generator=torch.Generator().manual_seed(nodes)).double()
    draft = best_tree(BlockRows(logits, logits, torch.tensor([0])), nodes).draft
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens.tolist(), draft.explicit_parents.tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    assert set(paths) == searched(logits, nodes)
    assert len(paths) == nodes


MODEL = tiny("fp32")


def fitting(rank: int = 0, second: bool = False, **changes: object) -> PublishedBlocks:
    """A drafter of the sizes of the tiny model, whose rows are 48 wide."""
    return PublishedBlocks(rank, second, hidden_size=48, num_attention_heads=6, **changes)


@pytest.mark.parametrize(
    ("method", "temperature"), [(DFlash, 0.0), (DFlash2, 0.0), (DDTree, 0.0), (DSpark, 0.0), (DSpark, 1.0)]
)
def test_greedy_text_is_the_models_whatever_the_drafter_says(
    method: type[DFlash | DFlash2 | DDTree | DSpark], temperature: float, tmp_path: Path
) -> None:
    folder = str(fitting(5 if method is DSpark else 0, method is DFlash2).save(tmp_path))
    result = decode(method(features=folder), run_on(MODEL, Sampling(temperature), 24))
    drafts = [step.drafted for step in result.steps]
    assert drafts[0] == {DFlash: 3, DFlash2: 3, DDTree: 16, DSpark: 4}[method]
    assert all(step.draft_nfe == 1 for step in result.steps[:-1])
    assert max(drafts[-3:]) <= drafts[0]
    if temperature == 0:
        assert result.tokens == decode(Autoregressive(), run_on(MODEL, Sampling(0.0), 24)).tokens


def test_a_confidence_above_all_drafts_nothing(tmp_path: Path) -> None:
    folder = str(fitting(5).save(tmp_path, **{"confidence_head.proj.bias": torch.tensor([-90.0])}))
    result = decode(DSpark(features=folder, confidence=0.1), run_on(MODEL, Sampling(1.0), 8))
    assert [step.drafted for step in result.steps] == [0] * 8
    assert max(step.drafted for step in decode(DSpark(features=folder), run_on(MODEL, Sampling(1.0), 8)).steps) == 4


def test_a_prompt_of_one_token_drafts_from_the_second_step(tmp_path: Path) -> None:
    steps = decode(DFlash(features=str(fitting().save(tmp_path))), run_on(MODEL, Sampling(0.0), 12, PROMPT[:1])).steps
    assert [step.drafted for step in steps[:2]] == [0, 3]


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        (DSpark(), {"second": True}, "no Markov head"),
        (DFlash2(), {}, "no candidate selector"),
        (DSpark(confidence=0.5), {"rank": 5, "enable_confidence_head": False}, "no confidence head|does not read"),
        (DFlash(block=9), {}, "trained with 4 rows"),
        (
            DFlash(),
            {"vocab_size": 60, "dflash_config": {"target_layer_ids": [0, 2], "mask_token_id": 59}},
            "vocabulary of 60",
        ),
    ],
)
def test_a_drafter_that_does_not_fit(
    method: DFlash | DFlash2 | DSpark, changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    published = fitting(**changes)  # type: ignore[arg-type]
    with pytest.raises((WeightsError, UsageError), match=message):
        decode(replace(method, features=str(published.save(tmp_path))), run_on(MODEL, Sampling(1.0), 8))
