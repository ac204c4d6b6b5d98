"""Bytes that Gloo put on real wires, counted by the kernel with one rank per network namespace."""

import json
from pathlib import Path

import pytest

from meshcost.collectives.gloo import FRAME_BYTES, traffic

DATA = json.loads((Path(__file__).parent / "gloo_wire.json").read_text(encoding="utf-8"))
SPLIT = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
#: One barrier of the store is in every reading: up to 2.2 kB where a rank polls, much more on rank 0, which hosts it.
STORE_BYTES = 2_500
STORE_BYTES_OF_RANK_0 = 16_000
LIST_SHARE = 0.02  # a reduce-scatter of lists: 1.8 % at 1 MiB


def cases():
    for op, ranks, tensor_bytes, sent, received in DATA["rows"]:
        for rank in range(ranks):
            yield pytest.param(
                op,
                ranks,
                tensor_bytes,
                rank,
                sent[rank],
                received[rank],
                id=f"{op}-{ranks}-{tensor_bytes}-{rank}",
            )


def predicted(op, ranks, tensor_bytes, rank):
    step = 4 * ranks if op in SPLIT else 4
    return traffic(op, rank, ranks=ranks, payload_bytes=tensor_bytes // step * step)


@pytest.mark.parametrize(("op", "ranks", "tensor_bytes", "rank", "sent", "received"), list(cases()))
def test_gloo_sent_what_the_form_says(op, ranks, tensor_bytes, rank, sent, received):
    form = predicted(op.removesuffix("_list"), ranks, tensor_bytes, rank)
    store = STORE_BYTES_OF_RANK_0 if rank == 0 else STORE_BYTES
    for measured, said in ((sent, form.sent_bytes), (received, form.received_bytes)):
        share = LIST_SHARE * said if op.endswith("_list") else 0
        # A notice of 48 B may still be on its way when the counters are read, one for each peer.
        assert -2 * 48 * ranks - share <= measured - said <= store + share


def test_a_message_has_the_frame_that_was_measured():
    assert FRAME_BYTES == 144
