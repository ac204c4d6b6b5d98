"""Holding calls against calls: what was predicted, or recorded once, against what was observed."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshcost import document
from meshcost.errors import LedgerError, MeshcostError
from meshcost.execute.call_kinds import CallLike, kind_of, phases_alike
from meshcost.execute.likely_reasons import Evidence
from meshcost.execute.recording import Recording
from meshcost.execute.recording_truth import read_truth
from meshcost.ledger import Ledger

#: Set to 1, it makes ``assert_same`` write the file that it would otherwise compare with; and where its relative paths
#: start, which the pytest plugin sets to the folder of the test that runs.
UPDATE, FOLDER = "MESHCOST_UPDATE", "MESHCOST_FOLDER"

#: Files of the folder that ``meshcost record`` writes.
RANK_FILES = "rank-*.json"

#: What the two sides of a comparison are called.
PREDICTION, FILE = ("predicted", "observed"), ("expected", "found")


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

    def line(self, sides: tuple[str, str] = PREDICTION) -> str:
        """One line for a person, who knows the two sides by some names."""
        size = f"{max(self.in_bytes, self.out_bytes):,}".replace(",", " ")
        counts = f"{sides[0]} {self.predicted}   {sides[1]} {self.observed}"
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
    phase = phases_alike(ours, theirs)
    left, right = (Counter(kind_of(call, phase) for call in calls) for calls in (ours, theirs))
    wrong = [kind for kind in {**left, **right} if left[kind] != right[kind]]
    evidence = Evidence(ours, theirs, phase, left, right)
    return tuple(Mismatch(rank, *kind, left[kind], right[kind], evidence.reason(kind)) for kind in wrong)


def first_out_of_order(predicted: Iterable[CallLike], observed: Iterable[CallLike]) -> int | None:
    """Place of the first call that is not the predicted one; None if the two runs are equal call by call."""
    ours, theirs = list(predicted), list(observed)
    phase = phases_alike(ours, theirs)
    for place, (mine, yours) in enumerate(zip(ours, theirs, strict=False)):
        if kind_of(mine, phase) != kind_of(yours, phase):
            return place
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def text_of(mismatches: Iterable[Mismatch], title: str, sides: tuple[str, str] = PREDICTION) -> str:
    """Write mismatches for a person, the largest first.

    >>> print(text_of([Mismatch(0, "forward", "all_gather", (0, 1), "fp32", 4, 8, 4, 5, "the root")], "fsdp on data 2"))
    mismatch: fsdp on data 2
        all_gather     forward                 8 B fp32  predicted 4   observed 5    <-- the root
    """
    worst = sorted(mismatches, key=lambda x: -abs(x.predicted - x.observed) * max(x.in_bytes, x.out_bytes, 1))
    return "\n".join([f"mismatch: {title}", *(mismatch.line(sides) for mismatch in worst)])


def assert_same(
    observed: Ledger | Recording | Mapping[int, Recording], path: str | Path, tolerance: float = 0
) -> None:
    """Hold a ledger, a recording, or one recording for each rank against a file; raise NotTheSame if they differ.

    The file is what ``Recording.save``, ``Ledger.to_dict`` or this function wrote (run once with MESHCOST_UPDATE=1).
    With a ``tolerance`` of 0, each kind of call (phase, operation, group, data type, bytes in and out) has to be there as
    often. Otherwise calls are not counted: for each phase, operation, group and data type, the bytes of all its calls
    together (of each, the larger of what goes in and out) may differ from those of the file by this share of them: 0.05
    is 5 %, and what the file has not at all may not be there. In a test that pytest runs, a relative path starts at the
    folder of the test. NotTheSame is an AssertionError too, so that pytest shows it as a failure.
    """
    __tracebackhide__ = True  # a test that fails shows the line of the test
    path = Path(os.environ.get(FOLDER, "")) / path
    if not 0 <= tolerance < float("inf"):
        raise LedgerError(f"tolerance: {tolerance} is no share of bytes. Choose 0, or more, as 0.05 for 5 %.")
    if os.environ.get(UPDATE) == "1":
        path.write_text(json.dumps(_document(observed), indent=1) + "\n")
        return
    if not path.is_file():
        raise NotTheSame(
            f"{path}: no such file. Write it by running once with {UPDATE}=1, or with pytest --meshcost-update."
        )
    found: dict[str, list[int]] = {}
    for rank, expected, seen in _pairs(_read_file(path), observed, path):
        text = ""
        if tolerance:
            text = _sums_text(_sums(expected, seen, tolerance), tolerance)
        elif wrong := differences(expected, seen, rank=rank):
            text = text_of(wrong, "{}", FILE)
        if text:
            found.setdefault(text, []).append(rank)
    if found:
        raise NotTheSame(
            text.replace("{}", f"{_named(ranks, observed)}, where {path.name} is what is expected", 1)
            for text, ranks in found.items()
        )


def _read_file(path: Path) -> Ledger | dict[int, Recording]:
    """Read a ledger or recordings. Raises LedgerError, naming the file, for anything else."""
    __tracebackhide__ = True
    data, text = document.read_json_text(path)
    try:
        return _read(data, text)
    except MeshcostError as error:
        raise error.located(str(path)) from None


def _named(ranks: list[int], observed: Ledger | Recording | Mapping[int, Recording]) -> str:
    """Name ranks; a ledger's by their stages, where it has more than one."""
    if isinstance(observed, Ledger) and observed.mesh.stages > 1:
        ranks, noun = [observed.mesh.stage(rank) for rank in ranks], "stage"
    else:
        noun = "rank"
    return f"{noun if len(ranks) == 1 else noun + 's'} {', '.join(map(str, ranks))}"


