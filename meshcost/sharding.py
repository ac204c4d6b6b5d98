"""When fully_shard gathers weights and scatters gradients: its state, played through the passes of one stage.

A **ShardGroup** is what one call of fully_shard communicates together. A **Sharding** holds the groups of each virtual
stage and the switches of their modules. A **Machine** is told when passes enter and leave a group, and says what is
called then; it does what torch 2.13 does, prefetching included.

Source   torch.distributed.fsdp.fully_shard: FSDPState and FSDPParamGroup
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

When = Literal["every", "last"]

#: Place of a unit in its stage, and the orders of its events between which a group inside it is used.
Inside = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class ShardGroup:
    """One group: its kind, the units of its stage from ``enter`` to ``leave`` in which it is used, and its rules.

    ``inside`` names the events of a unit, by their orders forward, that happen within a group that is only a part of
    the unit, and ``inside_backward`` those backward; after ``again`` it is entered to be computed again before that.
    ``reshards`` says whether its weights are let go after forward; ``part`` how many ranks keep them among them then
    (0: all). ``scatters``: it has gradients. ``takes_gradient``: what enters it needs a gradient, so that torch notices
    the end of its backward; ``gives_gradient``: what leaves it does. ``early``: it is used up before the rest of its
    unit, as a norm before the head. ``forward_prefetch`` and ``backward_prefetch`` are places of groups that it was told
    to gather in advance.
    """

    name: str
    label: str
    enter: int
    leave: int
    inside: Inside | None = None
    inside_backward: Inside | None = None
    again: tuple[int, ...] | None = None
    reshards: bool = True
    part: int = 0
    scatters: bool = True
    takes_gradient: bool = True
    gives_gradient: bool = True
    early: bool = False
    forward_prefetch: tuple[int, ...] = ()
    backward_prefetch: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Flat:
    """What FullyShardedDataParallel was told. ``shards``: not NO_SHARD. ``reshards``: FULL_SHARD, plain or hybrid.

    ``first``: it is the first step, in which the order of forward is known only after the first micro-batch.
    """

    shards: bool
    reshards: bool
    backward_prefetch: Literal["BACKWARD_PRE", "BACKWARD_POST"] | None
    forward_prefetch: bool
    first: bool


@dataclass(frozen=True, slots=True)
class Sharding:
    """The groups of every virtual stage, outermost first, as torch lists them; and what modules were told.

    ``staged``: a pipeline schedule switches everything off and reduces once at the end. ``flat``: the groups are those
    of FullyShardedDataParallel.
    """

    stages: tuple[tuple[ShardGroup, ...], ...]
    gradient_sync: When = "every"
    reshard_after_backward: When = "every"
    last_backward: When = "every"
    staged: bool = False
    flat: Flat | None = None


class Call(NamedTuple):
    """What a group calls: ``gather``, ``regather`` (among the few ranks that kept its weights) or ``scatter``."""

    what: Literal["gather", "regather", "scatter"]
    group: ShardGroup


@dataclass
class _State:
    weights: Literal["sharded", "partly", "whole"] = "sharded"
    pending: bool = False
    is_done: bool = False
    uses: list[int] = field(default_factory=list)


class Machine:
    """The groups of one virtual stage while a step goes on."""

    def __init__(self, sharding: Sharding, stage: int, passes: int) -> None:
        """Begin with all weights sharded. ``passes`` is how many micro-batches the stage sees."""
        self.rules, self.passes = sharding, passes
        self.groups = sharding.stages[stage]
        self.states = [_State() for _ in self.groups]
        self.order: list[int] = []
        self.backwards = 0

    # -- what a pass tells -------------------------------------------------------------------------------------------

    def enter_forward(self, at: int) -> Iterator[Call]:
        """Yield the gather before a group is used."""
        yield from self._gather(at)
        self._arrive(at)
        for other in self.groups[at].forward_prefetch:
            yield from self._gather(other)

    def leave_forward(self, at: int) -> None:
        """Let go of weights after forward, where the group does."""
        group, state = self.groups[at], self.states[at]
        if group.reshards:
            state.weights = "partly" if group.part else "sharded"
        state.uses.append(len(self.order))
        self.order.append(at)

    def enter_again(self, at: int) -> Iterator[Call]:
        """Yield the gather before a group's forward is computed again in the backward of the block around it."""
        if self.groups[at].gives_gradient:
            yield from self._gather(at)
            self._arrive(at)

    def enter_backward(self, at: int) -> Iterator[Call]:
        """Yield the gather before a group's backward, and that of the group whose backward is expected next."""
        if not self.groups[at].gives_gradient:
            return
        yield from self._gather(at)
        self._arrive(at)
        state = self.states[at]
        state.is_done = False
        if told := self.groups[at].backward_prefetch:
            for other in told:
                yield from self._gather(other)
        elif state.uses and (use := state.uses.pop()) > 0:
            yield from self._gather(self.order[use - 1])

    def leave_backward(self, at: int) -> Iterator[Call]:
        """Yield what the end of a group's backward calls, where torch notices it."""
        if self.groups[at].takes_gradient and self.groups[at].gives_gradient:
            yield from self._finish(at)

    def end_backward(self) -> Iterator[Call]:
        """Yield what is left to call when the whole backward has ended."""
        for at in range(len(self.groups)):
            if not self.states[at].is_done:
                yield from self._finish(at)
        ends = self._is_on(self.rules.last_backward)
        for state in self.states:
            state.is_done = False
            if ends:
                state.pending = False
                state.uses.clear()
        if ends:
            self.order.clear()
        self.backwards += 1

    # -- what a pipeline schedule tells ------------------------------------------------------------------------------

    def gather_all(self) -> Iterator[Call]:
        """Yield the gathers of all groups, as a schedule asks for them before it computes a stage."""
        for at in range(len(self.groups)):
            yield from self._gather(at)
            self._arrive(at)

    def let_go(self) -> None:
        """Let go of all weights."""
        for state in self.states:
            state.weights = "sharded"

    def reduce_all(self) -> Iterator[Call]:
        """Yield the reductions of all groups, outermost first, at the end of the step."""
        for at, group in enumerate(self.groups):
            self.states[at].weights = "sharded"
            if group.scatters:
                yield Call("scatter", group)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _is_on(self, when: When) -> bool:
        """Whether a switch of the modules is on in this backward; a pipeline schedule has switched all off."""
        return not self.rules.staged and (when == "every" or self.backwards == self.passes - 1)

    def _gather(self, at: int) -> Iterator[Call]:
        state = self.states[at]
        if state.pending or state.weights == "whole":
            return
        state.pending = True
        yield Call("regather" if state.weights == "partly" else "gather", self.groups[at])

    def _arrive(self, at: int) -> None:
        self.states[at].pending, self.states[at].weights = False, "whole"

    def _finish(self, at: int) -> Iterator[Call]:
        group, state = self.groups[at], self.states[at]
        state.is_done = True
        if self._is_on(self.rules.reshard_after_backward):
            state.weights = "sharded"
        if self._is_on(self.rules.gradient_sync) and group.scatters:
            yield Call("scatter", group)
