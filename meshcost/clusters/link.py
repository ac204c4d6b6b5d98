"""Links: how long a message takes to start and how fast its bytes follow. Every number says where it comes from."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

LinkClass = Literal["intra_node", "inter_node"]
#: A number is about one accelerator and one direction, so that nobody has to guess whether a factor of two is in it.
Direction = Literal["per direction, per rank", "one message"]

_BYTES_PER_SECOND: Mapping[str, float] = {"B/s": 1.0, "GB/s": 1e9, "GiB/s": float(2**30), "Gb/s": 1e9 / 8}
_SECONDS: Mapping[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Source = Annotated[str, Field(min_length=8)]


class _Written(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Bandwidth(_Written):
    """Bytes that one rank can send in a second over a link, in one direction.

    >>> Bandwidth(value=400, unit="Gb/s", direction="per direction, per rank", source="a data sheet").bytes_per_second
    50000000000.0
    """

    value: _Positive
    unit: Literal["B/s", "GB/s", "GiB/s", "Gb/s"]
    direction: Literal["per direction, per rank"]
    source: _Source

    @property
    def bytes_per_second(self) -> float:
        """The value in bytes per second."""
        return self.value * _BYTES_PER_SECOND[self.unit]


class Latency(_Written):
    """Time that one round of messages takes before its bytes count, sender to receiver.

    >>> Latency(value=2, unit="us", direction="one message", source="a measurement").seconds
    2e-06
    """

    value: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    unit: Literal["s", "ms", "us", "ns"]
    direction: Literal["one message"]
    source: _Source

    @property
    def seconds(self) -> float:
        """The value in seconds."""
        return self.value * _SECONDS[self.unit]


class Fit(_Written):
    """How well the two numbers describe what was measured.

    ``error`` is the median of |predicted - measured| / measured. ``payload_bytes`` is the range that was measured, and
    ``linear_bytes`` the part of it in which prediction and measurement are within a factor of 1.5 of each other.
    """

    error: Annotated[float, Field(ge=0)]
    points: Annotated[int, Field(ge=2)]
    payload_bytes: tuple[int, int]
    linear_bytes: tuple[int, int] | None = None


class Speed(_Written):
    """Latency and bandwidth of one kind of transfer."""

    latency: Latency
    bandwidth: Bandwidth
    fit: Fit | None = None

    def seconds(self, *, rounds: float, sent_bytes: float) -> float:
        """Time of a transfer: rounds x latency + bytes / bandwidth."""
        return rounds * self.latency.seconds + sent_bytes / self.bandwidth.bytes_per_second


class Link(Speed):
    """A class of links; ``operations`` holds those operations whose speed has been measured apart.

    ``adapters`` are the network adapters of one node, where a bandwidth is that of one of them. Each rank sends by one
    adapter; where a node has fewer of them than ranks, these take turns. Without it, every rank has one for itself.
    """

    adapters: Annotated[int, Field(strict=True, ge=1)] | None = None
    operations: Mapping[str, Speed] = Field(default_factory=dict)

    def speed(self, op: str) -> Speed:
        """The speed of an operation: its own where there is one, the link's otherwise."""
        return self.operations.get(op, self)