def _document(observed: Ledger | Recording | Mapping[int, Recording]) -> dict[str, Any]:
    if isinstance(observed, Mapping):
        return {"recordings": [recording.to_dict() for recording in observed.values()]}
    return observed.to_dict()


def _pairs(
    expected: Ledger | dict[int, Recording],
    observed: Ledger | Recording | Mapping[int, Recording],
    path: Path,
) -> Iterable[tuple[int, list[CallLike], list[CallLike]]]:
    """Match the ranks of a file with those observed. A ledger answers for every rank."""
    __tracebackhide__ = True
    if isinstance(observed, Recording):
        observed = {observed.rank: observed}
    here, there = _world(expected), _world(observed)
    if here != there:
        raise NotTheSame(f"{path}: is of a world of {here} ranks, and what was observed of one of {there}.")
    if isinstance(expected, Ledger):
        ranks = list(observed) if isinstance(observed, Mapping) else _one_for_each_stage(expected)
    else:
        ranks = list(expected)
        if isinstance(observed, Mapping) and set(observed) != set(expected):
            raise NotTheSame(f"{path}: has ranks {sorted(expected)}, but {sorted(observed)} were observed.")
    return [(rank, _calls(expected, rank), _calls(observed, rank)) for rank in ranks]


def _world(side: Ledger | Mapping[int, Recording]) -> int:
    """Ranks of the world that a side is of."""
    if isinstance(side, Ledger):
        return side.mesh.world_size
    return max((recording.world_size for recording in side.values()), default=0)


def _one_for_each_stage(ledger: Ledger) -> list[int]:
    first: dict[int, int] = {}
    for rank in range(ledger.mesh.world_size):
        first.setdefault(ledger.mesh.stage(rank), rank)
    return list(first.values())


def _calls(side: Ledger | Mapping[int, Recording], rank: int) -> list[CallLike]:
    return list(side.calls(rank)) if isinstance(side, Ledger) else list(side[rank].calls)


def _read(data: Any, text: str) -> Ledger | dict[int, Recording]:
    if not isinstance(data, dict) or not {"meshcost", "ranks", "recordings", "meshcost_recording"} & set(
        data
    ):
        raise LedgerError("neither a ledger nor a recording.")
    if "meshcost" in data:
        return Ledger.from_dict(data)
    if "ranks" in data:
        return read_truth(data, text)
    if "recordings" in data:
        return Recording.all_from_dict(data, text)
    recording = Recording.from_dict(data, text)
    return {recording.rank: recording}


def read_recordings(path: str | Path) -> dict[int, Recording]:
    """Read a file of recordings, ours or those of others, or the folder that ``meshcost record`` wrote, by rank.

    Raises LedgerError for anything else.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(path.glob(RANK_FILES))
        if not files:
            raise LedgerError(f"{path}: a folder without {RANK_FILES}, which meshcost record writes.")
        each = [read_recordings(file) for file in files]
        return {rank: recording for found in each for rank, recording in found.items()}
    found = _read_file(path)
    if isinstance(found, Ledger):
        raise LedgerError(f"{path}: a ledger, not a recording.")
    return found


#: Phase, operation, ranks and data type; bytes expected, bytes found.
_Sum = tuple[tuple[str, str, tuple[int, ...], str], int, int]


def _sums(expected: list[CallLike], found: list[CallLike], tolerance: float) -> list[_Sum]:
    """Compare bytes and not calls: those of one phase, operation, group and data type together."""
    phase = phases_alike(expected, found)
    sums: dict[tuple[str, str, tuple[int, ...], str], list[int]] = {}
    for side, calls in enumerate((expected, found)):
        for call in calls:
            kind = kind_of(call, phase)
            sums.setdefault(kind[:4], [0, 0])[side] += max(kind[4:])
    return [
        (kind, ours, theirs) for kind, (ours, theirs) in sums.items() if abs(ours - theirs) > tolerance * ours
    ]


def _sums_text(sums: list[_Sum], tolerance: float) -> str:
    """Write sums of bytes that differ for a person, the largest first; "" where none does."""
    lines = [f"mismatch: {{}}, give or take {tolerance:.6g} of the bytes of each kind"]
    for (phase, op, _, dtype), ours, theirs in sorted(sums, key=lambda x: -abs(x[1] - x[2])):
        share = f"{(theirs - ours) / ours:+.2%}" if ours else "new"
        here, there = (f"{number:,} B".replace(",", " ") for number in (ours, theirs))
        lines.append(
            f"    {op:<14} {phase or '-':<9} {dtype:<5} {FILE[0]} {here}   {FILE[1]} {there}   {share}"
        )
    return "\n".join(lines) if sums else ""
