"""Laws of one ledger: its sums, its formulas, the calls it unrolls into, and its JSON."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from meshcost.collectives import ALGORITHMS
from meshcost.event import Event
from meshcost.formula import value
from meshcost.job import Job, analyze
from meshcost.ledger import Ledger
from meshcost.unroll import Call

_MESSAGES = ("send", "recv")
#: Ranks of a world that are counted one by one.
LARGEST_COUNT = 64


def require(condition: bool, broken: str) -> None:
    """Raise AssertionError with a sentence unless the condition holds; unlike ``assert``, also under ``python -O``."""
    if not condition:
        raise AssertionError(broken)


def priced_ledger(subject: Job | Ledger) -> Ledger:
    """Return the ledger of a job, or the ledger itself."""
    return analyze(subject) if isinstance(subject, Job) else subject


def named(event: Event) -> str:
    """Name an event in a sentence."""
    return f"{event.strategy} {event.op} on {' x '.join(event.axes)}, {event.phase} ({event.why})"


def bytes_are_conserved(subject: Job | Ledger) -> None:
    """Check that what the ranks of every group send is what they receive, and that sent = intra-node + inter-node.

    Where a switch adds and copies, only the latter.

    >>> job = Job(model="gpt2", parallel={"data": {"size": 3}}, batch={"sequence": 8, "global_batch": 3})
    >>> bytes_are_conserved(job)
    """
    ledger = priced_ledger(subject)
    for event in ledger:
        price = event.priced
        split = price.intra_node_bytes + price.inter_node_bytes
        require(
            split == price.sent_bytes,
            f"{named(event)}: {split} B by link class, {price.sent_bytes} B in all.",
        )
        require(min(price.intra_node_bytes, price.inter_node_bytes) >= 0, f"{named(event)}: negative bytes.")
        if event.op not in _MESSAGES and not _through_switch(event):
            _group_conserves(event)
    for phase, payload in {(x.phase, x.payload_bytes) for x in ledger if x.op in _MESSAGES}:
        chosen = ledger.filter(lambda x, to=(phase, payload): (x.phase, x.payload_bytes) == to)  # type: ignore[misc]
        sent, received = (sum(x.calls * len(x.stages) for x in chosen.filter(op=op)) for op in _MESSAGES)
        require(sent == received, f"{sent} messages of {payload} B are sent {phase}, {received} received.")


def _through_switch(event: Event) -> bool:
    """Whether a switch adds and copies: it receives and sends what no rank of the group does."""
    name = event.priced.algorithm
    return name in ALGORITHMS and ALGORITHMS[name].switch


def _group_conserves(event: Event) -> None:
    price = event.priced
    if not price.runs:
        same = price.sent_bytes == price.received_bytes
        require(
            same,
            f"{named(event)}: every rank sends {price.sent_bytes} B and receives {price.received_bytes} B.",
        )
        return
    positions = [price.at(position) for position in range(event.group_size)]
    sent, received = (sum(side) for side in zip(*positions, strict=True))
    require(sent == received, f"{named(event)}: its group sends {sent} B and receives {received} B.")
    most = tuple(max(side) for side in zip(*positions, strict=True))
    stated = (price.sent_bytes, price.received_bytes)
    require(most == stated, f"{named(event)}: the busiest ranks move {most} B, stated are {stated} B.")


def ranks_make_up_the_cluster(subject: Job | Ledger) -> None:
    """Check that what all ranks send, counted rank by rank, is what the events say of the cluster, in all and by node.

    Of each rank, sent = intra-node + inter-node. In a world of more than ``LARGEST_COUNT`` ranks only some are looked at.

    >>> job = Job(model="gpt2", parallel={"data": {"size": 3}}, batch={"sequence": 8, "global_batch": 3})
    >>> ranks_make_up_the_cluster(job)
    """
    ledger = priced_ledger(subject)
    world = ledger.mesh.world_size
    whole = world <= LARGEST_COUNT
    for event in ledger:
        sent = between = 0
        for rank in range(0, world, 1 if whole else world // LARGEST_COUNT):
            if ledger.mesh.stage(rank) not in event.stages:
                continue
            paid = ledger.paid(event, rank)
            split = paid.intra_node_bytes + paid.inter_node_bytes
            require(
                split == paid.sent_bytes and min(paid.intra_node_bytes, paid.inter_node_bytes) >= 0,
                f"{named(event)}: rank {rank} sends {paid.sent_bytes} B, {split} B by link class.",
            )
            sent, between = sent + paid.sent_bytes, between + paid.inter_node_bytes
        stated = (event.cluster_sent_bytes, event.cluster_inter_node_bytes)
        require(
            not whole or (sent, between) == stated,
            f"{named(event)}: its ranks send {sent} B, {between} B of it between nodes; stated are {stated}.",
        )


def formulas_are_the_numbers(subject: Job | Ledger) -> None:
    """Check that the closed forms of count, payload, sent and received give the numbers beside them.

    >>> job = Job(model="gpt2", parallel={"data": {"size": 2}}, batch={"sequence": 8, "global_batch": 2})
    >>> formulas_are_the_numbers(job)
    """
    for event in priced_ledger(subject):
        price = event.priced
        pairs = (
            ("sent", price.sent, event.calls * price.sent_bytes),
            ("received", price.received, event.calls * price.received_bytes),
            ("payload", event.payload, event.payload_bytes),
            ("count", event.count, event.calls),
        )
        for what, form, number in pairs:
            found = value(form, event.values)
            require(
                found == number, f"{named(event)}: {what} is {number}, but its formula {form} gives {found}."
            )
        require(
            event.group_size > 1 and event.calls > 0 and event.payload_bytes > 0,
            f"{named(event)}: an empty event.",
        )


def json_round_trip_is_identity(subject: Job | Ledger) -> None:
    """Check that a ledger written as JSON and read back is the same ledger.

    >>> job = Job(model="gpt2", parallel={"data": {"size": 2}}, batch={"sequence": 8, "global_batch": 2})
    >>> json_round_trip_is_identity(job)
    """
    ledger = priced_ledger(subject)
    written = ledger.to_dict()
    back = Ledger.from_dict(json.loads(json.dumps(written)))
    require(back == ledger, "a ledger read back from JSON is not equal to the one written.")
    require(back.to_dict() == written, "a ledger read back from JSON is written differently.")
    for before, after in zip(ledger, back, strict=True):
        require(before.totals == after.totals, f"{named(before)}: {before.totals} became {after.totals}.")


def calls_match_counts(subject: Job | Ledger) -> None:
    """Check that the calls unrolled for a rank of every stage are those that its events count, with their bytes.

    >>> job = Job(model="gpt2", parallel={"pipeline": {"size": 2}}, batch={"sequence": 8, "global_batch": 2})
    >>> calls_match_counts(job)
    """
    ledger = priced_ledger(subject)
    for rank in _one_of_each_stage(ledger):
        found: Counter[tuple[Any, ...]] = Counter()
        for call in ledger.calls(rank):
            _well_formed(call, rank)
            found[
                _shape(call.op, call.strategy, call.phase, call.why, call.dtype),
                call.in_bytes,
                call.out_bytes,
            ] += 1
        counted = Counter(dict(_counted(ledger, rank)))
        for key in found | counted:
            require(
                found[key] == counted[key],
                f"rank {rank} makes {found[key]} calls of {key}, its events count {counted[key]}.",
            )


def _one_of_each_stage(ledger: Ledger) -> list[int]:
    first = {ledger.mesh.stage(rank): rank for rank in reversed(range(ledger.mesh.world_size))}
    return sorted({*first.values(), ledger.mesh.world_size - 1})


def _shape(*parts: str) -> str:
    return " ".join(parts)


def _well_formed(call: Call, rank: int) -> None:
    require(rank in call.ranks, f"rank {rank} makes a call in a group of others: {call}.")
    distinct = len(set(call.ranks)) == len(call.ranks) > 1
    require(distinct, f"rank {rank} makes a call in a group that is none: {call}.")


def _counted(ledger: Ledger, rank: int) -> Iterable[tuple[tuple[Any, ...], int]]:
    counted: Counter[tuple[Any, ...]] = Counter()
    for event in ledger.at_stage(ledger.mesh.stage(rank)):
        into, out = _ends(event, ledger.group_of(event, rank).index(rank))
        counted[_shape(event.op, event.strategy, event.phase, event.why, event.dtype), into, out] += (
            event.calls
        )
    return counted.items()


def _ends(event: Event, position: int) -> tuple[int, int]:
    """Bytes that one rank puts in and gets out, as the conventions say; chunks are balanced, in whole elements."""
    payload = event.payload_bytes
    item = event.item_bytes
    elements = payload // item
    chunk = item * len(range(position, elements, event.group_size))
    return {
        "all_gather": (chunk, payload),
        "reduce_scatter": (payload, chunk),
        "send": (payload, 0),
        "recv": (0, payload),
    }.get(event.op, (payload, payload))
