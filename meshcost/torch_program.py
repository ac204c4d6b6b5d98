"""The program of one rank under PyTorch: what fully_shard and DistributedDataParallel call around the units of a stage.

They call when a pass enters a unit or leaves it, so their calls are parts of the walk, named ``gather X``, ``regather X``,
``scatter X`` (a group of fully_shard), ``bucket X`` (gradients that are reduced together) and ``partial X`` (one that is
made whole before).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from meshcost.flat_sharding import machine_of
from meshcost.program import MICRO_BATCH, Part, Program, phase_of
from meshcost.schedule import Action
from meshcost.sharding import Call, Machine, Sharding
from meshcost.torch_schedule import Step, is_listed, runs, steps, summed

#: What stages tell their neighbours before the first micro-batch.
VOTE = "vote"


@dataclass(frozen=True, slots=True)
class Reduction:
    """Gradients that are reduced together, once backward has passed the unit at ``ready`` in its stage.

    ``part`` is what the walk calls it. ``late``: not before the whole backward has ended. ``every``: in each micro-batch,
    also where others wait for the last. ``since`` and ``until``: only in micro-batches from that to before that.
    ``upto``: before those events of the unit that have a later order.
    """

    part: str
    ready: int
    late: bool = False
    every: bool = False
    since: int = 0
    until: int | None = None
    upto: tuple[int, ...] | None = None

    def follows(self, part: Part) -> bool:
        """Whether it belongs to the reductions of the micro-batch of a part."""
        at = part.micro_batch or 0
        return self.since <= at and (self.until is None or at < self.until)


@dataclass(frozen=True)
class TorchProgram(Program):
    """A program with the groups of fully_shard, or with the reductions of each virtual stage in the order of their calls.

    ``reduces_every``: buckets are reduced after every micro-batch, not only the last; ``rebuilt_in``: where those of
    a stage are made anew in this step, the micro-batch in which that happens. ``updates`` are the calls in which
    each virtual stage's updated weights are handed out at the end of the step, in order: parts named ``update X``.
    ``votes``: it is the first step, in which stages agree on what they will send.
    """

    sharding: Sharding | None = None
    reductions: tuple[tuple[Reduction, ...], ...] = ()
    reduces_every: bool = False
    rebuilt_in: tuple[int, ...] = ()
    updates: tuple[tuple[str, ...], ...] = ()
    votes: bool = False

    def walk(self, rank: int) -> Iterator[Part]:
        """Yield everything one pipeline rank computes and what is called around it."""
        yield from self._vote(rank) if self.votes else ()
        if is_listed(self.schedule):
            parts = _Walk(self, rank).listed()
        else:
            parts = super().walk(rank) if self.sharding is None else _Walk(self, rank).in_order()
        yield from self._with_reductions(rank, parts) if self.reductions else parts

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
        down, up = (
            [Action("F", stage, 0) for stage in hosted],
            [Action("B", stage, 0) for stage in hosted[::-1]],
        )
        for action in (*down, *up):
            for part in (*self.message(rank, action, "others"), *self.message(rank, action, "send")):
                yield replace(part, unit=f"{VOTE} {part.phase}", phase="forward")

    def _with_reductions(self, rank: int, parts: Iterator[Part]) -> Iterator[Part]:
        """Follow each backward part by what is ready to be reduced then; a stage's first forward is its ``begin``."""
        ready: dict[str, list[Reduction]] = {}
        begins: dict[str, Part] = {}
        for stage in self.schedule.hosted(rank):
            labels = [label for _, label in self.labelled(stage)]
            if labels:
                at = self.rebuilt_in[stage] if self.rebuilt_in else 0
                begins[labels[0]] = Part(f"begin {stage}", "forward", at, f"stage {stage}")
            for call in self.reductions[stage]:
                ready.setdefault(MICRO_BATCH if call.late else labels[call.ready], []).append(call)
        for part in parts:
            begin = begins.get(part.label)
            if begin is not None and (part.phase, part.micro_batch) == ("forward", begin.micro_batch):
                yield begin
            ends = part.label == MICRO_BATCH and part.micro_batch == self.schedule.micro_batches - 1
            is_due = part.last or self.reduces_every or ends
            is_passed = part.phase == "backward" and part.unit != "boundary"
            calls = [x for x in ready.get(part.label, ()) if (is_due or x.every) and x.follows(part)]
            yield from _followed(part, calls if is_passed else [])


def _followed(part: Part, calls: Sequence[Reduction]) -> Iterator[Part]:
    """Follow a part by reductions, and interrupt it by those that come before its end."""
    early = [call for call in calls if call.upto is not None]
    edge = early[0].upto if early else None
    if early:
        yield replace(part, upto=edge)
        yield from _reduced(part, early)
    yield replace(part, above=edge) if early else part
    yield from _reduced(part, [call for call in calls if call.upto is None])


def _reduced(part: Part, calls: Iterable[Reduction]) -> Iterator[Part]:
    for call in calls:
        yield Part(call.part, "backward", part.micro_batch, call.part.partition(" ")[2])


