"""Holding calls against calls: what was predicted, or recorded once, against what was observed."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from meshcost.errors import LedgerError, MeshcostError
from meshcost.execute import recording as rec
from meshcost.execute.recording import Recording
from meshcost.execute.recording_truth import read_truth
from meshcost.ledger import Ledger

#: Set to 1, it makes ``assert_same`` write the file that it would otherwise compare with.
UPDATE = "MESHCOST_UPDATE"


class CallLike(Protocol):
    """What a comparison looks at: a call that was predicted, or one that was recorded."""

    @property
    def op(self) -> str:
        """Name of the operation."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of the group, or (source, destination)."""

    @property
    def in_bytes(self) -> int:
        """Bytes that this rank puts in."""

    @property
    def out_bytes(self) -> int:
        """Bytes that this rank gets out."""

    @property
    def dtype(self) -> str:
        """Data type of the buffer."""

    @property
    def phase(self) -> str:
        """Phase of the step."""


#: Phase, operation, ranks, data type, bytes in, bytes out.
Kind = tuple[str, str, tuple[int, ...], str, int, int]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A kind of call that was predicted a different number of times than it was observed."""

    rank: int
    phase: str
    op: str
    ranks: tuple[int, ...]
    dtype: str
    in_bytes: int
    out_bytes: int
    predicted: int
    observed: int
    reason: str = ""

    @property
    def line(self) -> str:
        """One line for a person."""
        size = f"{max(self.in_bytes, self.out_bytes):,}".replace(",", " ")
        counts = f"predicted {self.predicted}   observed {self.observed}"
        line = f"    {self.op:<14} {self.phase or '-':<9} {size:>15} B {self.dtype:<5} {counts}"
        return f"{line}    <-- {self.reason}" if self.reason else line


class NotTheSame(MeshcostError, AssertionError):
    """Two recordings, or a ledger and a recording, differ."""


def differences(
    predicted: Iterable[CallLike], observed: Iterable[CallLike], *, rank: int = 0
) -> tuple[Mismatch, ...]:
    """Compare two runs of calls as multisets of (phase, op, ranks, dtype, bytes in, bytes out); empty if equal.

    A side that does not tell clipping from the optimizer has both as ``optimizer``; if a side does not know a phase,
    phases are left out of the comparison.
    """
    ours, theirs = list(predicted), list(observed)
    phase = _phases(ours, theirs)
    left, right = (Counter(_kind(call, phase) for call in calls) for calls in (ours, theirs))
    wrong = [kind for kind in {**left, **right} if left[kind] != right[kind]]
    return tuple(
        Mismatch(rank, *kind, left[kind], right[kind], _reason(kind, left[kind], right[kind], wrong))
        for kind in wrong
    )


def first_out_of_order(predicted: Iterable[CallLike], observed: Iterable[CallLike]) -> int | None:
    """Place of the first call that is not the predicted one; None if the two runs are equal call by call."""
    ours, theirs = list(predicted), list(observed)
    phase = _phases(ours, theirs)
    for place, (mine, yours) in enumerate(zip(ours, theirs, strict=False)):
        if _kind(mine, phase) != _kind(yours, phase):
            return place
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def _phases(*sides: Iterable[CallLike]) -> Mapping[str, str]:
    """How to name phases so that both sides can be held against each other."""
    known = [{call.phase for call in calls} for calls in sides]
    if any(rec.UNKNOWN_PHASE in phases for phases in known):
        return dict.fromkeys(rec.RECORDED_PHASES, "")
    if all(rec.CLIP in phases for phases in known):
        return {}
    return {rec.CLIP: rec.OPTIMIZER}


def _kind(call: CallLike, phase: Mapping[str, str]) -> Kind:
    ranks = call.ranks if call.op in ("send", "recv") else tuple(sorted(call.ranks))
    return phase.get(call.phase, call.phase), call.op, ranks, call.dtype, call.in_bytes, call.out_bytes


def _reason(kind: Kind, predicted: int, observed: int, wrong: Iterable[Kind]) -> str:
    """Guess why, from what is typical; '' where nothing is."""
    phase, op, _, dtype, *sizes = kind
    size = max(sizes)
    if op == rec.UNKNOWN:
        return "an operation that is not known; its raw name is in the recording"
    if op in ("send", "recv") and (dtype in ("uint8", "int64") or (dtype == "int32" and size == 4)):
        return "pipelining agrees on shapes in its first step"
    if op == "broadcast" and dtype in ("int32", "int64"):
        return "data parallelism agrees on its buckets in its first steps"
    for other in wrong:
        near = max(other[4:])
        if other[:4] == kind[:4] and other != kind and 0 < abs(near - size) < 0.1 * max(near, size):
            return f"{near:,} B on the other side: padding".replace(",", " ")
    if op in ("all_gather", "reduce_scatter") and abs(predicted - observed) == 1:
        return "the root group: embedding and head"
    if op == "all_reduce" and phase == rec.BACKWARD and observed < predicted:
        return "an input without gradient"
    return "" if predicted else "nothing predicts it"


def text_of(mismatches: Iterable[Mismatch], title: str) -> str:
    """Write mismatches for a person, the largest first.

    >>> print(text_of([Mismatch(0, "forward", "all_gather", (0, 1), "fp32", 4, 8, 4, 5, "the root")], "fsdp on data=2"))
    mismatch: fsdp on data=2
        all_gather     forward                 8 B fp32  predicted 4   observed 5    <-- the root
    """
    worst = sorted(mismatches, key=lambda x: -abs(x.predicted - x.observed) * max(x.in_bytes, x.out_bytes, 1))
    return "\n".join([f"mismatch: {title}", *(mismatch.line for mismatch in worst)])


def assert_same(
    observed: Ledger | Recording | Mapping[int, Recording], path: str | Path, tolerance: float = 0
) -> None:
    """Hold a ledger, a recording, or one recording for each rank against a file; raise NotTheSame if they differ.

    The file is what ``Recording.save``, ``Ledger.to_dict`` or this function wrote (run once with MESHCOST_UPDATE=1).
    ``tolerance`` is the share by which the bytes of all calls of one operation, phase, group and data type may differ;
    0 compares call by call. NotTheSame is an AssertionError too, so that pytest shows it as a failure.
    """
    path = Path(path)
    if os.environ.get(UPDATE) == "1":
        path.write_text(json.dumps(_document(observed), indent=1) + "\n")
        return
    if not path.is_file():
        raise NotTheSame(f"{path}: no such file. Write it by running once with {UPDATE}=1.")
    found: list[Mismatch] = []
    for rank, expected, seen in _pairs(json.loads(path.read_text()), observed):
        found += (
            differences(expected, seen, rank=rank)
            if not tolerance
            else _sums(expected, seen, tolerance, rank)
        )
    if found:
        raise NotTheSame(text_of(found, f"{path.name} is what was expected"))


def _document(observed: Ledger | Recording | Mapping[int, Recording]) -> dict[str, Any]:
    if isinstance(observed, Mapping):
        return {"recordings": [recording.to_dict() for recording in observed.values()]}
    return observed.to_dict()


def _pairs(
    data: Mapping[str, Any], observed: Ledger | Recording | Mapping[int, Recording]
) -> Iterable[tuple[int, list[CallLike], list[CallLike]]]:
    """Match the ranks of a file with those observed. A ledger answers for every rank."""
    expected = _read(data)
    if isinstance(observed, Recording):
        observed = {observed.rank: observed}
    if isinstance(expected, Ledger):
        mesh = expected.mesh
        ranks = list(observed) if isinstance(observed, Mapping) else _one_for_each_stage(expected)
    else:
        mesh = None
        ranks = list(expected)
        if isinstance(observed, Mapping) and set(observed) != set(expected):
            raise NotTheSame(f"the file has ranks {sorted(expected)}, but {sorted(observed)} were observed.")
    if isinstance(observed, Ledger) and mesh is not None and mesh.world_size != observed.mesh.world_size:
        raise NotTheSame(f"the file has {mesh.world_size} ranks, not {observed.mesh.world_size}.")
    return [(rank, _calls(expected, rank), _calls(observed, rank)) for rank in ranks]


def _one_for_each_stage(ledger: Ledger) -> list[int]:
    first: dict[int, int] = {}
    for rank in range(ledger.mesh.world_size):
        first.setdefault(ledger.mesh.stage(rank), rank)
    return list(first.values())


def _calls(side: Ledger | Mapping[int, Recording], rank: int) -> list[CallLike]:
    return list(side.calls(rank)) if isinstance(side, Ledger) else list(side[rank].calls)


def _read(data: Mapping[str, Any]) -> Ledger | dict[int, Recording]:
    if "meshcost" in data:
        return Ledger.from_dict(data)
    if "ranks" in data:
        return read_truth(data)
    many = data.get("recordings", [data])
    return {recording.rank: recording for recording in map(Recording.from_dict, many)}


def read_recordings(path: str | Path) -> dict[int, Recording]:
    """Read a file of recordings, ours or those of others, by rank. Raises LedgerError for anything else."""
    try:
        found = _read(json.loads(Path(path).read_text()))
    except (OSError, ValueError) as error:
        raise LedgerError(f"{path}: {error}") from None
    if isinstance(found, Ledger):
        raise LedgerError(f"{path}: a ledger, not a recording.")
    return found


def _sums(predicted: list[CallLike], observed: list[CallLike], tolerance: float, rank: int) -> list[Mismatch]:
    """Compare bytes and not calls: those of one phase, operation, group and data type together."""
    phase = _phases(predicted, observed)
    sums: dict[tuple[str, str, tuple[int, ...], str], list[int]] = {}
    for side, calls in enumerate((predicted, observed)):
        for call in calls:
            kind = _kind(call, phase)
            sums.setdefault(kind[:4], [0, 0])[side] += max(kind[4:])
    return [
        Mismatch(rank, *kind, ours, theirs, ours, theirs, f"bytes differ by more than {tolerance:.2%}")
        for kind, (ours, theirs) in sums.items()
        if abs(ours - theirs) > tolerance * ours
    ]
