"""Playing a step: all calls of one rank in order, with buffers that all of them share."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from meshcost.execute.exercises import native_call
from meshcost.execute.interpret import Interpreter
from meshcost.execute.plan import ITEM_BYTES, Case, steps_of


class Player:
    """One rank in a step. Results are not looked at here: each kind of call has been checked before."""

    def __init__(
        self,
        rank: int,
        cases: Sequence[Case],
        groups: Sequence[dist.ProcessGroup],
        device: torch.device,
        ways: tuple[dist.ProcessGroup, dist.ProcessGroup],
    ) -> None:
        """Make room for the largest call; ``ways`` are the groups for messages to higher and to lower ranks."""
        self.ways = ways
        self.rank, self.device = rank, device
        self.cases, self.groups = cases, groups
        elements = max((case.payload_bytes for case in cases), default=0) // ITEM_BYTES
        self.first = torch.zeros(elements, device=device)
        self.second = torch.zeros(elements, device=device)
        self.leaving: list[dist.Work] = []

    def run(self, order: Sequence[tuple[int, int]], passed: Callable[[], None]) -> None:
        """Make the calls: (number, tag), and say so after each. Messages leave without waiting, as pipelines send them.

        Otherwise two ranks could wait for ever; and without tags a gradient could be taken for an activation.
        """
        for number, tag in order:
            case, group = self.cases[number], self.groups[number]
            if case.op == "send_recv":
                self._message(case, tag)
            elif case.algorithm == "native":
                native_call(case, group, self.first, self.second)
            else:
                self._interpreted(case, group).run()
            passed()
        for work in self.leaving:
            work.wait()
            passed()
        self.leaving.clear()

    def _message(self, case: Case, tag: int) -> None:
        source, target = case.members
        group = self.ways[source > target]
        buffer = self.first if source == self.rank else self.second
        buffer = buffer[: case.payload_bytes // ITEM_BYTES]
        if source == self.rank:
            work = dist.isend(buffer, target, group=group, tag=tag)
            if work is not None:
                self.leaving.append(work)
        else:
            dist.recv(buffer, source, group=group, tag=tag)

    def _interpreted(self, case: Case, group: dist.ProcessGroup) -> Interpreter:
        steps = steps_of(case.algorithm, case.op, case.ranks, case.payload_bytes // ITEM_BYTES)
        position = case.members.index(self.rank)
        cells = {cell: self.first[: steps.cell_elements[cell]].zero_() for cell in steps.start[position]}
        return Interpreter(steps, case.members, position, group, self.device, cells)
