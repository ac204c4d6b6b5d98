"""Pipelines as PyTorch runs them from a list: every pass once, nothing before what it needs, and nobody waits for ever."""

import time
from collections import Counter
from collections.abc import Iterator
from itertools import product

import pytest

from meshcost.errors import JobError, LedgerError
from meshcost.job import Job, analyze
from meshcost.ledger import Ledger
from meshcost.schedule import Schedule
from meshcost.torch_schedule import ACTIVE_STAGES, LISTED, Step, refused, steps

TWO_CHUNKS = ("zbv", "dualpipev")


def schedules() -> Iterator[Schedule]:
    for name, ranks in product(LISTED, range(1, 6)):
        for chunks, count in product((2,) if name in TWO_CHUNKS else (1, 2, 3, 5), (1, 2, 3, 5, 8, 10, 12)):
            if refused(schedule := Schedule(name, ranks, chunks, count)) is None:
                yield schedule


ALL = list(schedules())
every_schedule = pytest.mark.parametrize("name", LISTED)


def of(name: str) -> list[Schedule]:
    return [schedule for schedule in ALL if schedule.name == name]


@every_schedule
def test_every_stage_runs_every_micro_batch_once_and_backward_in_order(name: str):
    for schedule in of(name):
        done: dict[tuple[int, int], str] = {}
        for rank, mine in enumerate(steps(schedule)):
            for step in mine:
                if step.do in ("F", "B", "I", "W"):
                    assert step.stage in schedule.hosted(rank)
                    place = (step.stage, step.micro_batch)
                    done[place] = done.get(place, "") + step.do
        assert set(done) == set(product(range(schedule.virtual_stages), range(schedule.micro_batches)))
        assert set(done.values()) <= {"FB", "FIW"}


@every_schedule
def test_nobody_waits_for_ever(name: str):
    """All ranks at once: a pass waits for its input, which is there once it was sent, or made on the same rank."""
    for schedule in of(name):
        left = [list(reversed(mine)) for mine in steps(schedule)]
        sent: set[tuple[str, int, int]] = set()
        received: set[tuple[str, int, int]] = set()
        while any(left):
            moved = False
            for rank, mine in enumerate(left):
                while mine and is_there(mine[-1], rank, schedule, sent, received):
                    step, moved = mine.pop(), True
                    ahead = step.stage + (1 if step.way == "F" else -1)
                    if step.do == "send":
                        sent.add((step.way, ahead, step.micro_batch))
                    elif step.do == "receive":
                        received.add((step.way, step.stage, step.micro_batch))
                    elif step.do in ("F", "B", "I") and ahead in schedule.hosted(rank):
                        sent.add((step.way, ahead, step.micro_batch))
                        received.add((step.way, ahead, step.micro_batch))
            assert moved, f"{schedule}: {[str(mine[-1]) for mine in left if mine]} wait for ever"


def is_there(
    step: Step,
    rank: int,
    schedule: Schedule,
    sent: set[tuple[str, int, int]],
    received: set[tuple[str, int, int]],
) -> bool:
    """Whether a step can be taken: only passes wait, and the receive before them has to be posted."""
    if step.do not in ("F", "B", "I") or step.stage == (
        0 if step.way == "F" else schedule.virtual_stages - 1
    ):
        return True
    key = (step.way, step.stage, step.micro_batch)
    return key in sent and key in received


@every_schedule
def test_messages_of_two_ranks_are_received_in_the_order_in_which_they_are_sent(name: str):
    """So a channel needs no tags."""
    for schedule in of(name):
        sent: dict[tuple[int, int], list[tuple[str, int, int]]] = {}
        received: dict[tuple[int, int], list[tuple[str, int, int]]] = {}
        for rank, mine in enumerate(steps(schedule)):
            for step in mine:
                step_back = 1 if step.way == "B" else -1
                if step.do == "send":
                    there = step.stage - step_back
                    key = (step.way, there, step.micro_batch)
                    sent.setdefault((rank, schedule.host(there)), []).append(key)
                elif step.do == "receive":
                    peer = schedule.host(step.stage + step_back)
                    key = (step.way, step.stage, step.micro_batch)
                    received.setdefault((peer, rank), []).append(key)
        assert sent == received


@every_schedule
def test_stages_are_gathered_before_they_are_computed_and_reduced_once_after(name: str):
    for schedule in of(name):
        for rank, mine in enumerate(steps(schedule)):
            active: set[int] = set()
            left = Counter(step.stage for step in mine if step.do in ("B", "W"))
            for step in mine:
                if step.do == "gather":
                    assert step.stage not in active
                    active.add(step.stage)
                    assert len(active) <= ACTIVE_STAGES
                elif step.do == "let_go":
                    active.remove(step.stage)
                elif step.do in ("F", "B", "I", "W"):
                    assert step.stage in active
                    left[step.stage] -= step.do in ("B", "W")
                elif step.do == "reduce":
                    assert not left.pop(step.stage)
            assert not active
            assert not left, (schedule, rank)


def test_many_steps_are_listed_in_bounded_time():
    start = time.process_time()
    listed = steps(Schedule("interleaved_1f1b", 16, 4, 1024))
    assert time.process_time() - start < 20
    assert sum(step.do == "F" for step in listed[0]) == 4096
    with pytest.raises(LedgerError, match="not computed"):
        steps(Schedule("zbv", 16, 2, 2**20))


@pytest.mark.parametrize(
    ("pipeline", "count", "why"),
    [
        (
            {"size": 4, "schedule": "1f1b"},
            3,
            "3 micro-batches are fewer than the 4 stages; choose at least 4",
        ),
        ({"size": 2, "schedule": "dualpipev"}, 3, "fewer than the 4 stages"),
        (
            {"size": 2, "schedule": "interleaved_1f1b"},
            5,
            "do not divide into 2 equal rounds; choose a multiple of 2",
        ),
    ],
)
def test_numbers_of_micro_batches_that_torch_refuses_are_refused(
    pipeline: dict[str, object], count: int, why: str
):
    with pytest.raises(JobError, match=why):
        asked(pipeline, count)


def asked(pipeline: dict[str, object], count: int, **more: object) -> Job:
    return Job(
        model="gpt2",
        framework="torch",
        parallel={"pipeline": pipeline, "data": {"strategy": "fsdp", "size": 2}},
        batch={"sequence": 8, "global_batch": 2 * count},
        **more,
    )


def test_gradients_that_torch_would_lose_are_refused():
    pipeline = {"size": 2, "schedule": "zbv"}
    with pytest.raises(JobError, match="loses the gradients"):
        asked(pipeline, 4)
    assert asked(pipeline, 4, torch={"reshard_after_forward": False})


@pytest.mark.parametrize("count", [3, 4, 34, 67, 68])
@pytest.mark.parametrize("name", LISTED)
def test_counts_are_those_of_the_calls_for_any_number_of_micro_batches(name: str, count: int):
    pipeline = {"size": 2, "schedule": name} | ({} if name in TWO_CHUNKS else {"chunks": 3})
    if refused(Schedule(name, 2, 2, count)):
        return
    ledger = analyze(asked(pipeline, count, torch={"reshard_after_forward": False}))
    read = Ledger.from_dict(ledger.to_dict())
    for rank in (0, 2):
        calls = list(ledger.calls(rank))
        assert calls == list(read.calls(rank))
        assert len(calls) == sum(event.calls for event in ledger if ledger.mesh.stage(rank) in event.stages)
