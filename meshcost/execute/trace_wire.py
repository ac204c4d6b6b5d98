"""The bytes of a traced step: what Gloo makes of the predicted calls, and what the sockets of a rank counted."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from meshcost.collectives.gloo import Traffic
from meshcost.execute.counters import Bytes
from meshcost.execute.plan import Case
from meshcost.execute.recording import RecordedCall
from meshcost.execute.step import moved
from meshcost.measurement import FRAME_BYTES
from meshcost.units import DTYPE_BYTES
from meshcost.unroll import Call

#: Where a recording keeps what its rank sent and received, step by step, on its TCP sockets.
TCP = "tcp_bytes"


@dataclass(frozen=True, slots=True)
class Wire:
    """What one rank moved in one step: ``predicted`` by payload and messages, ``measured`` on its TCP sockets.

    ``measured`` is None where the kernel does not count.
    """

    predicted: Traffic
    measured: Bytes | None

    @property
    def frame_bytes(self) -> int:
        """The part of the predicted sent bytes that is frames of Gloo, and not payload."""
        return self.predicted.sent_bytes - self.predicted.sent_payload

    @property
    def off_bytes(self) -> int:
        """Bytes by which the prediction is off, in the direction where it is further off."""
        if self.measured is None:
            return 0
        sent = self.measured.sent - self.predicted.sent_bytes
        received = self.measured.received - self.predicted.received_bytes
        return sent if abs(sent) >= abs(received) else received

    @property
    def agrees(self) -> bool:
        """Whether no more than one frame is missing or left over: an answer of Gloo may be late."""
        return abs(self.off_bytes) <= FRAME_BYTES

    def as_dict(self) -> dict[str, Any]:
        """Every number, in bytes, as JSON has it; measured ones are None where nothing counts."""
        return {
            "predicted_sent_bytes": self.predicted.sent_bytes,
            "measured_sent_bytes": self.measured.sent if self.measured else None,
            "predicted_received_bytes": self.predicted.received_bytes,
            "measured_received_bytes": self.measured.received if self.measured else None,
            "frame_bytes": self.frame_bytes,
            "allowed_bytes": FRAME_BYTES,
            "agrees": self.agrees,
        }


def wire_of(
    rank: int, predicted: Sequence[Call], observed: Sequence[RecordedCall], measured: Bytes | None
) -> Wire:
    """Hold the bytes of a step against the calls that are predicted for it.

    A bill does not say who begins a broadcast: those who did, in the recording, are taken where its calls are in order.
    """
    return Wire(moved(_cases(predicted, observed), rank), measured)


def _cases(predicted: Iterable[Call], observed: Sequence[RecordedCall]) -> Iterator[Case]:
    for place, call in enumerate(predicted):
        op = {"send": "send_recv", "recv": "send_recv"}.get(call.op, "rotate" if call.shift else call.op)
        seen = observed[place] if place < len(observed) else None
        begins = seen.root if seen is not None and (seen.op, seen.ranks) == (call.op, call.ranks) else None
        yield Case(
            op,
            call.ranks,
            max(call.in_bytes, call.out_bytes),
            root=call.ranks.index(begins) if begins in call.ranks else 0,
            item_bytes=int(DTYPE_BYTES[call.dtype]),
        )
