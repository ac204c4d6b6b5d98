"""What each rank of a pipeline does under PyTorch, step by step, where a schedule is run from a list of actions.

A **pass** computes one virtual stage over one micro-batch: ``F`` forward, ``B`` backward, or backward in two halves,
``I`` for the gradients of what came in and ``W`` for those of the weights. To the passes of a rank torch adds when
stages are gathered, let go of and reduced, and messages: a send follows its pass at once, and the receive is put down
on the other rank at the same moment of a simulation in which every rank takes one step a turn. So receives are posted
as early as the sender allows, long before the pass that needs them.

Source   torch.distributed.pipelining.schedules (2.13): ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble,
         ScheduleZBVZeroBubble, ScheduleDualPipeV; how passes become actions: _PipelineScheduleRuntime
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, NamedTuple, cast

from meshcost.errors import LedgerError
from meshcost.schedule import Schedule

#: Stages that a rank keeps gathered at a time.
ACTIVE_STAGES = 3

#: Forward passes beyond which an order is not computed: all of it is in memory.
MOST_PASSES = 2**20

#: Schedules that torch runs as they are written.
WRITTEN = ("gpipe", "1f1b")

#: Schedules that torch runs from a list of actions.
LISTED = ("interleaved_1f1b", "interleaved_zb", "zbv", "dualpipev")

#: Schedules whose backward passes are all in two halves.
HALVED = ("interleaved_zb", "zbv")

_IN_ROUNDS = ("interleaved_1f1b", "interleaved_zb")

Way = Literal["F", "B"]
Pass = Literal["F", "B", "I", "W"]


class Step(NamedTuple):
    """One step: a pass (``F``, ``B``, ``I``, ``W``), something about a whole stage, or a message of a stage.

    ``way`` is the direction of the pass or message; a step about a whole stage has that of the pass beside it.
    """

    do: Literal["F", "B", "I", "W", "gather", "let_go", "reduce", "send", "receive"]
    stage: int
    micro_batch: int
    way: Way

    def __str__(self) -> str:
        """Write a step as ``3I0``, or as ``3send0``.

        >>> str(Step("I", 3, 0, "B"))
        '3I0'
        """
        return f"{self.stage}{self.do}{self.micro_batch}"


#: Steps that a rank takes in one turn: one, or a forward and a backward pass that torch runs as a pair.
_Turn = tuple[Step, ...]


def refused(schedule: Schedule) -> str | None:
    """Say why torch does not take this number of micro-batches, and which it takes; None if it does.

    >>> refused(Schedule("interleaved_1f1b", 4, 2, 9))
    '9 micro-batches do not divide into 2 equal rounds; choose a multiple of 4'
    >>> refused(Schedule("interleaved_1f1b", 4, 2, 10))
    """
    count, ranks = schedule.micro_batches, schedule.ranks
    if schedule.name in _IN_ROUNDS:
        why = f"{count} micro-batches do not divide into {_rounds(schedule)} equal rounds"
        return f"{why}; choose a multiple of {ranks}" if count % _rounds(schedule) else None
    stages = schedule.virtual_stages if schedule.name in ("1f1b", "dualpipev") else 1
    few = f"{count} micro-batches are fewer than the {stages} stages; choose at least {stages}"
    return few if count < stages else None


def is_listed(schedule: Schedule) -> bool:
    """Whether torch runs this schedule from a list of actions."""
    return schedule.ranks > 1 and schedule.name in LISTED


def has_long_rounds(schedule: Schedule) -> bool:
    """Whether rounds are not of one micro-batch for each rank, so that more micro-batches are dealt out otherwise."""
    return schedule.name in _IN_ROUNDS and schedule.micro_batches % schedule.ranks != 0


@lru_cache(maxsize=6)
def steps(schedule: Schedule) -> tuple[tuple[Step, ...], ...]:
    """List the steps of every rank, in order.

    Raises LedgerError if torch refuses this number of micro-batches, or if they are too many.

    >>> " ".join(map(str, steps(Schedule("interleaved_1f1b", 2, 1, 1))[0]))
    '0gather0 0F0 0send0 0receive0 0B0 0reduce0 0let_go0'
    """
    if (why := refused(schedule)) is not None:
        raise LedgerError(f"{schedule.name} under PyTorch: {why}.")
    if schedule.micro_batches * schedule.virtual_stages > MOST_PASSES:
        raise LedgerError(
            f"{schedule.name} under PyTorch: the order of more than {MOST_PASSES} passes is not computed."
        )
    return _Simulation(schedule).run(_with_stages(schedule, rank) for rank in range(schedule.ranks))


def runs(step: Step) -> bool:
    """Whether a pass computes anything that can call: torch leaves all of the first stage's backward to its weights."""
    return step.do == ("W" if step.stage == 0 else "I") or step.do in ("F", "B")


