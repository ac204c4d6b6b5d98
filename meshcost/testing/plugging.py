"""Strategies that no installed package brings, made known for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any, NamedTuple
from unittest.mock import patch

from meshcost.strategies import STRATEGIES, Strategy


class _Point(NamedTuple):
    """What an entry point is to a job: a name, and a class to load."""

    name: str
    strategy: type[Strategy]

    def load(self) -> type[Strategy]:
        """Return the class."""
        return self.strategy


@contextmanager
def registered(*strategies: type[Strategy]) -> Iterator[None]:
    """Make strategies legal under ``parallel`` by their ``axis``, as the entry point ``meshcost.strategies`` would.

    >>> from typing import ClassVar
    >>> from meshcost.job import Job
    >>> class Nothing(Strategy):
    ...     axis: ClassVar[str] = "nothing"
    ...     def events(self, view):
    ...         yield from ()
    >>> with registered(Nothing):
    ...     job = Job(model="gpt2", parallel={"nothing": {"size": 3}}, batch={"sequence": 8, "global_batch": 1})
    >>> job.world_size
    3
    """
    points = [_Point(x.axis, x) for x in strategies if x.axis not in STRATEGIES]

    def with_these(**which: Any) -> list[Any]:
        return [*entry_points(**which), *points]

    with patch("meshcost.layout.entry_points", with_these):
        yield
