"""A pytest plugin for people who test that a change adds no communication. It is there wherever meshcost is installed.

    def test_step_communicates_as_before(meshcost_same):
        with meshcost.record() as recorder:
            step()
        meshcost_same(recorder.recording)

``pytest --meshcost-update`` writes what was called to a file beside the test, named after it; later runs compare. The
same option updates the files of ``meshcost.assert_same``.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

#: What meshcost.assert_same looks at; a plugin that every run of pytest loads cannot wait for the module that says so.
UPDATE = "MESHCOST_UPDATE"

_before = pytest.StashKey[str | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("meshcost").addoption(
        "--meshcost-update",
        action="store_true",
        help="Write the files of meshcost.assert_same and meshcost_same instead of comparing with them.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let assert_same know, also where no fixture is used."""
    if config.getoption("meshcost_update"):
        config.stash[_before] = os.environ.get(UPDATE)
        os.environ[UPDATE] = "1"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave the environment as it was."""
    if _before in config.stash:
        before = config.stash[_before]
        if before is None:
            os.environ.pop(UPDATE, None)
        else:
            os.environ[UPDATE] = before


@pytest.fixture
def meshcost_same(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compare a recording or a ledger with a file: ``meshcost_same(observed, path=None, tolerance=0)``.

    Without a path the file lies beside the test and has its name; a relative path starts at the test's folder.
    """

    def same(observed: Any, path: str | Path | None = None, tolerance: float = 0) -> None:
        import meshcost

        name = request.node.name.replace("/", "_").replace("[", "-").rstrip("]")
        meshcost.assert_same(observed, request.path.parent / (path or f"{name}.json"), tolerance)

    return same
