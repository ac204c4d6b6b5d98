"""When FullyShardedDataParallel gathers flat parameters and reduces their gradients: its state, played through a stage.

It differs from fully_shard in when it prefetches, in what it keeps without gradient synchronisation, and in that a flat
parameter whose gather was prefetched forward is part of the graph of the unit that asked for it.

Source   torch.distributed.fsdp: _runtime_utils, _flat_param and _exec_order_utils, torch 2.13
"""

from collections.abc import Iterator
from dataclasses import dataclass

from meshcost.sharding import Call, Flat, Machine, Sharding


def machine_of(sharding: Sharding, stage: int, passes: int) -> Machine:
    """Begin a stage with all weights sharded; ``passes`` is how many micro-batches it sees."""
    kind = Machine if sharding.flat is None else FlatMachine
    return kind(sharding, stage, passes)


@dataclass
class _Flags:
    is_whole: bool = False
    prefetched: bool = False
    needs_forward: bool = True
    needs_backward: bool = False
    is_done: bool = False
    #: Group that asked for the gather before the group's own forward.
    asked_by: int | None = None


class FlatMachine(Machine):
    """The flat parameters of one virtual stage while a step goes on."""

    def __init__(self, sharding: Sharding, stage: int, passes: int) -> None:
        """Begin with all weights sharded."""
        super().__init__(sharding, stage, passes)
        assert sharding.flat is not None
        self.flat: Flat = sharding.flat
        self.flags = [_Flags() for _ in self.groups]
        self.forward_order = sorted(range(len(self.groups)), key=lambda at: (self.groups[at].enter, at))

    # -- what a pass tells -------------------------------------------------------------------------------------------

    def enter_forward(self, at: int) -> Iterator[Call]:
        """Yield the gather before a group is used, and that of the group that is used next."""
        flags = self.flags[at]
        if not flags.prefetched:
            yield from self._unshard(at)
        flags.needs_forward = False
        if self.flat.forward_prefetch and not (self.flat.first and not self.backwards):
            place = self.forward_order.index(at)
            for target in self.forward_order[place + 1 : place + 2]:
                if self.flags[target].needs_forward and not self.flags[target].prefetched:
                    yield from self._unshard(target)
                    self.flags[target].prefetched, self.flags[target].asked_by = True, at

    def leave_forward(self, at: int) -> None:
        """Let go of weights after forward, where the strategy says so and the group is not the root."""
        group, flags = self.groups[at], self.flags[at]
        flags.is_whole &= not group.reshards
        flags.prefetched, flags.needs_backward = False, group.gives_gradient
        self.order.append(at)

    def enter_backward(self, at: int) -> Iterator[Call]:
        """Yield the gather before a group's backward, and that of the group whose backward is expected next."""
        flags = self.flags[at]
        if not self.groups[at].gives_gradient:
            return
        if flags.needs_backward and not flags.prefetched:
            yield from self._unshard(at)
        flags.needs_backward = False
        if self.flat.backward_prefetch == "BACKWARD_PRE":
            yield from self._prefetch_backward(at)

    def leave_backward(self, at: int) -> Iterator[Call]:
        """Yield what the end of a group's backward calls: also for a group that this one had gathered in advance."""
        for other, flags in enumerate(self.flags):
            if flags.asked_by == at and self.groups[other].scatters:
                yield from self._finish(other)
        group = self.groups[at]
        notices = self.flags[at].asked_by is None if group.scatters else group.takes_gradient
        if notices and group.gives_gradient:
            yield from self._finish(at)

    def end_backward(self) -> Iterator[Call]:
        """Let go of what is left when the whole backward has ended; nothing is called then."""
        for flags in self.flags:
            if not flags.is_done and self._frees():
                flags.is_whole = False
            flags.prefetched = flags.needs_backward = flags.is_done = False
            flags.needs_forward, flags.asked_by = True, None
        self.order.clear()
        self.backwards += 1
        yield from ()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _unshard(self, at: int) -> Iterator[Call]:
        if self.flat.shards and not self.flags[at].is_whole:
            self.flags[at].is_whole = True
            yield Call("gather", self.groups[at])

    def _frees(self) -> bool:
        return self._is_on(self.rules.gradient_sync) or self.flat.reshards

    def _prefetch_backward(self, at: int) -> Iterator[Call]:
        place = self.order.index(at)
        for target in self.order[max(0, place - 1) : place]:
            if self.flags[target].needs_backward and not self.flags[target].prefetched:
                yield from self._unshard(target)
                self.flags[target].prefetched = True

    def _finish(self, at: int) -> Iterator[Call]:
        flags = self.flags[at]
        flags.is_done, flags.prefetched = True, False
        if self._frees():
            flags.is_whole = False
        if self.flat.backward_prefetch == "BACKWARD_POST":
            yield from self._prefetch_backward(at)
        if self._is_on(self.rules.gradient_sync) and self.groups[at].scatters:
            yield Call("scatter", self.groups[at])
