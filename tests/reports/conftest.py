"""The summary of a made-up run."""

from __future__ import annotations

import pandas as pd
import pytest

from stridebench.reports.summary import summarise
from tests.support.fake_store import suite


@pytest.fixture(scope="session")
def frame() -> pd.DataFrame:
    """Rows that no test changes."""
    return summarise(suite(6))
