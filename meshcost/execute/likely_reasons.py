"""Why two runs of calls may differ: a reason is named only where what was seen fits it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshcost.execute import recording as rec
from meshcost.execute.call_kinds import CallLike, Kind, kind_of

#: Operations in which torch pads what it cuts, and in which fully_shard collects and reduces weights.
_SHARDED = ("all_gather", "reduce_scatter")
_REPLICATED = ("ddp", "zero1")


@dataclass(frozen=True)
class Evidence:
    """Both sides of a comparison, and how often each kind of call is on them.

    A predicted call says whose strategy makes it and in which unit, a recorded one which module caused it.
    """

    predicted: Sequence[CallLike]
    observed: Sequence[CallLike]
    phase: Mapping[str, str]
    left: Mapping[Kind, int]
    right: Mapping[Kind, int]

    def reason(self, kind: Kind) -> str:
        """The likely reason why a kind of call is on one side more often; '' where nothing points to one."""
        _, op, ranks, dtype, *sizes = kind
        size = max(sizes)
        if op == rec.UNKNOWN:
            return "an operation that is not known; its raw name is in the recording"
        if op in ("send", "recv") and (dtype in ("uint8", "int64") or (dtype == "int32" and size == 4)):
            return "pipelining agrees on shapes in its first step"
        if op == "broadcast" and self._is_of_buckets(kind):
            return "data parallelism agrees on its buckets in its first steps"
        if near := self._nearly(kind):
            said = f"{near:,} B on the other side".replace(",", " ")
            return f"{said}: padding" if op in _SHARDED and not max(near, size) % len(ranks) else said
        if op in _SHARDED and self._is_of_root(kind):
            return "the root group: weights in no unit of their own"
        return ""

    def _calls(self, kind: Kind) -> list[CallLike]:
        """Calls of a kind, of the side that has more of them."""
        side = self.observed if self.right.get(kind, 0) > self.left.get(kind, 0) else self.predicted
        return [call for call in side if kind_of(call, self.phase) == kind]

    def _is_of_buckets(self, kind: Kind) -> bool:
        """Two such messages follow each other: the order of gradients, and the sizes of the buckets."""
        if kind[3] != "int32":
            return False
        if any(getattr(call, "strategy", "") in _REPLICATED for call in self._calls(kind)):
            return True
        alike = [other for other in {**self.left, **self.right} if other[:4] == kind[:4]]
        return len([other for other in alike if self.left.get(other) != self.right.get(other)]) == 2

    def _nearly(self, kind: Kind) -> int:
        """Size of a call that the other side has in place of this one, if it is nearly as large; else 0."""
        here = self.left.get(kind, 0) - self.right.get(kind, 0)
        for other in {**self.left, **self.right}:
            there = self.left.get(other, 0) - self.right.get(other, 0)
            size, near = max(kind[4:]), max(other[4:])
            if other[:4] == kind[:4] and here == -there and 0 < abs(near - size) < 0.1 * max(near, size):
                return near
        return 0

    def _is_of_root(self, kind: Kind) -> bool:
        """Recorded for the root itself, where the same operation on the same ranks is recorded for parts of it too."""
        parts = {
            getattr(call, "module", "")
            for call in self.observed
            if (call.op, call.ranks) == (kind[1], kind[2])
        }
        return bool(parts - {""}) and all(getattr(call, "module", None) == "" for call in self._calls(kind))
