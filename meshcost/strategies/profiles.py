"""Framework profiles: who writes the events of a strategy. ``textbook`` is what the papers say.

A strategy that a plug-in brings writes its own, whatever the framework.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from meshcost.event import Event
from meshcost.strategies.base import Strategy
from meshcost.strategies.context import textbook as context
from meshcost.strategies.context.options import ContextParallel
from meshcost.strategies.data import textbook as data
from meshcost.strategies.data.options import DataParallel
from meshcost.strategies.expert import textbook as expert
from meshcost.strategies.expert.options import ExpertParallel
from meshcost.strategies.pipeline import textbook as pipeline
from meshcost.strategies.pipeline.options import PipelineParallel
from meshcost.strategies.scalars import textbook as scalars
from meshcost.strategies.scalars.options import Scalars
from meshcost.strategies.tensor import textbook as tensor
from meshcost.strategies.tensor.options import TensorParallel
from meshcost.strategies.view import View

Writer = Callable[[Any, View], Iterator[Event]]

_TEXTBOOK: Mapping[type, Writer] = {
    TensorParallel: tensor.events,
    ContextParallel: context.events,
    DataParallel: data.events,
    PipelineParallel: pipeline.events,
    ExpertParallel: expert.events,
    Scalars: scalars.events,
}


class _Profiles(Mapping[str, Mapping[type, Writer]]):
    """Writers by framework. Those of a framework are imported when it is asked for: a textbook bill needs no other."""

    def __getitem__(self, framework: str) -> Mapping[type, Writer]:
        if framework == "textbook":
            return _TEXTBOOK
        if framework == "torch":
            from meshcost.strategies.torch_profile import WRITERS

            return {**_TEXTBOOK, **WRITERS}
        raise KeyError(framework)

    def __iter__(self) -> Iterator[str]:
        return iter(("textbook", "torch"))

    def __len__(self) -> int:
        return 2


PROFILES: Mapping[str, Mapping[type, Writer]] = _Profiles()


def events(strategy: Strategy | Scalars, view: View, framework: str = "textbook") -> Iterator[Event]:
    """Yield what one strategy calls in one step, under a framework profile."""
    writer = PROFILES[framework].get(type(strategy))
    if writer is not None:
        yield from writer(strategy, view)
    elif isinstance(strategy, Strategy):
        yield from strategy.events(view)
