"""The order in which one rank makes its calls: what waits for what."""

from itertools import pairwise

import pytest

from meshcost.job import Job, analyze

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 256,
}


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_around_a_ring_every_rank_sends_one_part_and_waits_for_the_next(size, recompute):
    """Liu et al. 2023: a rank passes on what it has received; it cannot send c - 1 parts before one has come."""
    job = Job(
        model=LLAMA,
        parallel={"context": {"size": size, "method": "ring"}},
        batch={"sequence": 12, "global_batch": 1},
        recompute=recompute,
    )
    for rank in range(size):
        hops = [call for call in analyze(job).calls(rank) if call.strategy == "context"]
        sent, received = hops[::2], hops[1::2]
        assert {call.op for call in sent} == {"send"}
        assert {call.op for call in received} == {"recv"}
        assert [call.why for call in sent] == [call.why for call in received]
        assert [call.unit for call in sent] == [call.unit for call in received]
        kept = [call.why for call in sent if "gradients" not in call.why]
        assert len(kept) == 2 * (size - 1) * (3 if recompute == "full" else 2)
        for before, after in pairwise(sent):
            assert "gradients" not in after.why or "gradients" not in before.why
