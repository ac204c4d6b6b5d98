"""A measurement: one rank in one call, what was predicted of it and what was counted. Plain data, no torch."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter

#: Bytes that any rank may differ by: one frame of Gloo, an answer that was late or early.
FRAME_BYTES = 144
_MIB = 2**20
#: A network interface counts headers, acknowledgements and other traffic too: 0.2 to 1.3 % measured, 5 % at worst.
_INTERFACE_SHARE, _INTERFACE_BYTES = 0.05, 64 * 1024


#: What a row that is read may hold: bytes and ranks, seconds and rates.
Count = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Key(NamedTuple):
    """A call that was measured: how, what, on how much, among whom."""

    backend: str
    device: str
    algorithm: str
    op: str
    ranks: int
    payload_bytes: int
    group: tuple[int, ...]

    @property
    def kind(self) -> tuple[Any, ...]:
        """The same without the group: those of one axis make calls of one kind."""
        return self[:-1]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One rank in one call.

    ``payload_bytes`` is the S of nccl-tests. ``rank`` is None where only the sum over all ranks could be counted.
    Measured bytes are None where nothing could be counted. ``seconds`` is the time of the call: that of its slowest rank,
    the mean of all iterations; ``rank_seconds`` is that of this rank. ``algbw`` and ``busbw`` (bytes/s) are those of
    nccl-tests for ``seconds``. ``on`` names the axes of the mesh along which a job makes the call, ``group`` the ranks that
    do. ``algorithm``
    is whose form predicts: ``gloo`` or ``nccl`` for what the library does itself (``note`` says what NCCL chose), the
    name of an algorithm of the shelf for a schedule that was interpreted over point-to-point messages. ``iterations``
    calls were counted and divided. ``frame_bytes`` is the part of the predicted sent bytes that is frames.

    ``billed_sent_bytes`` is what the bill says of a whole step (``op`` is then ``step``), without any frame; where
    ``algorithm`` is ``bill``, the step was executed with the bill's own algorithms, and the two have to be equal.
    """

    op: str
    ranks: Count
    payload_bytes: Count
    rank: Count | None
    predicted_sent_bytes: Count
    measured_sent_bytes: int | None
    predicted_received_bytes: Count
    measured_received_bytes: int | None
    correct: bool
    seconds: Rate
    algbw: Rate
    busbw: Rate
    algorithm: str = "gloo"
    backend: str = "gloo"
    counter: str = "tcp_info"
    device: str = "cpu"
    iterations: Annotated[int, Field(ge=1)] = 1
    note: str = ""
    predicted_seconds: Rate | None = None
    frame_bytes: Count = 0
    billed_sent_bytes: Count | None = None
    rank_seconds: Rate = 0.0
    on: str = ""
    group: tuple[Count, ...] = ()

    @property
    def key(self) -> Key:
        """What was measured, without the rank."""
        return Key(
            self.backend, self.device, self.algorithm, self.op, self.ranks, self.payload_bytes, self.group
        )

    @property
    def off_bytes(self) -> int | None:
        """Bytes by which the prediction is off, in the direction where it is further off; None if uncounted."""
        if self.measured_sent_bytes is None or self.measured_received_bytes is None:
            return None
        sent = self.measured_sent_bytes - self.predicted_sent_bytes
        received = self.measured_received_bytes - self.predicted_received_bytes
        return sent if abs(sent) >= abs(received) else received

    @property
    def off_share(self) -> float | None:
        """The same, as a share of the bytes predicted in that direction."""
        off = self.off_bytes
        if off is None or self.measured_sent_bytes is None:
            return None
        is_sent = self.measured_sent_bytes - self.predicted_sent_bytes == off
        whole = self.predicted_sent_bytes if is_sent else self.predicted_received_bytes
        return off / whole if whole else float(off != 0)

    @property
    def agrees(self) -> bool:
        """Whether every prediction that could be counted is within what is allowed."""
        pairs = (
            (self.predicted_sent_bytes, self.measured_sent_bytes),
            (self.predicted_received_bytes, self.measured_received_bytes),
        )
        return self.pays_the_bill and all(
            measured is None
            or abs(measured - predicted) <= allowed_bytes(predicted, self.payload_bytes, self.counter)
            for predicted, measured in pairs
        )

    @property
    def pays_the_bill(self) -> bool:
        """Whether what was sent in frames is what the bill says; True where the bill is not what was executed."""
        if self.algorithm != "bill" or self.billed_sent_bytes is None or self.measured_sent_bytes is None:
            return True
        off = self.measured_sent_bytes - self.frame_bytes - self.billed_sent_bytes
        return abs(off) <= allowed_bytes(self.billed_sent_bytes, self.payload_bytes, self.counter)

    @property
    def passed(self) -> bool:
        """Whether the result was right and the prediction too."""
        return self.correct and self.agrees

    def as_dict(self) -> dict[str, Any]:
        """Name every value, as JSON has it."""
        return asdict(self)


def allowed_bytes(predicted_bytes: int, payload_bytes: int, counter: str = "tcp_info") -> int:
    """Bytes that a measurement may differ by: 0.1 % from a payload of 8 MiB on, below it 1 %, at least one frame.

    >>> allowed_bytes(8 * 2**20, 8 * 2**20), allowed_bytes(2**20, 2**20), allowed_bytes(48, 2**20)
    (8388, 10485, 144)
    """
    if counter in ("interface", "nvlink"):
        return int(predicted_bytes * _INTERFACE_SHARE) + _INTERFACE_BYTES
    share = 0.001 if payload_bytes >= 8 * _MIB else 0.01
    return max(int(predicted_bytes * share), FRAME_BYTES)


def from_dict(row: Mapping[str, Any]) -> Measurement:
    """Read what ``as_dict`` wrote; fields of later versions are left out.

    Raises TypeError for what is no mapping, and ValueError for fields that are missing or not of their kind.

    >>> from_dict({"op": "reduce", "ranks": "x"})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    pydantic_core._pydantic_core.ValidationError: ...
    """
    if not isinstance(row, Mapping):
        raise TypeError("a row is a mapping of fields")
    names = {field.name for field in fields(Measurement)}
    found = {name: value for name, value in row.items() if name in names}
    read = _reader().validate_json(json.dumps(found), strict=True)
    if read.group and (len(set(read.group)) != read.ranks or read.rank not in (None, *read.group)):
        raise ValueError(f"rank {read.rank} of {read.ranks} is none of group {list(read.group)}")
    return read


@cache
def _reader() -> TypeAdapter[Measurement]:
    return TypeAdapter(Measurement)