class _Walk:
    """One walk through a program, with the groups of fully_shard where weights are sharded."""

    def __init__(self, program: TorchProgram, rank: int) -> None:
        self.program, self.rank, self.schedule = program, rank, program.schedule
        count, hosted = self.schedule.micro_batches, self.schedule.hosted(rank)
        self.units = {stage: list(program.labelled(stage)) for stage in hosted}
        self.machines: dict[int, Machine] = {}
        self.staged = False
        if (sharding := program.sharding) is not None:
            self.staged = sharding.staged
            self.machines = {s: machine_of(sharding, s, count) for s in hosted if sharding.stages[s]}
        self.open = [len(hosted)] * count

    def in_order(self) -> Iterator[Part]:
        """Yield the parts of a schedule that torch runs as it is written; stages are reduced at its end."""
        last = Action("B", 0, 0)
        for last in self.schedule.actions(self.rank):
            yield from self.program.message(self.rank, last, "others")
            yield from self._pass(last, last=last.micro_batch == self.schedule.micro_batches - 1)
            yield from self.program.message(self.rank, last, "send")
            if last.kind == "B" and not self.staged:
                yield Part("micro_batch", "backward", last.micro_batch, MICRO_BATCH)
        for machine in self.machines.values() if self.staged else ():
            yield from self._calls(machine.reduce_all(), last)

    def listed(self) -> Iterator[Part]:
        """Yield the parts of a schedule that torch runs from a list, which gathers and reduces whole stages."""
        ran = Action("F", 0, 0)
        syncs = summed(steps(self.schedule)[self.rank], is_first=self.program.votes)
        for step in steps(self.schedule)[self.rank]:
            action = Action(step.way, step.stage, step.micro_batch)
            machine = self.machines.get(step.stage)
            if step.do in ("send", "receive"):
                yield from self.program.message(self.rank, action, "send" if step.do == "send" else "others")
            elif runs(step):
                yield from self._pass(action, last=step in syncs)
            elif machine is not None:
                # Between two passes, the phase is still that of the one before.
                yield from self._calls(_of_stage(machine, step), ran._replace(micro_batch=step.micro_batch))
            if runs(step) or step.do == "W":
                ran = action
            if step.do in ("B", "W") and not self.program.sharding:
                self.open[step.micro_batch] -= 1
                if not self.open[step.micro_batch]:
                    yield Part("micro_batch", "backward", step.micro_batch, MICRO_BATCH)

    def _pass(self, action: Action, *, last: bool) -> Iterator[Part]:
        go = self._forward if action.kind == "F" else self._backward
        yield from go(action, last=last)

    def _forward(self, action: Action, *, last: bool) -> Iterator[Part]:
        machine = self.machines.get(action.stage)
        groups = machine.groups if machine else ()
        for place, (unit, label) in enumerate(self.units[action.stage]):
            part = Part(unit, "forward", action.micro_batch, label, not action.micro_batch, last)
            whole = [at for at, group in enumerate(groups) if group.inside is None]
            inside = [at for at, group in enumerate(groups) if group.inside and group.enter == place]
            if machine is None:
                yield part
                continue
            for at in whole:
                if groups[at].enter == place:
                    yield from self._calls(machine.enter_forward(at), action)
                    if groups[at].early:
                        machine.leave_forward(at)
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
                if groups[at].leave == place and not groups[at].early:
                    machine.leave_forward(at)

    def _backward(self, action: Action, *, last: bool) -> Iterator[Part]:
        machine = self.machines.get(action.stage)
        for place, (unit, label) in reversed(list(enumerate(self.units[action.stage]))):
            part = Part(unit, "backward", action.micro_batch, label, not action.micro_batch, last)
            yield from self._back_through(machine, place, part, action) if machine else (part,)
        if machine:
            yield from self._calls(machine.end_backward(), action)

    def _back_through(self, machine: Machine, place: int, part: Part, action: Action) -> Iterator[Part]:
        groups = machine.groups
        inside = [at for at, group in enumerate(groups) if group.inside and group.enter == place]
        around = [at for at, group in enumerate(groups) if not group.inside]
        for at in reversed(around):
            if groups[at].leave == place and not groups[at].early:
                yield from self._calls(machine.enter_backward(at), action)
        edge: tuple[int, ...] | None = None
        for order, meet, at in sorted(_moments(machine, inside), key=lambda moment: moment[0]):
            yield replace(part, above=edge, upto=order)
            yield from self._calls(meet(at), action)
            edge = order
        yield replace(part, above=edge)
        for at in reversed(around):
            if groups[at].early and groups[at].leave == place:
                yield from self._calls(machine.enter_backward(at), action)
            if groups[at].enter == place:
                yield from self._calls(machine.leave_backward(at), action)

    def _calls(self, calls: Iterable[Call], action: Action) -> Iterator[Part]:
        for call in calls:
            yield Part(
                f"{call.what} {call.group.name}", phase_of(action), action.micro_batch, call.group.label
            )


def _moments(
    machine: Machine, inside: Iterable[int]
) -> Iterator[tuple[tuple[int, ...], Callable[[int], Iterable[Call]], int]]:
    """When groups that are parts of a unit are met in its backward: computed again, entered and left."""
    for at in inside:
        group = machine.groups[at]
        low, high = group.inside_backward or ((), ())
        if group.again is not None:
            yield group.again, machine.enter_again, at
        yield low, machine.enter_backward, at
        yield high, machine.leave_backward, at


def _of_stage(machine: Machine, step: Step) -> Iterable[Call]:
    """Gather a whole stage, let go of it, or reduce its gradients."""
    if step.do == "gather":
        return machine.gather_all()
    if step.do == "reduce":
        return machine.reduce_all()
    if step.do == "let_go":
        machine.let_go()
    return ()
