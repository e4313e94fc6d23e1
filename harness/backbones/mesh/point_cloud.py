"""What the mesh adapters share: a prompt is a point cloud."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from stridebench.harness.backbones.base import LayeredAdapter
from stridebench.harness.core.cache import Cache
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError

POINT = 6
"""Numbers a point: position and unit normal."""


class PointCloudAdapter(LayeredAdapter):
    """An adapter whose prompts are points in [-1, 1] with unit normals."""

    @classmethod
    def modality(cls, params: Mapping[str, Any]) -> str:
        """Meshes."""
        return "mesh"

    @classmethod
    def reads_text(cls, params: Mapping[str, Any]) -> bool:
        """No."""
        return False

    def cache(self) -> Cache:
        """Refused: there is no mesh without points.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"the backbone {self.name!r} needs a point cloud: open a prompt of a mesh task")

    def _points(self, prompt: Prompt, dtype: torch.dtype, count: int | None = None) -> Float[Tensor, "n 6"]:
        """The points of a prompt.

        Args:
            prompt: of a mesh task.
            dtype: of the result.
            count: their required number; None: one or more.

        Raises:
            UsageError: there are none, or they are of another shape or number, or not finite.
        """
        points = prompt.condition
        if (
            points is None
            or points.ndim != 2
            or points.shape[1] != POINT
            or not len(points)
            or len(points) != (count or len(points))
        ):
            condition = "no condition" if points is None else f"a condition of shape {points.shape}"
            advice = "Use a mesh task." if count is None else f"Give the mesh task points={count}."
            raise UsageError(
                f"the backbone {self.name!r} reads points [{count or 'n'}, {POINT}] (position and normal); the prompt "
                f"{prompt.id!r} has {condition}. {advice}"
            )
        cloud = torch.as_tensor(points, dtype=dtype, device=self.device)
        if not bool(cloud.isfinite().all()):  # reads the device, once a prompt
            raise UsageError(f"the points of the prompt {prompt.id!r} are not all finite; leave that prompt out")
        return cloud
