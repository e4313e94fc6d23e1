"""Rebuild a held-out shape as a mesh from points on its surface.

Protocol: Chen et al. 2025 (XSpecMesh), sections 5.1 and 7.2: 200 test shapes of three levels, 20/40/40 %, Chamfer and
Hausdorff distance from 1,024 points. The shapes are procedural, drawn from lengths that training never saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stridebench.harness.core.task import Prompt, Scored, SetScore, Task
from stridebench.harness.errors import within
from stridebench.harness.record.outputs import Mesh, Output, as_mesh
from stridebench.harness.registry import TASKS
from stridebench.harness.synthetic import furniture, shapes
from stridebench.tasks.metrics.features import mean
from stridebench.tasks.metrics.mesh import METRICS, Distances, Protocol, Surface, distances, sample, scores

LEVELS = (1, 2, 0, 2, 1)
"""Levels of successive shapes: one in five has level 0, two have each other level, as in section 7.2."""
POOL = 512
"""Training shapes that retrieval chooses from."""
COARSE, SHORTLIST = 64, 4
"""Retrieval compares all shapes by ``COARSE`` points, and the ``SHORTLIST`` nearest ones by all points."""


@TASKS.register("shapes")
@dataclass(frozen=True)
class Shapes(Task):
    """Make a mesh from the points of a surface.

    Args:
        limit: number of shapes.
        seed: of the shapes.
        points: number of points, with normals, that condition the model.
        score_points: points of the distances; see `stridebench.tasks.metrics.mesh.Protocol`.
        scale: scaling before the distances. Meshes come in the frame of their points, so the default is none.
        squared: whether distances are squared.
    """

    limit: int = 200
    seed: int = 0
    points: int = 1024
    score_points: int = 1024
    scale: str = "none"
    squared: bool = False

    source = "procedural shapes, stridebench.harness.synthetic, split test"
    modality = "mesh"
    metrics = METRICS
    set_metrics = ("floor_chamfer", "retrieval_chamfer", "swapped_chamfer")

    def __post_init__(self) -> None:
        within("the task shapes", 1, limit=self.limit, points=self.points)
        self.protocol()

    def protocol(self) -> Protocol:
        """Return the protocol of the distances."""
        return Protocol(self.score_points, self.seed, self.scale, self.squared)

    def prompts(self) -> Sequence[Prompt]:
        """Return the shapes as prompts; ``condition`` is float32 [points, 6], ``category`` the level.

        ``data`` has the vertices and faces of the reference, its kind and its number.
        """
        return _prompts(self.limit, self.seed, self.points)

    def score(self, prompt: Prompt, output: Output, tokens: Sequence[int]) -> dict[str, float]:
        """Return the distances to the reference and the defects of the mesh."""
        goal = sample(reference(prompt), self.protocol(), stream=1)
        return scores(as_mesh(output), goal, self.protocol(), len(tokens))

    def score_set(self, outputs: Sequence[Scored]) -> dict[str, SetScore]:
        """Return Chamfer distances to compare the mean with, over the same prompts.

        - ``floor_chamfer``: each reference to itself, with other points.
        - ``retrieval_chamfer``: each reference to the nearest of 512 training shapes.
        - ``swapped_chamfer``: each output to the reference of the next prompt.
        """
        prompts = {scored.prompt.id: scored.prompt for scored in outputs}
        following = dict(zip(prompts, [*list(prompts.values())[1:], *list(prompts.values())[:1]], strict=True))
        swapped = SetScore(None, 0, reason="only one shape was decoded, so no condition can be swapped")
        if len(prompts) > 1:
            pairs = [(as_mesh(scored.output), following[scored.prompt.id]) for scored in outputs]
            ids = [scored.prompt.id for scored in outputs]
            swapped = mean(ids, [self._distances(mesh, prompt).chamfer for mesh, prompt in pairs])
        return {
            "floor_chamfer": mean(list(prompts), [self._distances(reference(p), p).chamfer for p in prompts.values()]),
            "retrieval_chamfer": mean(list(prompts), [self.retrieved(p).chamfer for p in prompts.values()]),
            "swapped_chamfer": swapped,
        }

    def retrieved(self, prompt: Prompt) -> Distances:
        """Return the distances of the reference to the nearest training shape of a seeded pool."""
        return nearest(sample(reference(prompt), self.protocol(), stream=1), self.protocol())

    def _distances(self, mesh: Mesh, prompt: Prompt) -> Distances:
        goal = sample(reference(prompt), self.protocol(), stream=1)
        return distances(sample(mesh, self.protocol()), goal, self.squared)


def reference(prompt: Prompt) -> Mesh:
    """Return the mesh that the prompt's points were drawn on."""
    return Mesh(prompt.data["vertices"], prompt.data["faces"])


def nearest(goal: Surface, protocol: Protocol) -> Distances:
    """Return the distances of a surface to the nearest training shape; see ``COARSE``."""
    pool, coarse = known_shapes(protocol)
    few = goal.points[:COARSE].astype(np.float32)
    squares = (few**2).sum(1)[:, None] + (coarse**2).sum(1) - 2 * few @ coarse.T
    squares = squares.reshape(len(few), len(pool), -1).clip(0)  # [goal's points, shapes, points]
    rough = np.sqrt(squares.min(2)).mean(0) + np.sqrt(squares.min(0)).mean(1)
    candidates = [distances(pool[int(index)], goal, protocol.squared) for index in np.argsort(rough)[:SHORTLIST]]
    return min(candidates, key=lambda candidate: candidate.chamfer)


@lru_cache(maxsize=2)
def known_shapes(protocol: Protocol) -> tuple[list[Surface], npt.NDArray[np.float32]]:
    """Return the training shapes of retrieval, and ``COARSE`` points of each, [``POOL`` * ``COARSE``, 3]."""
    random = np.random.default_rng([protocol.seed, 1])
    pool = [sample(furniture.shape(random, "train", None).mesh, protocol) for _ in range(POOL)]
    return pool, np.concatenate([surface.points[:COARSE] for surface in pool]).astype(np.float32)


@lru_cache(maxsize=4)
def _prompts(count: int, seed: int, points: int) -> tuple[Prompt, ...]:
    prompts = []
    for index in range(count):
        random = np.random.default_rng([seed, 0, index])
        shape = furniture.shape(random, "test", LEVELS[index % len(LEVELS)])
        facts = {"vertices": shape.mesh.vertices, "faces": shape.mesh.faces, "kind": shape.category, "number": index}
        condition = shapes.points(shape.mesh, points, random)
        prompts.append(Prompt(f"shapes/{index}", None, None, condition, f"level-{shape.level}", facts))
    return tuple(prompts)
