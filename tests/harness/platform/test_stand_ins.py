"""Stand-ins of libraries: annotations and base classes only."""

from __future__ import annotations

import pytest

from stridebench.harness.platform.stand_ins import StandInUsedError, stand_in


class TestStandIns:
    def test_they_annotate_decorate_and_are_subclassed(self):
        torch = stand_in("torch.nn")

        class Net(torch.Module):
            @stand_in("torch.inference_mode")()
            def read(self, x: torch.Tensor | None) -> torch.Tensor[N]:
                return 3

        assert Net.read(None, None) == 3

    @pytest.mark.parametrize(
        "use", [lambda t: t(1), bool, list, str, lambda t: t.zeros(3), lambda t: t.Module(), lambda t: isinstance(3, t)]
    )
    def test_any_other_use_is_refused(self, use):
        with pytest.raises(StandInUsedError, match=r"torch\.nn\S* belongs to a library that was not imported"):
            use(stand_in("torch.nn"))
