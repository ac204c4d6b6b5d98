"""Gloo: what its ranks send, others receive, edge by edge; its closed forms are those of the busiest rank."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshcost.collectives.gloo import SENT, Traffic, rounds, traffic
from meshcost.formula import bind
from meshcost.symbols import S, n

IN_CHUNKS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "rotate")
ROOTED = ("broadcast", "reduce", "gather", "scatter", "send_recv")
EVERY = (*IN_CHUNKS, "all_reduce", "broadcast", "reduce", "send_recv", "barrier", "shift")


def each(op: str, ranks: int, payload: int, **more: int) -> list[Traffic]:
    return [traffic(op, at, ranks=ranks, payload_bytes=payload, **more) for at in range(ranks)]


@pytest.mark.parametrize("op", sorted(SENT))
def test_the_busiest_rank_sends_the_closed_form(op: str):
    call = {"send": "send_recv", "recv": "send_recv"}.get(op, op)
    for ranks in range(2, 34):
        size = 8 * ranks * 2**20
        sent = [x.sent_payload for x in each(call, ranks, size)]
        found = min(sent) if op == "recv" else max(sent)  # who receives sends nothing
        assert found == bind(SENT[op], {S: size, n: ranks})


@pytest.mark.parametrize("op", EVERY)
@given(
    ranks=st.integers(2, 17),
    elements=st.integers(1, 2**21),
    item=st.sampled_from([1, 2, 4, 8]),
    root=st.integers(0, 16),
)
def test_what_is_sent_is_received(op: str, ranks: int, elements: int, item: int, root: int):
    payload = item * elements * (ranks if op in IN_CHUNKS else 1)
    found = each(op, ranks, payload, item_bytes=item, root=root % ranks if op in ROOTED else 0)
    for what in ("payload", "messages", "bytes"):
        assert sum(getattr(x, f"sent_{what}") for x in found) == sum(
            getattr(x, f"received_{what}") for x in found
        )


@pytest.mark.parametrize("op", EVERY)
def test_one_byte_is_sent_and_received_too(op: str):
    for ranks in range(2, 10):
        found = each(op, ranks, ranks if op in IN_CHUNKS else 1, item_bytes=1)
        assert min(x.sent_messages for x in found) >= 0
        assert sum(x.sent_payload for x in found) == sum(x.received_payload for x in found)
        assert sum(x.sent_messages for x in found) == sum(x.received_messages for x in found)


@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "all_gather"])
@given(ranks=st.integers(2, 17), elements=st.integers(1, 2**21), item=st.sampled_from([1, 2, 4, 8]))
def test_around_a_ring_the_neighbour_receives_what_a_rank_sends(
    op: str, ranks: int, elements: int, item: int
):
    """Against the order of ranks, whatever the chunks are."""
    found = each(op, ranks, item * elements * (ranks if op in IN_CHUNKS else 1), item_bytes=item)
    for at, own in enumerate(found):
        neighbour = found[(at - 1) % ranks]
        assert (own.sent_payload, own.sent_messages) == (
            neighbour.received_payload,
            neighbour.received_messages,
        )


@pytest.mark.parametrize("op", ["broadcast", "gather", "scatter", "send_recv"])
@given(ranks=st.integers(2, 17), root=st.integers(0, 16))
def test_with_another_root_every_rank_has_another_place(op: str, ranks: int, root: int):
    payload, root = 4 * ranks, root % ranks
    first, other = each(op, ranks, payload), each(op, ranks, payload, root=root)
    assert other == [first[(at - root) % ranks] for at in range(ranks)]


@pytest.mark.parametrize(
    ("op", "ranks", "sent", "received", "messages"),
    [
        ("all_gather", 4, (24,) * 4, (24,) * 4, (6,) * 4),
        ("all_to_all", 4, (24,) * 4, (24,) * 4, (3,) * 4),
        ("gather", 4, (0, 8, 8, 8), (24, 0, 0, 0), (0, 1, 1, 1)),
        ("scatter", 4, (24, 0, 0, 0), (0, 8, 8, 8), (3, 0, 0, 0)),
        ("broadcast", 5, (96, 32, 0, 0, 0), (0, 32, 32, 32, 32), (3, 1, 0, 0, 0)),
        ("send_recv", 4, (32, 0, 0, 0), (0, 32, 0, 0), (1, 0, 0, 0)),
        ("shift", 4, (32,) * 4, (32,) * 4, (1,) * 4),
        ("rotate", 4, (32,) * 4, (32,) * 4, (3,) * 4),
        ("barrier", 5, (0,) * 5, (0,) * 5, (3,) * 5),
        ("barrier", 8, (0,) * 8, (0,) * 8, (3,) * 8),
    ],
)
def test_calls_of_32_bytes_by_hand(op: str, ranks: int, sent: tuple, received: tuple, messages: tuple):
    found = each(op, ranks, 32)
    assert tuple(x.sent_payload for x in found) == sent
    assert tuple(x.received_payload for x in found) == received
    assert tuple(x.sent_messages for x in found) == messages


def test_of_a_reduce_the_root_gets_the_chunks_and_all_but_two_segments_go_round():
    """32 B over 4 ranks are eight segments of 4 B: six go on from each rank, and each chunk of two in one message."""
    found = each("reduce", 4, 32)
    assert [(x.sent_payload, x.sent_messages) for x in found] == [(24, 6), (32, 7), (32, 7), (32, 7)]
    assert [(x.received_payload, x.received_messages) for x in found] == [(48, 9), (24, 6), (24, 6), (24, 6)]


@pytest.mark.parametrize(
    ("ops", "waits"),
    [
        (("all_reduce", "reduce_scatter"), {2: 2, 4: 6, 5: 8, 8: 14}),
        (("all_gather", "all_to_all"), {2: 1, 4: 3, 5: 4, 8: 7}),
        (("reduce",), {2: 2, 4: 4, 5: 5, 8: 8}),
        (("broadcast", "barrier"), {2: 1, 4: 2, 5: 3, 8: 3, 9: 4}),
        (("gather", "scatter", "send_recv"), {2: 1, 4: 1, 5: 1, 8: 1}),
    ],
)
def test_rounds_by_hand(ops: tuple[str, ...], waits: dict[int, int]):
    for op in ops:
        assert {ranks: rounds(op, ranks) for ranks in waits} == waits


@pytest.mark.parametrize("op", EVERY)
def test_nothing_is_sent_by_one_rank_or_of_nothing(op: str):
    """But for a barrier, which has no data anyway."""
    still = Traffic()
    assert (still.sent_bytes, still.received_bytes, still.sent_payload, still.received_payload) == (
        0,
        0,
        0,
        0,
    )
    assert (still.sent_messages, still.received_messages) == (0, 0)
    assert each(op, 1, 32) == [still]
    assert (each(op, 4, 0) == [still] * 4) == (op != "barrier")
