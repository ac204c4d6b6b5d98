"""The program of one rank under PyTorch: what fully_shard and DistributedDataParallel call around the units of a stage.

They call when a pass enters a unit or leaves it, so their calls are parts of the walk, named ``gather X``, ``regather X``,
``scatter X`` (a group of fully_shard) and ``bucket X`` (gradients that are reduced together).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from meshcost.program import MICRO_BATCH, Part, Program
from meshcost.schedule import Action
from meshcost.sharding import Call, Machine, Sharding

#: Schedules that torch runs from a list of actions, in which whole stages are gathered before they are computed.
EXPLICIT = frozenset({"interleaved_1f1b", "interleaved_zb", "zbv", "dualpipev"})

#: Stages that such a list keeps gathered at a time.
ACTIVE_STAGES = 3

#: What stages tell their neighbours before the first micro-batch.
VOTE = "vote"

Phase = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are reduced together, once backward has passed the unit at ``ready`` in its stage.

    ``late``: not before the whole backward has ended.
    """

    name: str
    ready: int
    late: bool = False


@dataclass(frozen=True)
class TorchProgram(Program):
    """A program with the groups of fully_shard, or with the buckets of each virtual stage in the order of their calls.

    ``buckets_every``: buckets are reduced after every micro-batch, not only the last. ``updates`` are the calls in which
    each virtual stage's updated weights are handed out at the end of the step, in order: parts named ``update X``.
    ``votes``: it is the first step, in which stages agree on what they will send.
    """

    sharding: Sharding | None = None
    buckets: tuple[tuple[Bucket, ...], ...] = ()
    buckets_every: bool = False
    updates: tuple[tuple[str, ...], ...] = ()
    votes: bool = False

    def walk(self, rank: int) -> Iterator[Part]:
        """Yield everything one pipeline rank computes and what is called around it."""
        yield from self._vote(rank) if self.votes else ()
        if self.sharding is not None:
            yield from _Sharded(self, self.sharding, rank).walk()
        elif self.buckets:
            yield from self._with_buckets(rank)
        else:
            yield from super().walk(rank)

    def finish(self, rank: int) -> Iterator[Part]:
        """Yield what comes after the last micro-batch; at its end, the updates."""
        *parts, report = super().finish(rank)
        yield from parts
        for stage in self.schedule.hosted(rank) if self.updates else ():
            yield from (Part(f"update {name}", "optimizer", None, name) for name in self.updates[stage])
        yield report

    def _vote(self, rank: int) -> Iterator[Part]:
        """Go through the stages of a rank, down and up again: hear one neighbour, tell the other."""
        hosted = self.schedule.hosted(rank)
        for way, stages, step in (("forward", hosted, 1), ("backward", hosted[::-1], -1)):
            for stage in stages:
                action = Action("F" if step == 1 else "B", stage, 0)
                phase: Phase = "forward" if way == "forward" else "backward"
                for neighbour, ops in ((stage - step, "others"), (stage + step, "send")):
                    told = self.boundary(
                        rank, action, phase, neighbour, "send" if ops == "send" else "others"
                    )
                    yield from (replace(part, unit=f"{VOTE} {way}", phase="forward") for part in told)

    def _with_buckets(self, rank: int) -> Iterator[Part]:
        """Follow each backward part by the buckets that are ready then; a stage's first forward is its ``begin``."""
        ready: dict[str, list[Part]] = {}
        begins: dict[str, Part] = {}
        for stage in self.schedule.hosted(rank):
            labels = [label for _, label in self.labelled(stage)]
            if labels:
                begins[labels[0]] = Part(f"begin {stage}", "forward", 0, f"stage {stage}")
            for bucket in self.buckets[stage]:
                part = Part(f"bucket {bucket.name}", "backward", 0, bucket.name)
                ready.setdefault(MICRO_BATCH if bucket.late else labels[bucket.ready], []).append(part)
        for part in super().walk(rank):
            if part.phase == "forward" and part.first and part.label in begins:
                yield begins[part.label]
            yield part
            is_due = part.last or self.buckets_every or part.micro_batch == self.schedule.micro_batches - 1
            if part.phase == "backward" and is_due and part.unit != "boundary":
                for call in ready.get(part.label, ()):
                    yield replace(call, micro_batch=part.micro_batch)


