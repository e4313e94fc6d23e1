"""Which method runs on which backbone, decided from presets and configurations only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.plan import presets
from stridebench.harness.plan.compatibility import incompatibility


@dataclass(frozen=True)
class Drafting:
    """The attributes of a method that compatibility reads."""

    drafter: str
    drafter_shrink: int
    requirements: frozenset[Requirement] = frozenset()
    one_branch: bool = False

    def drafters(self) -> tuple[str, ...]:
        return (self.drafter,)


@pytest.fixture()
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Presets named after the rows and columns of their pictures."""
    for rows, columns in ((4, 4), (4, 8), (8, 8)):
        name = f"picture-{rows}x{columns}"
        config = {"model_type": "llama", "vocab_size": 9, "picture": {"rows": rows, "columns": columns}}
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        (tmp_path / f"{name}.yaml").write_text(f"adapter: hf_causal\nsource: {{folder: {tmp_path / name}}}\n")
    monkeypatch.setenv("STRIDE_PRESETS", str(tmp_path))


@pytest.mark.parametrize(
    ("drafter", "shrink", "reason"),
    [
        ("picture-4x4", 2, None),
        ("picture-4x4", 4, "the drafter picture-4x4 has 4x4 cells, and not 1/4 of 8x8"),
        ("picture-4x8", 2, "the drafter picture-4x8 has 4x8 cells, and not 1/2 of 8x8"),
        ("picture-8x8", 2, "the drafter picture-8x8 has 8x8 cells, and not 1/2 of 8x8"),
        ("self", 2, "there is no backbone 'self'"),
        ("picture-4x4", 1, None),
    ],
)
def test_a_drafters_pictures_must_be_smaller_by_the_methods_factor(
    pictures: None, drafter: str, shrink: int, reason: str | None
) -> None:
    method: Any = Drafting(drafter, shrink)
    message = incompatibility(method, presets.by_name()["picture-8x8"])
    assert message is None if reason is None else message is not None and reason in message
