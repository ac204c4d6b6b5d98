"""A fixture for people who test that a change adds no communication.

    def test_step_communicates_as_before(meshcost_same):
        with meshcost.record() as recorder:
            step()
        meshcost_same(recorder.recording)

The first run with MESHCOST_UPDATE=1 writes what was called to a file beside the test, named after it; later runs compare.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import meshcost


@pytest.fixture
def meshcost_same(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compare a recording or a ledger with a file: ``meshcost_same(observed, path=None, tolerance=0)``."""

    def same(observed: Any, path: str | Path | None = None, tolerance: float = 0) -> None:
        name = request.node.name.replace("/", "_").replace("[", "-").rstrip("]")
        meshcost.assert_same(observed, path or request.path.parent / f"{name}.json", tolerance)

    return same
