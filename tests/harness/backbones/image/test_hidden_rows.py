"""Published picture models lend hidden rows: both branches in one pass, and every method that reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from stridebench.harness.backbones.slots.cache import Packs, SlotCache
from stridebench.harness.backbones.slots.guided import GuidedCache
from stridebench.harness.backbones.slots.net import Tapped
from stridebench.harness.core.cache import Rows
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.session import Session
from stridebench.harness.plan import presets
from stridebench.harness.registry import METHODS
from stridebench.harness.train.recipe import save_bf16
from stridebench.methods.autoregressive import Autoregressive
from stridebench.methods.drafters.heads.net import Config, Heads
from tests.support.caches import acceptance
from tests.support.caches import session as open_session
from tests.support.decodes import decoded
from tests.support.feature_toys import folder_for
from tests.support.tiny_image import MAKERS, Tiny, in_fp64

SCALE = 3.0
NEAR = 1e-11
TAPS = (0, 1, -1)
PRESETS = sorted(name for name, spec in presets.by_name().items() if spec.adapter == "real_image")


class Unpacked:
    """A net without its packed pass, so that each branch of guidance is read by itself."""

    kind = "unpacked"

    def __init__(self, net: Any) -> None:
        self.net, self.layers = net, net.layers

    def __call__(self, *arguments: Any) -> Any:
        return self.net(*arguments)

    def pick(self, layers: Sequence[int]) -> Any:
        return self.net.pick(layers)

    def tied_embeddings(self) -> Any:
        return self.net.tied_embeddings()

    def tapped(self, *arguments: Any) -> Rows:
        rows: Rows = self.net.tapped(*arguments)
        return rows


@pytest.fixture(params=sorted(MAKERS))
def tiny(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tiny]:
    yield from in_fp64(request.param, SCALE, tmp_path)


def sessions(tiny: Tiny) -> list[Session]:
    """One whose branches are packed, and one that reads them one after the other."""
    model, capabilities = tiny.backbone._model, tiny.backbone.capabilities
    reading = model.read(model.net, tiny.prompt)
    opened = []
    for wrap in (lambda net: net, Unpacked):
        branches = [SlotCache(wrap(net), model.context, tiny.backbone._masks) for net in (reading.net, reading.other)]
        cache = GuidedCache(
            branches[0],
            len(reading.tokens),
            scale=SCALE,
            unconditional=branches[1],
            negative=reading.negative,
            grammar=tiny.backbone._grammar,
        )
        opened.append(open_session(cache, capabilities, reading.tokens, TAPS))
    return opened


def cells(tiny: Tiny, count: int) -> list[int]:
    allowed = (tiny.backbone.codes >= 0).nonzero()[:, 0]
    return allowed[torch.randint(len(allowed), (count,), generator=torch.Generator().manual_seed(1))].tolist()


def test_packed_guidance_gives_the_laws_of_two_passes(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefill, chains, trees, gathered commits and rollbacks: the same logits and hidden rows."""
    both, picks = sessions(tiny), cells(tiny, 9)
    passes: list[str] = []
    net: Any = tiny.backbone._model.read(tiny.backbone._model.net, tiny.prompt).net
    packed = type(net).packed
    monkeypatch.setattr(type(net), "packed", lambda *how: passes.append("packed") or packed(*how))
    tree = Draft(torch.tensor(picks[1:6]), parents=torch.tensor([-1, -1, 0, 1, 3]))
    history = ((Draft(torch.tensor(picks[1:4])), [0, 1], 0), (tree, [1, 3, 4], 2), (tree, [0, 2], 1))
    prompt = len(both[0])
    for number, (draft, path, back) in enumerate(history, 1):
        rows = [session.forward(draft) for session in both]
        assert len(passes) == number
        torch.testing.assert_close(*rows, rtol=0, atol=NEAR)
        for session in both:
            session.commit(acceptance(path, len(draft), picks[7]))
            session.sync(session.tokens[: max(prompt, len(session) - back)])
        hidden = [session.hidden for session in both]
        assert hidden[0].shape[1:] == (2, 3, tiny.backbone.capabilities.width)
        torch.testing.assert_close(*hidden, rtol=0, atol=NEAR)