def summed(mine: Iterable[Step], *, is_first: bool) -> set[Step]:
    """Find the backward pass of each stage in which DistributedDataParallel reduces; ``is_first``: in the first step.

    It is told to before the last pass, but takes no notice of the second half of a backward: then it reduces in the
    first undivided one of the next step, if there is any.
    """
    ends: dict[int, Step] = {}
    whole: dict[int, Step] = {}
    for step in mine:
        if step.do in ("B", "W"):
            ends[step.stage] = step
        if step.do == "B":
            whole.setdefault(step.stage, step)
    late = {} if is_first else whole
    found = (step if runs(step) else late.get(stage) for stage, step in ends.items())
    return {step for step in found if step is not None}


def first_summed(schedule: Schedule, stage: int) -> tuple[int, int | None] | None:
    """First step in which DistributedDataParallel reduces the gradients of a stage; None if it never does.

    With it comes the micro-batch that the stage computes forward next in the same step; None if there is none.
    """
    if not is_listed(schedule):
        return 0, None
    mine = steps(schedule)[schedule.host(stage)]
    for number in (0, 1):
        at = next((step for step in summed(mine, is_first=number == 0) if step.stage == stage), None)
        if at is not None:
            rest = mine[mine.index(at) :]
            ahead = (x.micro_batch for x in rest if (x.do, x.stage) == ("F", stage))
            return number, next(ahead, None)
    return None


# -- the passes of each schedule -------------------------------------------------------------------------------------


def _interleaved(schedule: Schedule, rank: int) -> Iterator[_Turn]:
    behind = schedule.ranks - 1 - rank
    forward, backward = _in_rounds(schedule, rank, "F"), _in_rounds(schedule, rank, "B")
    for _ in range(_warm_up(schedule, 2 * behind)):
        yield (next(forward),)
    for step in forward:
        yield (step,)
        yield (next(backward),)
    yield from ((step,) for step in backward)


def _interleaved_zero_bubble(schedule: Schedule, rank: int) -> Iterator[_Turn]:
    """As interleaved, with half the forwards ahead; weights follow ``rank`` backward passes later."""
    forward = _in_rounds(schedule, rank, "F")
    for _ in range(_warm_up(schedule, schedule.ranks - 1 - rank)):
        yield (next(forward),)
    weights = _in_rounds(schedule, rank, "W")
    for number, step in enumerate(_in_rounds(schedule, rank, "I")):
        if (ahead := next(forward, None)) is not None:
            yield (ahead,)
        yield (step,)
        if number >= rank:
            yield (next(weights),)
    yield from ((step,) for step in weights)


