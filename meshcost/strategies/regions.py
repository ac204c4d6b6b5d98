"""Regions of a block under a layout: which stretches tensor parallelism enters and leaves, and in which order.

Orders: going forward, region i runs at (0, i, enter) to (0, i, leave); a full recomputation repeats them in backward
under the same order, before the backward itself at (1, -i, ...).
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from meshcost.event import Phase
from meshcost.models import Kind, Region
from meshcost.strategies.setting import Setting

ENTER, INSIDE, LEAVE = 1, 5, 9


class Pass(NamedTuple):
    """One time that a region is computed: forward, recomputed, or backward."""

    phase: Phase
    going: Literal["forward", "backward"]
    note: str

    @property
    def gradient(self) -> str:
        """What goes before the name of an activation in this pass."""
        return "gradient of the " if self.going == "backward" else ""

    @property
    def first(self) -> int:
        """Moment at which this pass enters a region."""
        return ENTER if self.going == "forward" else LEAVE

    @property
    def last(self) -> int:
        """Moment at which this pass leaves a region."""
        return LEAVE if self.going == "forward" else ENTER

    def order(self, region: int, moment: int) -> tuple[int, ...]:
        """Place of a moment of a region within this pass."""
        return (0, region, moment) if self.going == "forward" else (1, -region, 10 - moment)


FORWARD = Pass("forward", "forward", "")
BACKWARD = Pass("backward", "backward", "")
RECOMPUTE = Pass("backward", "forward", " (recomputed)")


def passes(setting: Setting) -> tuple[Pass, ...]:
    """Times that a block is computed in a step.

    Selective recomputation repeats no collective: the part of attention that it computes again has none.
    """
    return (FORWARD, RECOMPUTE, BACKWARD) if setting.recompute == "full" else (FORWARD, BACKWARD)


def tensor_regions(kind: Kind, setting: Setting) -> Iterator[tuple[int, Region]]:
    """Yield the regions of a block whose collectives tensor parallelism makes, numbered in order of computation.

    Routed and shared experts read one input and add up to one output, so they share one region, unless tokens leave the
    tensor ranks: with sequence parallelism an expert layer of its own group takes them as they are, one home rank each.
    Under PyTorch one module holds both and shares the region with sequence parallelism, wherever routed experts live;
    without it each sums its own output.
    """
    stay = not setting.experts_apart or (
        not setting.sequence_parallel and setting.expert_tensor == setting.size("tensor")
    )
    skipped = "shared experts" if stay else "experts"
    if setting.framework == "torch" and setting.sequence_parallel:
        skipped = "shared experts"
    elif setting.framework == "torch" and stay:
        skipped = ""
    yield from ((number, region) for number, region in enumerate(kind.regions) if region.name != skipped)


def expert_region(kind: Kind) -> int:
    """Place of the routed experts among the regions of a block."""
    return next(i for i, region in enumerate(kind.regions) if region.name == "experts")


def attention_region(kind: Kind) -> int | None:
    """Place of attention among the regions of a block."""
    return next((i for i, region in enumerate(kind.regions) if region.name.startswith("attention")), None)
