"""A pytest plugin for people who test that a change adds no communication. It is there wherever meshcost is installed.

    def test_step_communicates_as_before(meshcost_same):
        with meshcost.record() as recorder:
            step()
        meshcost_same(recorder.recording)

``pytest --meshcost-update`` writes what was called to a file beside the test, named after it; later runs compare. The
same option updates the files of ``meshcost.assert_same``, whose relative paths start at the folder of the test.
"""

import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

#: What meshcost.assert_same looks at; a plugin that every run of pytest loads cannot wait for the module that says so.
UPDATE, FOLDER = "MESHCOST_UPDATE", "MESHCOST_FOLDER"

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
        _put_back(UPDATE, config.stash[_before])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let assert_same know where the test is that runs."""
    before = os.environ.get(FOLDER)
    os.environ[FOLDER] = str(item.path.parent)
    try:
        return (yield)
    finally:
        _put_back(FOLDER, before)


def _put_back(name: str, before: str | None) -> None:
    if before is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = before


@pytest.fixture
def meshcost_same(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compare a recording or a ledger with a file: ``meshcost_same(observed, path=None, tolerance=0)``.

    Without a path the file lies beside the test and has its name; a relative path starts at the test's folder.
    """

    def same(observed: Any, path: str | Path | None = None, tolerance: float = 0) -> None:
        import meshcost

        __tracebackhide__ = True  # a test that fails shows its own line
        name = request.node.name.replace("/", "_").replace("[", "-").rstrip("]")
        meshcost.assert_same(observed, request.path.parent / (path or f"{name}.json"), tolerance)

    return same
