"""Emoji scenes from their captions. The score says which objects a picture shows, of which colours and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from stridebench.harness.core.task import Prompt, Scored, SetScore, Task
from stridebench.harness.errors import OutputError, one_of, within
from stridebench.harness.record.outputs import Output, Picture
from stridebench.harness.registry import TASKS
from stridebench.harness.synthetic import emoji
from stridebench.tasks.metrics import geneval, images
from stridebench.tasks.metrics.features import EffLite0, FeatureNet, Inception, PictureSet, mean
from stridebench.tasks.metrics.frechet import frechet
from stridebench.tasks.metrics.geneval import DetectedObject, regions
from stridebench.tasks.metrics.geneval import judge_attributes as judge

if TYPE_CHECKING:
    from jaxtyping import UInt8

METRICS = ("object", "count", "colour", "position", "overall")
PROMPTS_SEED, REFERENCE_SEED = 1000, 1001
"""First seeds. Training and cards use other seeds; all of these scenes are held out."""

FAMILIES = {f"geneval_{tag}": tag for tag in geneval.TAGS} | {"geneval_overall": "families"}
"""Names of GenEval's figures here. They differ, because the pictures and the detector do."""
REGIONS = {emoji.SMOOTH: "smooth", emoji.TEXTURED: "textured", emoji.OBJECT: "object"}
NETS: dict[str, type[FeatureNet]] = {"fid": Inception, "fd_efflite0": EffLite0}


@TASKS.register("emoji_scenes")
@dataclass(frozen=True)
class EmojiScenes(Task):
    """Draw captions of held-out scenes, GenEval's six families in turn; a shipped detector finds the objects.

    A caption states everything, and all of it is asked for: kinds and colours of every family, ``count`` in counting,
    ``position`` in the families with two different objects. ``overall`` is GenEval's: everything that the prompt asks
    for holds. So the families that show as many objects ask alike.

    Args:
        limit: number of prompts.
        seed: which prompts.
        family: one of GenEval's families; "" takes all.
        size: side of the pictures in pixels, 64 or 32.
        scorers: of the whole set, such as ``fd_efflite0, diversity``. Frechet distances compare with as many real
            scenes.
        weights: folder of the scorers' weights; "" is torch's checkpoint folder.
    """

    limit: int = 256
    seed: int = 0
    family: str = ""
    size: int = 64
    scorers: tuple[str, ...] | str = ()
    weights: str = ""

    source = "arXiv:2310.11513; Noto Color Emoji"
    modality = "image"
    metrics = METRICS
    optional_metrics = ("count", "colour", "position")
    set_metrics = (*FAMILIES.values(), "swapped", *images.FIGURES)
    optional_set_metrics = ("swapped", *images.FIGURES)
    eos = False

    def __post_init__(self) -> None:
        images.names(self.scorers)
        within("the task emoji_scenes", 1, limit=self.limit)
        within("the task emoji_scenes", 0, seed=self.seed)
        one_of("the task emoji_scenes", "size", str(self.size), map(str, emoji.SIZES))
        one_of("the task emoji_scenes", "family", self.family, ("", *emoji.FAMILIES))

    def prompts(self) -> Sequence[Prompt]:
        """Return the captions; ``data`` holds the specification (``asked``), ``textured`` and the scene's ``index``."""
        return tuple(
            Prompt(
                f"{drawn.family}/{index}",
                emoji.caption(drawn),
                category=drawn.family,
                data={"asked": emoji.specification(drawn), "textured": drawn.ground.textured, "index": index},
            )
            for index, drawn in enumerate(self.scenes())
        )

    def scenes(self) -> list[emoji.EmojiScene]:
        """Return the scenes that the captions describe, in the order of the prompts."""
        return emoji.scenes(PROMPTS_SEED + 2 * self.seed, "held-out", self.limit, self.family or None)

    def reference(self, n: int) -> list[Picture]:
        """Return real pictures of other held-out scenes of the same families: the reference set of distances."""
        drawn = emoji.scenes(REFERENCE_SEED + 2 * self.seed, "held-out", n, self.family or None)
        return [Picture(emoji.render(scene, self.size)) for scene in drawn]

    def score(self, prompt: Prompt, output: Output, tokens: Sequence[int]) -> dict[str, float]:
        """Score the aspects of the prompt that the picture shows; each score is 0 or 1."""
        return judge(self._detected(output), prompt.data["asked"])

    def regions(self, prompt: Prompt, output: Output, cells: tuple[int, int]) -> Sequence[str]:
        """Return the region of each cell: object if the detector found one, else the ground of the prompt."""
        codes = regions(self._detected(output), prompt.data["textured"], cells[1])
        return [REGIONS[int(kind)] for kind in codes.ravel()]

    def score_set(self, outputs: Sequence[Scored]) -> dict[str, SetScore]:
        """Score the whole set.

        - The share of right pictures in each family, and ``families``, the mean of the six.
        - ``swapped``: ``overall`` of each picture for the next prompt of its family. A model that reads its prompt
          satisfies the other prompt by chance only. Absent if all prompts of each family are equal.
        """
        results = [
            geneval.GenEvalResult(one.prompt.category, one.prompt.id, one.scores["overall"] == 1) for one in outputs
        ]
        families = {FAMILIES[name]: score for name, score in geneval.summary(results).items()}
        names = images.names(self.scorers)
        far = {name: partial(self._distance, net=net) for name, net in NETS.items() if name in names}
        rest = [name for name in names if name not in NETS]
        others = images.score(rest, outputs, images.Settings(weights=self.weights), far)
        swapped = self._swapped(outputs)
        return {**families, **({} if swapped is None else {"swapped": swapped}), **others}

    def _distance(self, picture_set: PictureSet, settings: images.Settings, net: type[FeatureNet]) -> SetScore:
        network = net.open(settings.weights)
        real = self.reference(max(len(picture_set.pictures), network.enough))
        return frechet(picture_set.pictures, real, network, failures=picture_set.failures)

    def _swapped(self, outputs: Sequence[Scored]) -> SetScore | None:
        families: dict[str, list[Prompt]] = {}
        for prompt in sorted(
            {one.prompt.id: one.prompt for one in outputs}.values(), key=lambda p: int(p.data["index"])
        ):
            families.setdefault(prompt.category, []).append(prompt)
        pairs = [(a, b) for family in families.values() for a, b in zip(family, family[1:] + family[:1], strict=True)]
        after = {prompt.id: other for prompt, other in pairs if prompt.data["asked"] != other.data["asked"]}
        order = sorted((one for one in outputs if one.prompt.id in after), key=lambda s: (s.prompt.id, s.repetition))
        met = [self.score(after[one.prompt.id], one.output, ())["overall"] for one in order]
        return mean([one.prompt.id for one in order], met, within=(0, 1)) if met else None

    def _detected(self, output: Output) -> list[DetectedObject]:
        from stridebench.tasks.metrics.detector import find, shipped

        return find(shipped(), self._pixels(output)[None])[0]

    def _pixels(self, output: Output) -> UInt8[np.ndarray, "H W 3"]:
        if not isinstance(output, Picture):
            raise OutputError(f"emoji_scenes scores pictures; the output is a {type(output).__name__}")
        height, width = output.pixels.shape[:2]
        if (height, width) != (self.size, self.size):
            raise OutputError(
                f"the picture has {width}x{height} pixels and the task asks for {self.size}x{self.size}; give the task "
                f"the size of the backbone's pictures"
            )
        return output.pixels
