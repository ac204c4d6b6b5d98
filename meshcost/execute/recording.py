"""A recording: the communication calls that one rank really made, in order. Plain data, no torch."""

import json
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import Any, get_args

from sympy import Integer

from meshcost.document import line_of
from meshcost.errors import LedgerError, printable
from meshcost.event import Event, Phase, Site
from meshcost.execute.recording_file import (
    RecordedPhase,
    RecordingInFile,
    RecordingsInFile,
    checked,
    refused,
    strangers,
)
from meshcost.ledger import Ledger
from meshcost.mesh import Mesh
from meshcost.program import Program
from meshcost.schedule import Schedule

FORMAT = 1

#: Phases of a recorded call. ``setup`` is whatever comes before the first forward pass; "" means that nobody noted it.
SETUP, FORWARD, BACKWARD, CLIP, OPTIMIZER, UNKNOWN_PHASE = (
    "setup", "forward", "backward", "clip", "optimizer", "",
)  # fmt: skip
RECORDED_PHASES: tuple[str, ...] = get_args(RecordedPhase)

#: The name of a call whose operation is not known; ``raw`` says what it was.
UNKNOWN = "unknown"

_IN_LEDGER: Mapping[str, Phase] = {
    SETUP: "forward",
    FORWARD: "forward",
    BACKWARD: "backward",
    CLIP: "optimizer",
    OPTIMIZER: "optimizer",
    UNKNOWN_PHASE: "forward",
}


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call that a rank made.

    ``ranks`` are global, in the order of the group; of a ``send`` and a ``recv`` they are (source, destination).
    ``axes`` names the group where the mesh is known. ``module`` is the module that caused the call, ``raw`` the operation
    of torch, ``root`` the global rank that a rooted operation starts or ends at. ``step`` counts optimizer steps,
    ``micro_batch`` the passes within one.
    """

    op: str
    ranks: tuple[int, ...]
    in_bytes: int
    out_bytes: int
    dtype: str
    phase: str
    module: str = ""
    reduce_op: str = ""
    raw: str = ""
    axes: tuple[str, ...] = ()
    step: int = 0
    micro_batch: int | None = None
    root: int | None = None

    @property
    def payload_bytes(self) -> int:
        """Bytes of the whole logical buffer: what is gathered, what is scattered, the message."""
        return max(self.in_bytes, self.out_bytes)

    @property
    def group(self) -> str:
        """The group in words: its axes, or its ranks."""
        return " x ".join(self.axes) if self.axes else _in_words(self.ranks)


def _in_words(ranks: Sequence[int]) -> str:
    """Write ranks briefly.

    >>> _in_words((0, 2, 4, 6)), _in_words((3,)), _in_words((0, 1, 5))
    ('ranks 0:8:2', 'ranks 3', 'ranks 0,1,5')
    """
    if len(ranks) > 2 and len(steps := {b - a for a, b in pairwise(ranks)}) == 1:
        step = steps.pop()
        return f"ranks {ranks[0]}:{ranks[-1] + step}" + (f":{step}" if step != 1 else "")
    return "ranks " + ",".join(map(str, ranks))


@dataclass(frozen=True)
class Recording:
    """All calls of one rank, in order. ``about`` says what was recorded; it takes no part in comparisons.

    >>> call = RecordedCall("all_reduce", (0, 1), 8, 8, "fp32", "backward", module="head")
    >>> print(Recording(0, 2, (call,)).log())
    rank 0 of 2, step 0: 1 call, 8 B
      phase     calls operation                 payload dtype group            module
      backward        all_reduce                    8 B fp32  ranks 0,1        head
    """

    rank: int
    world_size: int
    calls: tuple[RecordedCall, ...]
    about: Mapping[str, Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[RecordedCall]:
        """Iterate over the calls."""
        return iter(self.calls)

    def __len__(self) -> int:
        """Count the calls."""
        return len(self.calls)

    @property
    def steps(self) -> tuple[int, ...]:
        """Numbers of the steps in which something was called, ascending."""
        return tuple(sorted({call.step for call in self.calls}))

    def at_step(self, step: int) -> "Recording":
        """Keep the calls of one step, without those of the set-up."""
        kept = (call for call in self.calls if call.step == step and call.phase != SETUP)
        return replace(self, calls=tuple(kept), about={**self.about, "step": step})

    @property
    def steady_step(self) -> int | None:
        """The last step whose calls are those of the step before it; None if no two steps follow each other alike."""
        of_step = {step: _shape(self.at_step(step)) for step in self.steps}
        alike = [step for step in self.steps if step - 1 in of_step and of_step[step] == of_step[step - 1]]
        return alike[-1] if alike else None

    def steady(self) -> "Recording":
        """Keep one step of the steady state, or the last one where there is none."""
        step = self.steady_step
        return self.at_step(step if step is not None else max(self.steps, default=0))

    def with_axes(self, mesh: Mesh) -> "Recording":
        """Name every group by the axes of a mesh; a group that is none of its groups keeps its ranks."""
        found: dict[tuple[int, ...], tuple[str, ...]] = {}
        for call in self.calls:
            if call.ranks not in found:
                found[call.ranks] = axes_of(mesh, self.rank, call.ranks, pair=call.op in ("send", "recv"))
        return replace(self, calls=tuple(replace(call, axes=found[call.ranks]) for call in self.calls))

    def to_ledger(self, mesh: Mesh | None = None, *, strategy: str = "observed") -> Ledger:
        """Count the calls by kind, as the events of a ledger: whole payloads, without formulas and without prices.

        Without a mesh, or for a group that is none of its groups, the axis is the ranks in words.
        """
        named = self.with_axes(mesh) if mesh is not None else self
        mesh = mesh if mesh is not None else Mesh({"world": self.world_size})
        stage = mesh.stage(self.rank)
        kinds = Counter(_kind(call) for call in named.calls)
        events = tuple(
            Event(
                strategy=strategy,
                op=op,
                axes=axes,
                group_size=size,
                phase=phase,
                why=why,
                dtype=dtype,
                payload=Integer(payload),
                count=Integer(count),
                values={},
                stages=(stage,),
                site=Site("step", (order,)),
            )
            for order, ((op, axes, size, phase, why, dtype, payload), count) in enumerate(kinds.items())
        )
        program = Program(Schedule("1f1b", mesh.stages, 1, 1), ((),) * mesh.stages)
        return Ledger(events, mesh, program, about={**self.about, "rank": self.rank})

    def to_dict(self) -> dict[str, Any]:
        """Write the recording as JSON values."""
        return {
            "meshcost_recording": FORMAT,
            "rank": self.rank,
            "world_size": self.world_size,
            "about": dict(self.about),
            "calls": [_plain(call) for call in self.calls],
        }

    @classmethod
    def from_dict(cls, data: Any, text: str = "") -> "Recording":
        """Read what ``to_dict`` wrote; ``text`` is the file it stands in. Raises LedgerError for anything else."""
        return cls._of_file(checked(RecordingInFile, data, text), text)

    @classmethod
    def all_from_dict(cls, data: Any, text: str = "") -> "dict[int, Recording]":
        """Read the recordings of several ranks, ``{"recordings": [...]}``, by rank. Raises LedgerError."""
        found: dict[int, Recording] = {}
        for at, item in enumerate(checked(RecordingsInFile, data, text).recordings):
            if item.rank in found:
                line = f"line {line_of(text, ('recordings', at, 'rank'))}: " if text else ""
                raise LedgerError(f"{line}recordings.{at}.rank: rank {item.rank} is recorded twice.")
            found[item.rank] = cls._of_file(item, text, ("recordings", at))
        return found

    @classmethod
    def _of_file(cls, read: RecordingInFile, text: str, at: tuple[str | int, ...] = ()) -> "Recording":
        problems = [
            (f"line {line_of(text, (*at, *where))}: " if text else "")
            + f"{'.'.join(map(str, (*at, *where)))}: {what}"
            for where, what in islice(strangers(read), 100)
        ]
        if problems:
            raise refused(problems)
        calls = (
            RecordedCall(**{**dict(call), "ranks": tuple(call.ranks), "axes": tuple(call.axes)})
            for call in read.calls
        )
        return cls(read.rank, read.world_size, tuple(calls), read.about)

    def save(self, path: str | Path) -> None:
        """Write the recording to a file, one call on each line."""
        data = self.to_dict()
        calls = ",\n".join("  " + json.dumps(call) for call in data.pop("calls"))
        head = json.dumps(data)[:-1]
        Path(path).write_text(f'{head}, "calls": [\n{calls}\n]}}\n' if calls else f'{head}, "calls": []}}\n')

    @property
    def shape(self) -> tuple[Hashable, ...]:
        """What this recording shares with that of a rank that differs only in whom it talks to."""
        return tuple(
            replace(call, ranks=(), root=None, axes=call.axes or (str(len(call.ranks)),))
            for call in self.calls
        )

    def log(self) -> str:
        """Write the calls as text: one line for each run of equal calls."""
        lines = []
        for step, of_step in groupby(self.calls, key=lambda call: call.step):
            calls = list(of_step)
            number, total = len(calls), sum(call.payload_bytes for call in calls)
            noun = "call" if number == 1 else "calls"
            lines.append(f"rank {self.rank} of {self.world_size}, step {step}: {number} {noun}, {total:,} B")
            lines.append(_HEAD)
            lines.extend(_line(call, len(list(run))) for call, run in groupby(calls))
        return "\n".join(lines)


def _shape(recording: Recording) -> tuple[RecordedCall, ...]:
    return tuple(replace(call, step=0) for call in recording.calls)


def _kind(call: RecordedCall) -> tuple[str, tuple[str, ...], int, Phase, str, str, int]:
    axes = call.axes or (_in_words(call.ranks),)
    why = call.raw if call.op == UNKNOWN else "observed"
    return call.op, axes, len(call.ranks), _IN_LEDGER[call.phase], why, call.dtype, call.payload_bytes


_HEAD = f"  {'phase':<9} {'calls':>6} {'operation':<14} {'payload':>16} {'dtype':<5} {'group':<16} module"


def _line(call: RecordedCall, times: int) -> str:
    what = call.op if call.op != UNKNOWN else f"unknown {call.raw}"
    size = f"{call.payload_bytes:,} B"
    line = f"  {call.phase or '-':<9} {f'{times} x' if times > 1 else '':>6} {what:<14} {size:>16} {call.dtype:<5}"
    return printable(f"{line} {call.group:<16} {call.module}".rstrip()).replace("\n", "\\n")


def _plain(call: RecordedCall) -> dict[str, Any]:
    """Write one call, without the fields that hold nothing."""
    row = asdict(call)
    empty = {item.name: item.default for item in fields(RecordedCall)}
    return {name: value for name, value in row.items() if value != empty[name]}


def axes_of(mesh: Mesh, rank: int, ranks: Sequence[int], *, pair: bool = False) -> tuple[str, ...]:
    """Name the axes along which a group lies: the fewest that span it; () if it is no group of the mesh.

    ``pair`` says that the ranks are two ends of a message: then one axis is enough on which alone they differ.

    >>> mesh = Mesh({"tensor": 2, "data": 4})
    >>> axes_of(mesh, 0, (0, 2, 4, 6)), axes_of(mesh, 0, (0, 6), pair=True), axes_of(mesh, 0, (0, 3))
    (('data',), ('data',), ())
    """
    if any(not 0 <= member < mesh.world_size for member in ranks) or not ranks:
        return ()
    for factors in (mesh.axes, mesh.expert or {}):
        places = [mesh.coordinates(member) for member in ranks]
        along = tuple(axis for axis in factors if len({place[axis] for place in places}) > 1)
        if pair and len(along) == 1:
            return along
        if along and mesh.size(*along) == len(ranks) and mesh.group(rank, along) == tuple(sorted(ranks)):
            return along
    return ()
