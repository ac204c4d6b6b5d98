"""One rank: joins the others, makes calls, and counts what each one moved through its own sockets."""

import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from meshcost.errors import ExecutionError
from meshcost.execute.counters import Bytes, Counter
from meshcost.execute.crew import SIGN_SECONDS
from meshcost.execute.exercises import Exercise, exercise
from meshcost.execute.interpret import interpreted
from meshcost.execute.nccl import own_choice
from meshcost.execute.plan import Case
from meshcost.execute.play import Player

#: Counters are read when two readings this far apart agree: answers may still be under way when a call returns.
_SETTLE_SECONDS, _LONGEST_SETTLE = 0.005, 0.5


@dataclass
class Member:
    """A rank that has joined: how it counts, where its tensors live, how it meets the others."""

    rank: int
    store: Any
    counter: Counter
    device: torch.device
    timeout: timedelta
    tell: Callable[[Mapping[str, Any]], None]
    fault: Mapping[str, Any] = field(default_factory=dict)
    _groups: dict[tuple[int, ...], dist.ProcessGroup] = field(default_factory=dict)
    _stage: int = 0
    _told: float = 0.0
    _passed: list[torch.cuda.Event] = field(default_factory=list)

    def group(self, members: tuple[int, ...]) -> dist.ProcessGroup:
        """The process group of some ranks. The first time, every rank of the world has to ask for it."""
        if members not in self._groups:
            self._groups[members] = dist.new_group(list(members), timeout=self.timeout)
            if self.rank in members and dist.get_backend() == "nccl":
                # The first call of a group has to be one that all members make; a schedule may begin with a message.
                dist.barrier(group=self._groups[members], device_ids=[self.device.index])
        return self._groups[members]

    def meet(self, place: str, members: tuple[int, ...]) -> None:
        """Wait until all members are here. The store does this, so that no byte of it is on the counted sockets.

        Raises ExecutionError that names the ranks that did not come.
        """
        self.store.set(f"{place}/{self.rank}", "here")
        try:
            self.store.wait([f"{place}/{member}" for member in members], self.timeout)
        except (dist.DistError, RuntimeError, TimeoutError):
            absent = [member for member in members if not self._came(place, member)]
            named = ", ".join(map(str, absent)) or "somebody"
            raise ExecutionError(
                f"rank {named} did not come within {self.timeout.total_seconds():g} s."
            ) from None

    def _came(self, place: str, member: int) -> bool:
        try:
            return bool(self.store.check([f"{place}/{member}"]))
        except (dist.DistError, RuntimeError):  # the store went down with the rank that holds it
            return False

    def measure(self, number: int, case: Case, iterations: int) -> dict[str, Any]:
        """Make a call: once to warm up and check, then ``iterations`` times to count and time."""
        self._reach(1)
        position = case.members.index(self.rank)
        group = self.group(case.members)
        done = self._prepare(case, position, group)
        done.reset()
        done.run()
        self._synchronize()
        correct = done.check()
        self._suffer(case.op)
        self._reach(2)
        moved, seconds = self.counted(f"{number}", case.members, done.run, iterations)
        return {
            "chosen": own_choice(case.op),
            "correct": correct,
            "seconds": seconds / iterations,
            "sent": moved.sent / iterations,
            "received": moved.received / iterations,
        }

    def play(
        self, number: int, cases: Sequence[Case], order: Sequence[tuple[int, int]], world: int
    ) -> dict[str, Any]:
        """Make all calls of a step, one after the other, and count what they move together."""
        everybody = tuple(range(world))
        ways = self._ways(everybody)
        groups = [self.group(everybody if case.op == "send_recv" else case.members) for case in cases]
        player = Player(self.rank, cases, groups, self.device, ways)
        self._suffer("step")
        self._reach(2)
        moved, seconds = self.counted(f"{number}", everybody, lambda: player.run(order, self._pass), 1)
        return {"correct": True, "seconds": seconds, "sent": moved.sent, "received": moved.received}

    def _ways(self, everybody: tuple[int, ...]) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """Groups for messages to higher and to lower ranks.

        NCCL makes the messages of two ranks in one order, whichever way they go: with one group for both ways, a send that
        waits for its receive would hold up the message that comes back.
        """
        if dist.get_backend() != "nccl":
            return (self.group(everybody),) * 2
        up, down = (dist.new_group(list(everybody), timeout=self.timeout) for _ in range(2))
        return up, down

    def _prepare(self, case: Case, position: int, group: dist.ProcessGroup) -> Exercise:
        if case.algorithm == "native":
            return exercise(case, position, group, self.device)
        return interpreted(case, position, group, self.device)

    def counted(
        self, place: str, members: tuple[int, ...], run: Callable[[], None], iterations: int
    ) -> tuple[Bytes, float]:
        """Run something while all members do: bytes that this rank moved, and seconds. ``place`` names it in the store."""
        self.meet(f"{place}/warm", members)
        before = self._settled()
        self._sign()
        self.meet(f"{place}/start", members)
        seconds = self._timed(run, iterations)
        self._reach(3)
        self.meet(f"{place}/end", members)
        moved = self._settled().since(before)
        self._sign()
        self.meet(f"{place}/counted", members)
        return moved, seconds

    def _timed(self, run: Callable[[], None], iterations: int) -> float:
        """Seconds of some calls: on the clock of the GPU where tensors live there, else on that of the host."""
        self._passed.clear()
        start = time.perf_counter()
        if self.device.type == "cuda":
            self._pass()
        for _ in range(iterations):
            run()
            self._pass()
        if self.device.type != "cuda":
            return time.perf_counter() - start
        for event in self._passed:
            event.synchronize()
            self._sign()
        self._synchronize()
        return float(self._passed[0].elapsed_time(self._passed[-1])) / 1000

    def _reach(self, stage: int) -> None:
        """Tell how far this rank has come in a call."""
        self._stage, self._told = stage, time.monotonic()
        self.tell({"stage": stage})

    def _sign(self) -> None:
        """Tell now and then that this rank goes on: whoever waits counts seconds from there."""
        if time.monotonic() - self._told >= SIGN_SECONDS:
            self._reach(self._stage)

    def _pass(self) -> None:
        """Take note of a call that has been made; a GPU makes it later, and an event says when."""
        if self.device.type != "cuda":
            self._sign()
            return
        self._passed.append(torch.cuda.Event(enable_timing=True))
        self._passed[-1].record()

    def _settled(self) -> Bytes:
        before, end = self.counter(), time.monotonic() + _LONGEST_SETTLE
        while time.monotonic() < end:
            time.sleep(_SETTLE_SECONDS)
            now = self.counter()
            if now == before:
                break
            before = now
        return before

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _suffer(self, op: str) -> None:
        """Fail on purpose, where a test asked for it."""
        if not self.fault or self.fault["rank"] != self.rank or self.fault.get("op", op) != op:
            return
        match self.fault["kind"]:
            case "raise":
                raise RuntimeError("a fault that was asked for")
            case "hang":
                time.sleep(3600)
            case name:
                os.kill(os.getpid(), signal.Signals[name])


def device_of(name: str, local_rank: int) -> torch.device:
    """The device of a rank: ``cuda`` gives each rank of a host a GPU of its own."""
    if name != "cuda":
        return torch.device(name)
    device = torch.device("cuda", local_rank % max(1, torch.cuda.device_count()))
    torch.cuda.set_device(device)
    return device


def case_of(fields: Mapping[str, Any]) -> Case:
    """Read a case that came as JSON."""
    return Case(**{**fields, "members": tuple(fields["members"])})


def encoded(message: Mapping[str, Any]) -> bytes:
    """Write one message as a line."""
    return json.dumps(message).encode() + b"\n"