def test_the_last_tap_is_what_the_head_reads_and_the_first_the_embedding(tiny: Tiny) -> None:
    session, picks = sessions(tiny)[0], cells(tiny, 4)
    tied, prompt = tiny.backbone.tied_embeddings(), len(session)
    assert isinstance(tiny.backbone._model.net, Tapped) and isinstance(tiny.backbone._model.net, Packs)
    session.append(torch.tensor(picks))
    logits = session.forward()[0]
    session.append(torch.tensor(picks[:1]))
    session.forward()
    rows = session.hidden[prompt : prompt + len(picks)]
    branches = tied.logits(rows[-1, :, 2])
    guided = branches[1] + SCALE * (branches[0] - branches[1])
    seen = logits > float("-inf")
    torch.testing.assert_close(logits[seen], guided[seen], rtol=0, atol=NEAR)
    if not hasattr(getattr(tiny.backbone._model.net, "gpt", None), "abs_pe"):  # Tar adds learned positions
        torch.testing.assert_close(rows[:, 0, 0], tied.embed[torch.tensor(picks)], rtol=0, atol=NEAR)


def components(tiny: Tiny, folder: Path) -> dict[str, str]:
    """A drafter of each kind with random weights, as folders."""
    model = tiny.backbone
    torch.manual_seed(3)
    heads = Heads(
        Config(model.name, model.fingerprint, model.capabilities.width, 3, guidance=SCALE),
        model.tied_embeddings().unembed,
    )
    (folder / "heads").mkdir()
    save_bf16(heads, folder / "heads")
    heads.config.write(folder / "heads")
    kept = min(20, model.capabilities.vocabulary // 2)
    return {
        "eagle1": folder_for(model, folder / "eagle1"),
        "eagle3": folder_for(model, folder / "eagle3", kind="eagle3", taps=3, kept=kept),
        "heads": str(folder / "heads"),
    }


def run_cell(preset: str, method: str, folder: Path) -> None:
    """Decode a picture at T = 0; where the method claims the target's distribution, its ids are the baseline's."""
    family = str(presets.by_name()[preset].params["family"])
    tiny = MAKERS[family](SCALE, folder)
    parts, kind = components(tiny, folder), METHODS.get(method)
    settings: dict[str, Any] = {"k": 2} if method in ("lantern", "lanternpp") else {}
    if method in ("medusa", "blockwise"):
        chosen = kind(heads=parts["heads"])
    else:
        chosen = kind(features=parts["eagle3" if method == "eagle3" else "eagle1"], **settings)
    length = tiny.backbone.capabilities.grid.length  # type: ignore[union-attr]  # a picture model has one

    def tokens_of(of: Method[Any]) -> tuple[int, ...]:
        out = decoded(of, tiny.backbone, tiny.prompt, length)
        assert of.claim is not Claim.SAME_LAW or isinstance(of, Autoregressive) or any(s.drafted for s in out.steps)
        return out.tokens

    tokens = tokens_of(chosen)
    assert tiny.backbone.decode(tokens) is not None and len(tokens) == length
    if chosen.claim is Claim.SAME_LAW:
        assert tokens == tokens_of(Autoregressive())


METHODS_TRIED = ("adt_tree", "blockwise", "eagle1", "eagle2", "eagle3", "lantern", "lanternpp", "medusa")
ALL = [(preset, method) for preset in PRESETS for method in METHODS_TRIED]
ONCE = list(zip((PRESETS * 2)[: len(METHODS_TRIED)], METHODS_TRIED, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "method"), ONCE)
def test_methods_of_hidden_rows_run_on_published_picture_models(preset: str, method: str, tmp_path: Path) -> None:
    """Each method once; the other cells of the 96 follow in the audit."""
    run_cell(preset, method, tmp_path)


@pytest.mark.audit
@pytest.mark.parametrize(("preset", "method"), [cell for cell in ALL if cell not in ONCE])
def test_every_method_of_hidden_rows_runs_on_every_published_picture_model(
    preset: str, method: str, tmp_path: Path
) -> None:
    run_cell(preset, method, tmp_path)
