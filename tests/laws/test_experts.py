"""Tokens that travel to experts: a whole number of them, each a whole number of bytes, however uneven the routing."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshcost import testing
from meshcost.errors import JobError
from meshcost.job import Job, analyze
from meshcost.units import DTYPE_BYTES

MIXTRAL = {
    "model_type": "mixtral",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 256,
    "num_local_experts": 4,
}
FACTORS = st.floats(0.01, 8) | st.sampled_from([1.0, 1.1, 1.25, 4 / 3])
DTYPES = st.sampled_from(["bf16", "fp32", "fp8", "fp8_block128"])


@given(
    hidden=st.sampled_from([64, 96, 100]),
    copies=st.integers(1, 3),
    tokens=st.integers(1, 30),
    split=st.sampled_from([1, 2]),
    what=st.sampled_from(["capacity_factor", "imbalance"]),
    factor=FACTORS,
    dispatch=DTYPES,
    combine=DTYPES,
)
def test_experts_are_sent_whole_tokens_of_whole_bytes(
    *, hidden, copies, tokens, split, what, factor, dispatch, combine
):
    factor = max(factor, 1.0) if what == "imbalance" else factor
    job = Job(
        model={**MIXTRAL, "hidden_size": hidden, "num_experts_per_tok": copies},
        parallel={
            "data": {"size": 4},
            "tensor": {"size": split, "sequence_parallel": True},
            "expert": {"size": 2, what: factor},
        },
        batch={"sequence": tokens * split, "global_batch": 4},
        precision={"dispatch": dispatch, "combine": combine},
    )
    moved = analyze(job).filter(strategy="expert")
    assert len(moved) == (4 if split == 1 else 8)
    piles, share = (4, copies * tokens / Fraction(4)) if what == "capacity_factor" else (1, copies * tokens)
    for event in moved:
        token = -(-hidden * DTYPE_BYTES[event.dtype] // 1) * (split if event.op != "all_to_all" else 1)
        sent = Fraction(event.payload_bytes, token * piles)
        assert sent.denominator == 1
        assert 0 <= sent - share * Fraction(str(factor)) < 1


@pytest.mark.parametrize("field", ["weights", "gradients", "reduce", "activations"])
def test_only_tokens_of_experts_have_a_scale_for_each_block(field):
    with pytest.raises(JobError) as refused:
        Job(model="gpt2", batch={"sequence": 8, "global_batch": 1}, precision={field: "fp8_block128"})
    assert refused.value.problems == (
        f"precision.{field}: fp8_block128 is for tokens on their way to experts and back (dispatch, combine). "
        "Choose fp8, or bf16.",
    )


@given(st.sampled_from([2, 4]), st.integers(1, 5))
def test_ranks_can_split_experts_where_nothing_else_is_split(split, tokens):
    """Each token has one home then, so there is nothing for sequence_parallel to undo."""
    job = Job(
        model={**MIXTRAL, "hidden_size": 64, "num_experts_per_tok": 2},
        parallel={"data": {"size": 4}, "expert": {"size": 1, "expert_tensor": split}},
        batch={"sequence": tokens, "global_batch": 4},
    )
    held = testing.check(job)
    assert "messages_match" in held
    gathers = analyze(job).filter(strategy="expert", op="all_gather")
    assert {event.payload_bytes for event in gathers} == {split * 2 * tokens * 64 * 2}


def test_ranks_that_hold_the_same_tokens_need_sequence_parallel_to_split_experts_otherwise():
    with pytest.raises(
        JobError, match=r"2 is neither 1 nor the 4 tensor ranks, which needs .*sequence_parallel: true"
    ):
        Job(
            model={**MIXTRAL, "hidden_size": 64, "num_experts_per_tok": 2},
            parallel={"tensor": {"size": 4}, "expert": {"expert_tensor": 2}},
            batch={"sequence": 4, "global_batch": 1},
        )


@pytest.mark.parametrize(
    ("model", "expert", "elements", "split"),
    [
        ("mixtral-8x7b", {"size": 1}, 32 * 8 * 4096, "experts"),
        ("mixtral-8x7b", {"size": 2}, 32 * 8 * 4096, "experts"),
        ("mixtral-8x7b", {"size": 2, "expert_tensor": 2}, 32 * 8 * 4096, "experts"),
        ("qwen1.5-moe-a2.7b", {"size": 2}, 24 * (60 + 1) * 2048, "experts"),  # and the gate of shared experts
        ("qwen3-30b-a3b", {"size": 2}, 48 * (128 * 2048 + 2 * 128), "heads and experts"),
    ],
)
def test_the_gradient_of_a_router_is_summed_where_tensor_ranks_see_a_part_of_what_it_weighs(
    model: str, expert: dict[str, int], elements: int, split: str
):
    """What a token gives an expert is multiplied with its output, of which a rank has a part, or that of some tokens."""
    parallel = {"data": 4, "tensor": 2, "expert": expert}
    ledger = analyze(Job(model=model, parallel=parallel, batch={"sequence": 4096, "global_batch": 4}))
    (event,) = ledger.filter(lambda x: x.strategy == "tensor" and "gradients of" in x.why)
    assert event.why == f"sum the gradients of whole weights applied to split {split}"
    assert (event.op, event.calls, event.payload_bytes) == ("all_reduce", 1, 2 * elements)
    alone = analyze(Job(model=model, parallel={"data": 4}, batch={"sequence": 4096, "global_batch": 4}))
    assert not alone.filter(lambda x: x.strategy == "tensor")
