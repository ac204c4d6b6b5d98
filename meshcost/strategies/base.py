"""What a strategy is: options a person may write, and whether they are legal here.

A package of your own can bring one: subclass Strategy, give it an ``axis`` name and ``events``, and list the class
under the entry point ``meshcost.strategies`` with the axis as its name. It is then legal under ``parallel`` in every
job file.
"""

from collections.abc import Iterator
from typing import ClassVar

from meshcost.event import Event
from meshcost.strategies.setting import Options, Setting, Size
from meshcost.strategies.view import View


class Strategy(Options):
    """One axis of a layout.

    ``size`` ranks along the axis. ``splits_batch`` says whether they divide the global batch among themselves.
    """

    axis: ClassVar[str]
    splits_batch: ClassVar[bool] = False

    size: Size = 1

    def problems(self, setting: Setting) -> Iterator[str]:
        """Yield one sentence for each reason why this cannot be done: path, value, why, legal choices."""
        yield from ()

    def events(self, view: View) -> Iterator[Event]:
        """Yield what this strategy calls in one step; strategies of this package have a profile instead."""
        raise NotImplementedError(f"{type(self).__name__} has to write its events.")
