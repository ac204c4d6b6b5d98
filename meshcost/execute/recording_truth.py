"""Recordings that others made: files with a list of calls for each rank, with the phases in one word.

The schema is ``{name, torch, config, model, note, ranks: {"0": [call, ...]}}``; a call has ``op raw ranks in_bytes
out_bytes dtype phase`` and, where it applies, ``reduce_op dst src root_rank fqn``. ``dst``, ``src`` and ``root_rank`` count
within the group. A phase is ``s1a0bwd`` (step 1, micro-step 0), ``s0F2st1`` (forward of micro-batch 2 on stage 1) or less.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshcost import document
from meshcost.errors import LedgerError
from meshcost.execute import recording as rec
from meshcost.execute.recording import RecordedCall, Recording
from meshcost.execute.recording_file import OthersCall, OthersRecording, checked

_PHASE = re.compile(
    r"(?:s(?P<step>[0-9]{1,9}))?(?:a(?P<micro>[0-9]{1,9}))?"
    r"(?P<what>init|prepare|pre|fwd|loss|bwd|clip(?:_\w+)?|opt|pp|META[FB]st[0-9]{1,9}|(?P<kind>[FB])(?P<chunk>[0-9]{1,9})st[0-9]{1,9})?"
)
_WHAT: Mapping[str, str] = {
    "init": rec.SETUP,
    "prepare": rec.SETUP,
    "pre": rec.FORWARD,
    "fwd": rec.FORWARD,
    "loss": rec.FORWARD,
    "bwd": rec.BACKWARD,
    "opt": rec.OPTIMIZER,
    "F": rec.FORWARD,
    "B": rec.BACKWARD,
}

#: Names of data types in torch, and here.
DTYPES: Mapping[str, str] = {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}


def read_truth(source: str | Path | Mapping[str, Any], text: str = "") -> dict[int, Recording]:
    """Read a recording of others: a path, or what the JSON holds (and its text). Returns a Recording for each rank in it.

    A call that belongs to no step (``init``) has phase ``setup`` and step 0; a phase that does not say what was computed
    (``s0`` alone, ``s0pp``) is "". Raises LedgerError for anything else.
    """
    data, text = (source, text) if isinstance(source, Mapping) else document.read_json_text(Path(source))
    read = checked(OthersRecording, data, text)
    about = {name: data[name] for name in ("name", "torch", "config", "model", "note") if name in data}
    found: dict[int, Recording] = {}
    for rank, items in read.ranks.items():
        calls: list[RecordedCall] = []
        for at, item in enumerate(items):
            try:
                calls.append(_call(int(rank), item, read.config.world))
            except LedgerError as error:
                where = ("ranks", rank, at)
                line = f"line {document.line_of(text, where)}: " if text else ""
                raise error.located(f"{line}{'.'.join(map(str, where))}") from None
        found[int(rank)] = Recording(int(rank), read.config.world, tuple(calls), about)
    return found


def read_phase(text: str) -> tuple[int, int | None, str]:
    """Read a phase: step, micro-batch (None where it is not said), phase.

    >>> read_phase("s1a0bwd"), read_phase("clip_g1"), read_phase("s0F2st1"), read_phase("s0")
    ((1, 0, 'backward'), (0, None, 'clip'), (0, 2, 'forward'), (0, None, ''))
    """
    match = _PHASE.fullmatch(text)
    if match is None:
        raise LedgerError(f"phase {text!r} is not known.")
    what, micro = match["what"] or "", match["micro"] or match["chunk"]
    if what.startswith("META"):
        phase = _WHAT[what[4]]
    elif what.startswith("clip"):
        phase = rec.CLIP
    else:
        phase = _WHAT.get(match["kind"] or what, rec.UNKNOWN_PHASE)
    return int(match["step"] or 0), None if micro is None else int(micro), phase


def _call(rank: int, item: OthersCall, world: int) -> RecordedCall:
    group = tuple(item.ranks)
    if strange := [member for member in (rank, *group) if not 0 <= member < world]:
        raise LedgerError(f"{strange[0]} is no rank of a world of {world}; ranks are 0 to {world - 1}.")
    step, micro_batch, phase = read_phase(item.phase)
    place = next((place for place in (item.root_rank, item.dst, item.src) if place is not None), None)
    if place is not None and place >= len(group):
        raise LedgerError(f"there is no place {place} in a group of {len(group)}.")
    root = None if place is None else group[place]
    ranks = {"send": (rank, root), "recv": (root, rank)}.get(item.op, group)
    return RecordedCall(
        op=item.op,
        ranks=tuple(member for member in ranks if member is not None),
        in_bytes=item.in_bytes,
        out_bytes=item.out_bytes,
        dtype=DTYPES.get(item.dtype, item.dtype),
        phase=phase,
        module=item.fqn,
        reduce_op=item.reduce_op,
        raw=item.raw,
        step=step,
        micro_batch=micro_batch,
        root=None if item.op in ("send", "recv") else root,
    )