class _Sharded:
    """One walk through a program whose weights are sharded."""

    def __init__(self, program: TorchProgram, sharding: Sharding, rank: int) -> None:
        self.program, self.rank = program, rank
        self.schedule = program.schedule
        hosted = self.schedule.hosted(rank)
        self.machines = {
            stage: Machine(sharding, stage, self.schedule.micro_batches)
            for stage in hosted
            if sharding.stages[stage]
        }
        self.staged, self.explicit = sharding.staged, sharding.explicit

    def walk(self) -> Iterator[Part]:
        actions = list(self.schedule.actions(self.rank))
        left = dict.fromkeys(self.machines, self.schedule.micro_batches)
        active: list[int] = []
        last = Action("B", 0, 0)
        for number, action in enumerate(actions):
            if self.explicit:
                yield from self._activate(active, actions[number:], action)
            yield from self._action(action)
            last = action
            if action.kind == "B" and action.stage in left:
                left[action.stage] -= 1
                if not left[action.stage] and self.explicit:
                    yield from self._calls(self.machines[action.stage].reduce_all(), action)
        if self.staged and not self.explicit:
            for machine in self.machines.values():
                yield from self._calls(machine.reduce_all(), last)

    def _activate(self, active: list[int], coming: Iterable[Action], action: Action) -> Iterator[Part]:
        """Gather the stages that come next, and let go of the others."""
        wanted = list(dict.fromkeys(x.stage for x in coming))[:ACTIVE_STAGES]
        for stage in [x for x in active if x not in wanted]:
            active.remove(stage)
            if stage in self.machines:
                self.machines[stage].let_go()
        for stage in [x for x in wanted if x not in active]:
            active.append(stage)
            if stage in self.machines:
                yield from self._calls(self.machines[stage].gather_all(), action)

    def _action(self, action: Action) -> Iterator[Part]:
        phase: Phase = "forward" if action.kind == "F" else "backward"
        step = 1 if action.kind == "F" else -1
        yield from self.program.boundary(self.rank, action, phase, action.stage - step, "others")
        yield from self._forward(action) if action.kind == "F" else self._backward(action)
        yield from self.program.boundary(self.rank, action, phase, action.stage + step, "send")
        if action.kind == "B" and not self.staged:
            yield Part("micro_batch", "backward", action.micro_batch, "micro-batch")

    def _forward(self, action: Action) -> Iterator[Part]:
        machine = self.machines.get(action.stage)
        groups = machine.groups if machine else ()
        for place, (unit, label) in enumerate(self.program.labelled(action.stage)):
            part = Part(unit, "forward", action.micro_batch, label)
            whole = [at for at, group in enumerate(groups) if group.inside is None]
            inside = [at for at, group in enumerate(groups) if group.inside and group.enter == place]
            if machine is None:
                yield part
                continue
            for at in whole:
                if groups[at].enter == place:
                    yield from self._calls(machine.enter_forward(at), action)
            edge: tuple[int, ...] | None = None
            for at in inside:
                low, high = groups[at].inside or ((), ())
                yield replace(part, above=edge, upto=low)
                yield from self._calls(machine.enter_forward(at), action)
                yield replace(part, above=low, upto=high)
                machine.leave_forward(at)
                edge = high
            yield replace(part, above=edge)
            for at in reversed(whole):
                if groups[at].leave == place:
                    machine.leave_forward(at)

    def _backward(self, action: Action) -> Iterator[Part]:
        machine = self.machines.get(action.stage)
        units = list(enumerate(self.program.labelled(action.stage)))
        for place, (unit, label) in reversed(units):
            part = Part(unit, "backward", action.micro_batch, label)
            yield from self._back_through(machine, place, part, action) if machine else (part,)
        if machine:
            yield from self._calls(machine.end_backward(), action)

    def _back_through(self, machine: Machine, place: int, part: Part, action: Action) -> Iterator[Part]:
        groups = machine.groups
        inside = [at for at, group in enumerate(groups) if group.inside and group.enter == place]
        around = [at for at, group in enumerate(groups) if not group.inside]
        for at in reversed(around):
            if groups[at].leave == place:
                yield from self._calls(machine.enter_backward(at), action)
        edge: tuple[int, ...] | None = None
        for at in reversed(inside):
            low, high = groups[at].inside_backward or ((), ())
            yield replace(part, above=edge, upto=low)
            yield from self._calls(machine.enter_backward(at), action)
            yield replace(part, above=low, upto=high)
            yield from self._calls(machine.leave_backward(at), action)
            edge = high
        yield replace(part, above=edge)
        for at in reversed(around):
            if groups[at].enter == place:
                yield from self._calls(machine.leave_backward(at), action)

    def _calls(self, calls: Iterable[Call], action: Action) -> Iterator[Part]:
        phase: Phase = "forward" if action.kind == "F" else "backward"
        for call in calls:
            yield Part(f"{call.what} {call.group.name}", phase, action.micro_batch, call.group.label)
