"""Pipeline schedules: every pass once, everything it waits for comes before it, and as many messages as are published."""

import time
from collections import Counter
from itertools import product

import pytest

from meshcost.program import Program
from meshcost.schedule import PLACEMENT, Action, Schedule

INTERLEAVED = ("interleaved_1f1b", "interleaved_zb")


def schedules():
    """All schedules for 1 to 8 ranks, 1 to 3 chunks where there may be several, and a few counts of micro-batches."""
    for name, ranks in product(PLACEMENT, range(1, 9)):
        counts = (2, 4, 8, 10) if name == "dualpipe" else (1, 2, 3, 8)
        for chunks in (1, 2, 3) if name in INTERLEAVED else (2,) if name in ("zbv", "dualpipev") else (1,):
            for count in counts:
                if name == "dualpipe" and ranks % 2:
                    continue
                yield Schedule(
                    name, ranks, chunks, count * ranks if name in INTERLEAVED and chunks > 1 else count
                )


ALL = list(schedules())
every_schedule = pytest.mark.parametrize("name", PLACEMENT)


def of(name):
    return [schedule for schedule in ALL if schedule.name == name]


@every_schedule
def test_every_stage_runs_every_micro_batch_once_each_way(name):
    for schedule in of(name):
        ran = Counter(action for rank in range(schedule.ranks) for action in schedule.actions(rank))
        passes = product("FB", range(schedule.virtual_stages), range(schedule.micro_batches))
        assert ran == Counter(Action(*one) for one in passes)


@every_schedule
def test_the_order_of_many_micro_batches_is_found_in_bounded_time(name):
    schedule = Schedule(name, 4, 2 if name in ("zbv", "dualpipev") else 1, 2**13)
    start = time.perf_counter()
    assert sum(1 for _ in schedule.actions(0)) == schedule.micro_batches * 2 * schedule.chunks
    assert time.perf_counter() - start < 10


@every_schedule
def test_a_rank_runs_only_what_lives_on_it(name):
    for schedule in of(name):
        for rank in range(schedule.ranks):
            for action in schedule.actions(rank):
                assert action.stage in schedule.hosted(rank)
                assert schedule.host(action.stage, action.micro_batch) == rank


@every_schedule
def test_everything_that_a_pass_waits_for_comes_before_it(name):
    """Run all ranks at once, each in its order: nobody waits for ever."""
    for schedule in of(name):
        left = {rank: list(schedule.actions(rank))[::-1] for rank in range(schedule.ranks)}
        done: set[Action] = set()
        while any(left.values()):
            ready = [
                rank for rank, actions in left.items() if actions and needs(actions[-1], schedule) <= done
            ]
            assert ready, f"{schedule}: {[actions[-1] for actions in left.values() if actions]} wait for ever"
            done |= {left[rank].pop() for rank in ready}


def needs(action: Action, schedule: Schedule) -> set[Action]:
    """The pass before in the same direction; a backward also needs the forward of its own stage."""
    kind, stage, micro_batch = action
    last = schedule.virtual_stages - 1
    if kind == "F":
        return {Action("F", stage - 1, micro_batch)} if stage else set()
    return {Action("F", stage, micro_batch), *({Action("B", stage + 1, micro_batch)} if stage < last else ())}


def sends(schedule: Schedule) -> list[int]:
    """Messages that each rank sends in a step."""
    units = ((("dense", 1),),) * schedule.virtual_stages
    program = Program(schedule, units)
    return [sum(part.ops == "send" for part in program.walk(rank)) for rank in range(schedule.ranks)]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        # Recorded from PyTorch 2.13's own schedules (shared truth, torch.md and traps 5.5).
        (Schedule("interleaved_1f1b", 2, 2, 4), [12, 12]),
        (Schedule("1f1b", 2, 1, 4), [4, 4]),
        (Schedule("gpipe", 2, 1, 4), [4, 4]),
        (Schedule("interleaved_1f1b", 4, 2, 8), [24, 32, 32, 24]),
        (Schedule("zbv", 4, 2, 8), [16, 32, 32, 16]),
        (Schedule("dualpipev", 4, 2, 8), [16, 32, 32, 16]),
        (Schedule("1f1b", 4, 1, 8), [8, 16, 16, 8]),
    ],
    ids=lambda x: f"{x.name}-{x.ranks}" if isinstance(x, Schedule) else "",
)
def test_messages_are_as_many_as_recorded(schedule, expected):
    assert sends(schedule) == expected


