"""Rebuild a held-out shape as a mesh from points on its surface.

Protocol: Chen et al. 2025 (XSpecMesh), sections 5.1 and 7.2: 200 test shapes of three levels, 20/40/40 %, Chamfer and
Hausdorff distance from 1,024 points. The shapes are procedural, drawn from ranges that training never saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from harness.core.task import Prompt, Scored, SetScore, Task
from harness.errors import UsageError
from harness.record.outputs import Mesh, Output, as_mesh
from harness.registry import TASKS
from harness.synthetic import shapes
from tasks.metrics.mesh import METRICS, Distances, Protocol, Surface, distances, sample, scores

LEVELS = (1, 2, 0, 2, 1)
"""Of successive shapes: any five hold one of level 0 and two of each other, as in section 7.2."""
POOL = 512
"""Training shapes that retrieval chooses from."""
COARSE, SHORTLIST = 64, 4
"""Retrieval compares all shapes by few points, and the nearest of those by all."""
BOOTSTRAPS = 1000


@TASKS.register("shapes")
@dataclass(frozen=True)
class Shapes(Task):
    """Points of a surface in, a mesh out.

    Args:
        count: of shapes. seed: which ones. points: that condition the model, each with its normal.
        score_points, scale, squared: of the distances; see `tasks.metrics.mesh.Protocol`. Meshes come in the frame of
            their points, so by default neither is moved or scaled.
    """

    count: int = 200
    seed: int = 0
    points: int = 1024
    score_points: int = 1024
    scale: str = "none"
    squared: bool = False

    source = "procedural shapes, harness.synthetic.shapes, split test"
    modality = "mesh"
    metrics = METRICS
    set_metrics = ("floor_chamfer", "retrieval_chamfer", "swapped_chamfer")

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UsageError: a count below one, or no such scale.
        """
        if self.count < 1 or self.points < 1:
            raise UsageError(
                f"the task shapes was given count={self.count}, points={self.points}; both must be 1 or more"
            )
        self.protocol()

    def protocol(self) -> Protocol:
        """Of the distances."""
        return Protocol(self.score_points, self.seed, self.scale, self.squared)

    def prompts(self) -> Sequence[Prompt]:
        """The shapes; ``condition`` is float32 [points, 6], ``category`` the level.

        ``data`` holds vertices and faces of the reference, its kind and its number.
        """
        return _prompts(self.count, self.seed, self.points)

    def score(self, prompt: Prompt, output: Output, tokens: Sequence[int]) -> dict[str, float]:
        """Distances to the reference, and how broken the mesh is.

        Raises:
            OutputError: the mesh has no area or a vertex that is not finite: a failed sample, counted as one.
        """
        goal = sample(reference(prompt), self.protocol(), stream=1)
        return scores(as_mesh(output), goal, self.protocol(), len(tokens))

    def score_set(self, outputs: Sequence[Scored]) -> dict[str, SetScore]:
        """What the mean Chamfer distance is to be read against, over the same prompts.

        ``floor_chamfer``: of each reference to itself, drawn anew. ``retrieval_chamfer``: of the nearest of 512
        training shapes. ``swapped_chamfer``: of each output to the reference of the next prompt.
        """
        known = {scored.prompt.id: scored.prompt for scored in outputs}
        after = dict(zip(known, [*list(known)[1:], *list(known)[:1]], strict=True))
        swapped = [(scored, known[after[scored.prompt.id]]) for scored in outputs]
        lone = "" if len(known) > 1 else "only one shape was decoded, so no condition can be swapped"
        return {
            "floor_chamfer": _mean([self._distances(reference(p), p).chamfer for p in known.values()]),
            "retrieval_chamfer": _mean([self.retrieved(p).chamfer for p in known.values()]),
            "swapped_chamfer": _mean(
                [] if lone else [self._distances(as_mesh(s.output), other).chamfer for s, other in swapped], lone
            ),
        }

    def retrieved(self, prompt: Prompt) -> Distances:
        """Of the reference to the training shape nearest to it (by Chamfer distance) in a seeded pool."""
        return nearest(sample(reference(prompt), self.protocol(), stream=1), self.protocol())

    def _distances(self, mesh: Mesh, prompt: Prompt) -> Distances:
        goal = sample(reference(prompt), self.protocol(), stream=1)
        return distances(sample(mesh, self.protocol()), goal, self.squared)


def reference(prompt: Prompt) -> Mesh:
    """The mesh that the prompt's points were drawn on."""
    return Mesh(prompt.data["vertices"], prompt.data["faces"])


def nearest(goal: Surface, protocol: Protocol) -> Distances:
    """Of a surface to the nearest training shape: all are compared by few points, the nearest few by all."""
    pool, coarse = _pool(protocol)
    few = goal.points[:COARSE].astype(np.float32)
    apart = (few**2).sum(1)[:, None] + (coarse**2).sum(1) - 2 * few @ coarse.T
    apart = apart.reshape(len(few), len(pool), -1).clip(0)  # [goal's points, shapes, points]
    rough = np.sqrt(apart.min(2)).mean(0) + np.sqrt(apart.min(0)).mean(1)
    found = [distances(pool[int(index)], goal, protocol.squared) for index in np.argsort(rough)[:SHORTLIST]]
    return min(found, key=lambda each: each.chamfer)


@lru_cache(maxsize=2)
def _pool(protocol: Protocol) -> tuple[list[Surface], npt.NDArray[np.float32]]:
    random = np.random.default_rng([protocol.seed, 1])
    pool = [sample(shapes.shape(random, "train").mesh, protocol) for _ in range(POOL)]
    return pool, np.concatenate([surface.points[:COARSE] for surface in pool]).astype(np.float32)


@lru_cache(maxsize=4)
def _prompts(count: int, seed: int, points: int) -> tuple[Prompt, ...]:
    found = []
    for index in range(count):
        random = np.random.default_rng([seed, 0, index])
        shape = shapes.shape(random, "test", LEVELS[index % len(LEVELS)])
        data = {"vertices": shape.mesh.vertices, "faces": shape.mesh.faces, "kind": shape.category, "number": index}
        condition = shapes.points(shape.mesh, points, random)
        found.append(Prompt(f"shapes/{index}", None, None, condition, f"level-{shape.level}", data))
    return tuple(found)


def _mean(values: Sequence[float], reason: str = "") -> SetScore:
    """Mean and the 95 % interval of a seeded bootstrap over the values."""
    if not values:
        return SetScore(None, 0, reason=reason)
    found = np.asarray(values)
    draws = np.random.default_rng(0).integers(0, len(found), (BOOTSTRAPS, len(found)))
    low, high = np.percentile(found[draws].mean(1), [2.5, 97.5])
    return SetScore(float(found.mean()), len(found), low=float(low), high=float(high))
