"""The fields of a ledger file, each of one kind: what Pydantic refuses before anything is looked at together."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from meshcost.event import Phase
from meshcost.schedule import PLACEMENT
from meshcost.sharding import Sharding
from meshcost.torch_program import Reduction

Natural = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[int, Field(strict=True, ge=1, le=2**40)]
Time = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=20_000)]


class Record(BaseModel):
    """Base of all of them: frozen, and an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class FormulaRecord(Record):
    """Closed forms of one event, as text over the alphabet."""

    payload: Text
    count: Text
    sent: Text
    received: Text


class MovedRecord(Record):
    """Bytes that the busiest rank of an event moves, and all ranks together."""

    sent_bytes: Natural
    received_bytes: Natural
    intra_node_bytes: Natural
    inter_node_bytes: Natural
    cluster_sent_bytes: Natural
    cluster_inter_node_bytes: Natural


class OneCallRecord(MovedRecord):
    """What one call costs."""

    rail_bytes: Natural
    rounds: Natural
    inter_node_rounds: Natural


class SiteRecord(Record):
    """Where in a step an event happens."""

    unit: Text
    order: tuple[int, ...]
    repeat: Natural
    micro_batches: Literal["every", "first", "last"]
    from_layer: Natural = 0


class EventRecord(MovedRecord):
    """One event with all its numbers: bytes are those of all its calls."""

    strategy: Text
    op: Text
    axes: tuple[Text, ...]
    group_size: Positive
    stages: tuple[Natural, ...]
    phase: Phase
    why: Text
    dtype: Text
    count: Natural
    payload_bytes: Natural
    algorithm: Text
    formula: FormulaRecord
    values: dict[str, int | str]
    one_call: OneCallRecord
    runs: tuple[tuple[Natural, Natural, Natural], ...] = ()
    site: SiteRecord
    item_bytes: Positive
    pairs: tuple[tuple[Natural, ...], ...] = ()
    shift: int = 0
    split: Natural = 0
    number: Natural
    event: Text


class MeshRecord(Record):
    """Axes with their sizes, innermost first."""

    axes: dict[str, Positive]
    expert: dict[str, Positive] | None = None
    gpus_per_node: Positive


class ScheduleRecord(Record):
    """The pipeline schedule."""

    name: Literal[tuple(PLACEMENT)]  # type: ignore[valid-type]
    ranks: Positive
    chunks: Positive
    micro_batches: Positive


class ProgramRecord(Record):
    """What each stage computes, and what torch calls around that."""

    schedule: ScheduleRecord
    units: tuple[tuple[tuple[str, Natural], ...], ...]
    sharding: Sharding | None = None
    reductions: tuple[tuple[Reduction, ...], ...] = ()
    reduces_every: bool = False
    rebuilt_in: tuple[Natural, ...] = ()
    updates: tuple[tuple[Text, ...], ...] = ()
    votes: bool = False


class SecondsRecord(Record):
    """Times on the cluster that is named, of the busiest rank, the slowest one and each event."""

    cluster: Text
    caveat: Text
    total: Time
    slowest_stage: Natural
    slowest_total: Time
    events: tuple[Time, ...]


class LedgerRecord(Record):
    """A whole file."""

    meshcost: Literal[1]
    about: dict[str, Any]
    world_size: Positive
    mesh: MeshRecord
    program: ProgramRecord
    events: tuple[EventRecord, ...]
    totals: dict[str, Any]
    seconds: SecondsRecord | None = None
    digest: Text
