"""Unrolling: from the events of a ledger to the exact calls that one rank makes, in order."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby

from meshcost.event import Event, Phase
from meshcost.mesh import Group, Mesh
from meshcost.program import Part, Program


@dataclass(frozen=True, slots=True)
class Call:
    """One call that one rank makes: what it puts in, what it gets out, with whom.

    ``tag`` is the number that both ends of a message between stages hand to send and receive: forward and backward
    messages of two ranks can overtake each other. Messages around a ring have none, and arrive in order. An
    ``all_to_all`` in which each rank sends all to one other has the distance to it as ``shift``.
    """

    op: str
    ranks: tuple[int, ...]
    in_bytes: int
    out_bytes: int
    dtype: str
    phase: Phase
    strategy: str
    why: str
    unit: str
    micro_batch: int | None = None
    tag: int | None = None
    shift: int = 0


def group_of(event: Event, mesh: Mesh, rank: int) -> Group:
    """Ranks of the group in which a rank makes this call."""
    members = mesh.group(rank, event.axes)
    if event.split:
        first = members.index(rank) // event.split * event.split
        return members[first : first + event.split]
    if not event.pairs:
        return members
    stage = mesh.stage(rank)
    together = next(pair for pair in event.pairs if stage in pair)
    return tuple(member for member in members if mesh.stage(member) in together)


class Unroller:
    """Walks through the program of one rank and emits the calls of the events it passes."""

    def __init__(self, events: Iterable[Event], mesh: Mesh, program: Program, rank: int) -> None:
        """Sort the events of the rank's stage by the place where they happen."""
        self.mesh, self.program, self.rank = mesh, program, rank
        self.stage = mesh.stage(rank)
        self.groups: dict[tuple[object, ...], Group] = {}
        self.sites: dict[tuple[str, str], list[Event]] = {}
        for event in events:
            if self.stage in event.stages:
                self.sites.setdefault((event.site.unit, event.phase), []).append(event)
        for found in self.sites.values():
            found.sort(key=lambda event: event.site.order)

    def calls(self) -> Iterator[Call]:
        """Yield the calls in order."""
        program, stage = self.program, self.stage
        for part in chain(program.begin(), program.walk(stage), program.finish(stage)):
            for _, together in groupby(self._events(part), key=lambda event: event.site.order):
                calls = [(self._call(event, part), event.site.repeat) for event in together]
                for turn in range(max(times for _, times in calls)):
                    yield from (call for call, times in calls if turn < times)

    def _events(self, part: Part) -> Iterator[Event]:
        layer = part.layer
        for event in self.sites.get((part.unit, part.phase), ()):
            if layer is not None and layer < event.site.from_layer:
                continue
            if part.holds(event.site.order) and part.allows(event.op, event.site.micro_batches, event.shift):
                yield event

    def _call(self, event: Event, part: Part) -> Call:
        key = (event.axes, event.pairs, event.split)
        if key not in self.groups:
            self.groups[key] = group_of(event, self.mesh, self.rank)
        group = self.groups[key]
        position = group.index(self.rank)
        into, out = event.payload_bytes, event.payload_bytes
        ranks, tag = group, None
        if event.op == "all_gather":
            into = event.chunk(position)
        elif event.op == "reduce_scatter":
            out = event.chunk(position)
        elif event.op in ("send", "recv"):
            shift = event.shift if event.op == "send" else -event.shift
            peer = (position + shift) % len(group) if part.peer_stage is None else part.peer_stage
            ranks = (self.rank, group[peer]) if event.op == "send" else (group[peer], self.rank)
            tag = part.tag
            into, out = (into, 0) if event.op == "send" else (0, out)
        return Call(
            event.op, ranks, into, out, event.dtype, event.phase, event.strategy, event.why,
            part.label, part.micro_batch, tag, event.shift if event.op == "all_to_all" else 0,
        )  # fmt: skip
