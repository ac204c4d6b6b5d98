"""Kinds of calls: what has to be alike so that a call of one side is the call of the other."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from meshcost.execute import recording as rec


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


def phases_alike(*sides: Iterable[CallLike]) -> Mapping[str, str]:
    """How to name phases so that both sides can be held against each other."""
    known = [{call.phase for call in calls} for calls in sides]
    if any(rec.UNKNOWN_PHASE in phases for phases in known):
        return dict.fromkeys(rec.RECORDED_PHASES, "")
    if all(rec.CLIP in phases for phases in known):
        return {}
    return {rec.CLIP: rec.OPTIMIZER}


def kind_of(call: CallLike, phase: Mapping[str, str]) -> Kind:
    """What kind of call it is, with phases named as ``phases_alike`` says."""
    ranks = call.ranks if call.op in ("send", "recv") else tuple(sorted(call.ranks))
    return phase.get(call.phase, call.phase), call.op, ranks, call.dtype, call.in_bytes, call.out_bytes
