"""Interpreting a schedule over point-to-point messages: the data of the shelf moves real tensors.

The schedule is not rewritten here: every message of every round becomes one send and one receive. What each rank ends
with is held against the native collective on the same input.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from meshcost.collectives.schedule import Message, Round, Steps
from meshcost.execute.exercises import Exercise, exercise, factor_of, fill
from meshcost.execute.plan import ITEM_BYTES, Case, steps_of


@dataclass
class Interpreter:
    """One rank that plays its part of a schedule: ``held`` are its cells, by number."""

    steps: Steps
    members: tuple[int, ...]
    position: int
    group: dist.ProcessGroup
    device: torch.device
    held: dict[int, torch.Tensor]

    def reset(self) -> None:
        """Hold what this rank contributes: the same pattern that the native collective starts from."""
        offsets = self._offsets()
        self.held = {}
        for cell in sorted(self.steps.start[self.position]):
            self.held[cell] = self._empty(self.steps.cell_elements[cell])
            fill(self.held[cell], offsets[cell], factor_of(self.position))

    def run(self) -> None:
        """Play all rounds; a round begins when what it needs has arrived."""
        for messages in self.steps.rounds:
            self._play(messages)

    def result(self) -> torch.Tensor | None:
        """The cells that the operation promises to this rank, side by side; None if there are none."""
        cells = [self.held[cell] for cell in self.steps.end[self.position]]
        return torch.cat(cells) if cells else None

    def _play(self, messages: Round) -> None:
        arriving = [
            (message, self._empty(self.steps.size(message)))
            for message in messages
            if message.target == self.position
        ]
        calls = [
            dist.P2POp(dist.irecv, buffer, self.members[message.source], self.group)
            for message, buffer in arriving
        ]
        # What is sent is a copy, so that it is what was held when the round began.
        leaving = [
            (message, torch.cat([self.held[cell] for cell in message.cells]))
            for message in messages
            if message.source == self.position
        ]
        calls += [
            dist.P2POp(dist.isend, buffer, self.members[message.target], self.group)
            for message, buffer in leaving
        ]
        for work in dist.batch_isend_irecv(calls) if calls else ():
            work.wait()
        for message, buffer in arriving:
            self._keep(message, buffer)

    def _keep(self, message: Message, buffer: torch.Tensor) -> None:
        parts = buffer.split([self.steps.cell_elements[cell] for cell in message.cells])
        for cell, part in zip(message.cells, parts, strict=True):
            self.held[cell] = self.held[cell] + part if message.add else part

    def _empty(self, elements: int) -> torch.Tensor:
        return torch.empty(elements, dtype=torch.float32, device=self.device)

    def _offsets(self) -> list[int]:
        """Place of each cell in the payload of the rank that starts with it."""
        offsets, place = [], 0
        for cell, size in enumerate(self.steps.cell_elements):
            if self.steps.op == "all_to_all" and cell % self.steps.ranks == 0:
                place = 0
            offsets.append(place)
            place += size
        return offsets


def interpreted(case: Case, position: int, group: dist.ProcessGroup, device: torch.device) -> Exercise:
    """Build the exercise that plays a schedule of the shelf in place of the native collective."""
    native = exercise(case, position, group, device)
    steps = steps_of(case.algorithm, case.op, case.ranks, case.payload_bytes // ITEM_BYTES)
    player = Interpreter(steps, case.members, position, group, device, {})

    def check() -> bool:
        native.reset()
        native.run()
        ours, theirs = player.result(), native.result()
        if ours is None or theirs is None:
            return (ours is None or not ours.numel()) and theirs is None and native.check()
        return native.check() and torch.equal(ours, theirs)

    return Exercise(player.reset, player.run, check, player.result)
