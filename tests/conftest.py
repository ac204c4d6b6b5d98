"""What all tests share: how hard Hypothesis tries, where the repository is, and the command line."""

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings

from meshcost.cli import main
from meshcost.execute.call_kinds import CallLike
from meshcost.execute.recording_compare import differences, first_out_of_order, text_of

settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=25, deadline=None, derandomize=True, print_blob=True)
_default = "ci" if os.environ.get("CI") == "true" else "dev"
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", _default))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put first what takes long: slow tests, and those that stay together on one worker, so that none is left waiting."""
    items.sort(
        key=lambda item: not any(item.iter_markers("slow")) and not any(item.iter_markers("xdist_group"))
    )


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).resolve().parents[1]


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run the real entry point, in this process; ``columns`` is the width of the page."""

    def call(*arguments: object, columns: int | None = None) -> Done:
        monkeypatch.setattr(sys, "argv", ["meshcost", *map(str, arguments)])
        if columns is None:
            monkeypatch.delenv("COLUMNS", raising=False)
        else:
            monkeypatch.setenv("COLUMNS", str(columns))
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        shown = capsys.readouterr()
        return Done(int(left.value.code or 0), shown.out, shown.err)

    return call


@pytest.fixture(scope="session")
def equal_calls() -> Callable[..., None]:
    """Require that one side makes the calls of the other: the same ones, and in the same order."""

    def check(expected: Iterable[CallLike], seen: Iterable[CallLike], title: str, rank: int = 0) -> None:
        expected, seen = list(expected), list(seen)
        found = differences(expected, seen, rank=rank)
        assert not found, text_of(found, title)
        assert first_out_of_order(expected, seen) is None

    return check
