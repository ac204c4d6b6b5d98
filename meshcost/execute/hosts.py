"""Ranks that a launcher has started, on one host or on many: this process is one of them.

Under ``torchrun --nnodes`` every rank runs the same command. Each makes the same calls in the same order, and rank 0
collects what the others report through the store that the launcher's address names.
"""

import json
import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import torch.distributed as dist

from meshcost.errors import ExecutionError
from meshcost.execute.crew import Fault
from meshcost.execute.failures import sentence_of
from meshcost.execute.launcher import Launched
from meshcost.execute.member import Member, device_of
from meshcost.execute.nccl import choose_link_counter, debug_log
from meshcost.execute.plan import Case
from meshcost.execute.step import Step


@dataclass
class Hosts:
    """This rank among those of the launcher. Only rank 0, the leader, gets answers; the others get none.

    Raises ExecutionError if the port is taken, or if not all ranks come in time.
    """

    launched: Launched
    timeout: float = 60.0
    backend: str = "gloo"
    device: str = "cpu"
    fault: Fault | None = None
    counter: str = field(default="", init=False)
    _member: Member | None = field(default=None, init=False)
    _number: int = field(default=0, init=False)
    _opened: ExitStack = field(default_factory=ExitStack, init=False)

    @property
    def rank(self) -> int:
        """This rank."""
        return self.launched.rank

    @property
    def ranks(self) -> int:
        """Ranks that the launcher has started."""
        return self.launched.ranks

    @property
    def leader(self) -> bool:
        """Whether this rank collects and shows."""
        return self.rank == 0

    def __enter__(self) -> Self:
        """Join the others."""
        limit = timedelta(seconds=self.timeout)
        if self.backend == "nccl":
            os.environ.update(self._opened.enter_context(debug_log()))
        try:
            device = device_of(self.device, self.launched.local_rank)
            dist.init_process_group(self.backend, init_method="env://", timeout=limit)
        except (RuntimeError, ValueError) as error:
            start = f"start of {self.ranks} ranks at {self.launched.where}"
            raise ExecutionError(sentence_of(self.rank, str(error), start)) from None
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "eth0")
        self.counter, counter = choose_link_counter(
            self.backend, device.index or 0, interface, skip_ports=(self.launched.port,)
        )
        store = dist.distributed_c10d._get_default_store()
        fault = self.fault.as_dict() if self.fault else {}
        self._member = Member(self.rank, store, counter, device, limit, lambda message: None, fault)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave, unless something went wrong: then the others may be gone already."""
        if error is None and dist.is_initialized():
            assert self._member is not None
            self._member.meet("leave", tuple(range(self.ranks)))
            dist.destroy_process_group()
        self._opened.close()

    def measure(self, case: Case, *, iterations: int = 1) -> dict[int, dict[str, Any]]:
        """Make the call if this rank is a member; the leader gets what all of them report."""
        if max(case.members) >= self.ranks:
            raise ExecutionError(f"--ranks {case.ranks}: the launcher has started {self.ranks}.")
        self._number += 1
        member = self._joined
        member.group(case.members)
        if self.rank not in case.members:
            return {}
        return self._shared(
            case.sentence, case.members, lambda: member.measure(self._number, case, iterations)
        )

    def play(self, step: Step) -> dict[int, dict[str, Any]]:
        """Make all calls of a step; the leader gets what all ranks report."""
        self._number += 1
        everybody = tuple(range(self.ranks))
        for rank in everybody:
            for case in step.script(rank).cases:
                if case.op != "send_recv":
                    self._joined.group(case.members)
        cases, order = step.script(self.rank)
        work = self._joined
        return self._shared("the step", everybody, lambda: work.play(self._number, cases, order, self.ranks))

    @property
    def _joined(self) -> Member:
        assert self._member is not None
        return self._member

    def _shared(self, what: str, members: tuple[int, ...], work: Any) -> dict[int, dict[str, Any]]:
        """Do the work, and let the leader know how it went."""
        store, place = self._joined.store, f"answer/{self._number}"
        store.set(f"{place}/came/{self.rank}", "1")
        try:
            row = work()
        except Exception as error:  # noqa: BLE001 - whatever goes wrong in a rank becomes one sentence
            why = str(error) if isinstance(error, ExecutionError) else f"{type(error).__name__}: {error}"
            raise ExecutionError(self._explained(place, what, members, why)) from None
        store.set(f"{place}/{self.rank}", json.dumps(row))
        if not self.leader:
            return {}
        return {rank: json.loads(store.get(f"{place}/{rank}")) for rank in members}

    def _explained(self, place: str, what: str, members: tuple[int, ...], why: str) -> str:
        """Name the rank that never came, if there is one; otherwise say what this one saw."""
        store = self._joined.store
        try:
            absent = [rank for rank in members if not store.check([f"{place}/came/{rank}"])]
        except RuntimeError:
            return f"rank 0, which keeps the store, is gone; rank {self.rank} noticed it in {what}."
        if absent:
            named = ", ".join(map(str, absent))
            return f"rank {named} did not come to {what} within {self.timeout:g} s (--timeout)."
        return sentence_of(self.rank, why, what)