def _warm_up(schedule: Schedule, behind: int) -> int:
    ahead = (schedule.chunks - 1) * (schedule.micro_batches // _rounds(schedule)) + behind
    return min(ahead, schedule.micro_batches * schedule.chunks)


def _rounds(schedule: Schedule) -> int:
    return max(1, schedule.micro_batches // schedule.ranks)


def _in_rounds(schedule: Schedule, rank: int, do: Pass) -> Iterator[Step]:
    """Micro-batches in equal rounds; within a round, one chunk after the other, backward from the last."""
    hosted = schedule.hosted(rank) if do == "F" else schedule.hosted(rank)[::-1]
    size, way = schedule.micro_batches // _rounds(schedule), _way(do)
    for start in range(0, schedule.micro_batches, size):
        for stage in hosted:
            for number in range(start, start + size):
                yield Step(do, stage, number, way)


def _zbv(schedule: Schedule, rank: int) -> Iterator[_Turn]:
    """Written for as many micro-batches as fill the pipeline; those that there are not, are left out."""
    ranks, behind = schedule.ranks, schedule.ranks - rank
    count = max(2 * ranks - 1, schedule.micro_batches)
    write = _Writer(schedule, rank)
    for times, pattern in (
        (2 * behind - 1, "F0"),
        (rank, "F1 F0"),
        (behind, "F1 I1 W1"),
        (count - 2 * ranks + rank + 1, "F0 I0 W0 F1 I1 W1"),
        (behind - 1, "I0 W0 F1 I1 W1"),
        (rank, "I0 I1"),
        (behind, "I0 W0"),
        (rank, "W1"),
        (rank, "W0"),
    ):
        for turn in write.times(times, pattern):
            if turn[0].micro_batch < schedule.micro_batches:
                yield turn


def _dualpipev(schedule: Schedule, rank: int) -> Iterator[_Turn]:
    """Forward of one chunk and backward of the other in pairs; ``W`` is the oldest half that is still to be done."""
    ranks, behind = schedule.ranks, schedule.ranks - rank - 1
    write = _Writer(schedule, rank)
    yield from write.times(2 * behind, "F0")
    yield from write.times(rank + 1, "F0 F1")
    yield from write.times(behind, "I1 W F1")
    yield from write.times(1, "F0+B1 F1+B0" if behind else "F0 B1 F1+B0")
    yield from write.times(schedule.micro_batches - 2 * ranks + rank, "F0+B1 F1+B0")
    yield from write.times(behind, "B1 F1+B0")
    ending = ["B1", "B0"] * (rank + 1)
    yield from write.times(1, " ".join(ending[: rank + 1]))
    yield from write.times(1, " ".join(ending[rank + 1 :]).replace("B", "I"))
    yield from write.times(behind, "W I0")
    yield from write.times(rank + 1, "W")


class _Writer:
    """Writes passes of the two chunks of a rank: of each kind, one micro-batch after the other."""

    def __init__(self, schedule: Schedule, rank: int) -> None:
        self.stages = schedule.hosted(rank)
        self.done: Counter[tuple[str, int]] = Counter()
        self.halves: deque[Step] = deque()

    def times(self, number: int, pattern: str) -> Iterator[_Turn]:
        """Yield a pattern several times: ``F0`` is forward of chunk 0, ``+`` a pair, ``W`` the oldest half left."""
        turns = [turn.split("+") for turn in pattern.split()]
        for _ in range(number):
            yield from (tuple(map(self._step, turn)) for turn in turns)

    def _step(self, name: str) -> Step:
        if name == "W":
            return self.halves.popleft()._replace(do="W")
        do, stage = cast("Pass", name[0]), self.stages[int(name[1])]
        counted = "W" if do == "W" else _way(do)
        step = Step(do, stage, self.done[counted, stage], _way(do))
        self.done[counted, stage] += 1
        if do == "I":
            self.halves.append(step)
        return step


def _way(do: Pass) -> Way:
    return "F" if do == "F" else "B"


_PASSES: Mapping[str, Callable[[Schedule, int], Iterator[_Turn]]] = MappingProxyType(
    {
        "interleaved_1f1b": _interleaved,
        "interleaved_zb": _interleaved_zero_bubble,
        "zbv": _zbv,
        "dualpipev": _dualpipev,
    }
)


# -- what torch adds to them -----------------------------------------------------------------------------------------


def _with_stages(schedule: Schedule, rank: int) -> Iterator[_Turn]:
    """Add to the passes of a rank when it gathers a stage, lets go of it, and reduces its gradients."""
    turns = list(_PASSES[schedule.name](schedule, rank))
    active: list[int] = []
    left = dict.fromkeys(schedule.hosted(rank), schedule.micro_batches)
    for turn, wanted in zip(turns, _next_stages(turns), strict=True):
        for stage in [x for x in active if x not in wanted]:
            active.remove(stage)
            yield (turn[0]._replace(do="let_go", stage=stage),)
        for stage in [x for x in wanted if x not in active]:
            active.append(stage)
            yield (turn[0]._replace(do="gather", stage=stage),)
        yield turn
        for step in turn:
            if step.do in ("B", "W"):
                left[step.stage] -= 1
                if not left[step.stage]:
                    yield (step._replace(do="reduce"),)
    yield from ((turns[-1][-1]._replace(do="let_go", stage=x),) for x in active)


def _next_stages(turns: Sequence[_Turn]) -> list[tuple[int, ...]]:
    """Stages that are computed next, from each turn on, in the order in which they come."""
    found: list[tuple[int, ...]] = []
    coming: tuple[int, ...] = ()
    for turn in reversed(turns):
        for step in turn[::-1]:
            if coming[:1] != (step.stage,):
                others = [stage for stage in coming if stage != step.stage]
                coming = (step.stage, *others[: ACTIVE_STAGES - 1])
        found.append(coming)
    return found[::-1]


#: Passes that need something of a neighbouring stage, and make something for the other.
_PASSES_ON = ("F", "B", "I")


class _Simulation:
    """All ranks together, each with the steps that it has taken."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.hosts = [schedule.host(stage) for stage in range(schedule.virtual_stages)]
        self.taken: list[list[Step]] = [[] for _ in range(schedule.ranks)]
        last, count = schedule.virtual_stages - 1, range(schedule.micro_batches)
        self.there = {("F", 0, number) for number in count} | {("B", last, number) for number in count}

    def run(self, turns: Iterable[Iterable[_Turn]]) -> tuple[tuple[Step, ...], ...]:
        """Let one rank after the other take its next turn, if what that needs is there."""
        waiting = [(rank, own, turn) for rank, own in enumerate(map(iter, turns)) for turn in (next(own),)]
        while waiting:
            still, moved = [], False
            for rank, own, turn in waiting:
                following: _Turn | None = turn
                if all(map(self._is_ready, turn)):
                    self._take(rank, turn)
                    moved, following = True, next(own, None)
                if following is not None:
                    still.append((rank, own, following))
            if not moved:
                raise LedgerError(f"{self.schedule.name}: its ranks wait for each other.")
            waiting = still
        return tuple(map(tuple, self.taken))

    def _is_ready(self, step: Step) -> bool:
        return step.do not in _PASSES_ON or (step.way, step.stage, step.micro_batch) in self.there

    def _take(self, rank: int, turn: _Turn) -> None:
        self.taken[rank] += turn
        for do, stage, number, way in turn:
            following = stage + (1 if way == "F" else -1)
            if do not in _PASSES_ON or not 0 <= following < len(self.hosts):
                continue
            self.there.add((way, following, number))
            if (host := self.hosts[following]) != rank:
                self.taken[rank].append(Step("send", stage, number, way))
                self.taken[host].append(Step("receive", following, number, way))