@every_schedule
def test_messages_are_two_for_each_boundary_and_micro_batch(name):
    """(v p - 1) boundaries, each crossed once forward and once backward; the two chunks of a V meet on one rank."""
    for schedule in of(name):
        virtual = schedule.virtual_stages
        crossed = sum(schedule.host(i) != schedule.host(i + 1) for i in range(virtual - 1))
        if schedule.placement == "loop" and schedule.ranks > 1:
            assert crossed == virtual - 1
        if schedule.placement == "vee":
            assert crossed == virtual - 2
        assert sum(sends(schedule)) == 2 * crossed * schedule.micro_batches


@every_schedule
def test_every_message_has_one_tag_of_its_own_on_both_ends(name):
    for schedule in of(name):
        program, ends = (
            Program(schedule, ((("dense", 1),),) * schedule.virtual_stages),
            {"send": [], "others": []},
        )
        for rank in range(schedule.ranks):
            for part in program.walk(rank):
                if part.ops:
                    there = (rank, part.peer_stage) if part.ops == "send" else (part.peer_stage, rank)
                    ends[part.ops].append((part.tag, there, part.phase, part.micro_batch))
        assert sorted(ends["send"]) == sorted(ends["others"])
        assert len({tag for tag, *_ in ends["send"]}) == len(ends["send"])


@pytest.mark.parametrize("name", [name for name in PLACEMENT if PLACEMENT[name] == "loop"])
def test_messages_arrive_in_the_order_in_which_they_are_used(name):
    """On a channel without tags: what one rank sends another is what that one wants next. (V-shaped and bidirectional
    schedules, and interleaved ones on two ranks, send both ways over one channel: they need the tags.)
    """
    for schedule in of(name):
        sent, wanted = {}, {}
        for rank in range(schedule.ranks):
            for kind, stage, micro_batch in schedule.actions(rank):
                step = 1 if kind == "F" else -1
                for table, other in ((sent, stage + step), (wanted, stage - step)):
                    if 0 <= other < schedule.virtual_stages and schedule.host(other) != rank:
                        peer = schedule.host(other)
                        pair = (rank, peer) if table is sent else (peer, rank)
                        name_of = (kind, stage if table is sent else other, micro_batch)
                        table.setdefault(pair, []).append(name_of)
        if schedule.ranks > 2 or schedule.chunks == 1:
            assert sent == wanted


@pytest.mark.parametrize("name", [name for name in PLACEMENT if PLACEMENT[name] == "loop"])
def test_forwards_before_the_first_backward_are_those_of_the_papers(name):
    """Narayanan et al. 2021, section 2.2 (1F1B: p - r in flight on rank r; interleaved: Megatron's 2 (p - r - 1) +
    (v - 1) p, and one); Huang et al. 2019 (GPipe: all); Qi et al. 2023 (ZB-H2: 2 p - 2 r - 1; H1 as 1F1B).
    """
    for schedule in of(name):
        passes = schedule.micro_batches * schedule.chunks
        for rank in range(schedule.ranks):
            behind = schedule.ranks - rank - 1
            many = {"gpipe": passes, "zb_h2": 2 * behind + 1}.get(name, behind + 1)
            if schedule.chunks > 1:
                many = 2 * behind + (schedule.chunks - 1) * schedule.ranks + 1
            kinds = "".join(action.kind for action in schedule.actions(rank))
            assert kinds.index("B") == min(many, passes), (schedule, rank)
