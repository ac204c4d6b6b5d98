"""DualPipe: two ranks hold the same two stages, and each of them sees half of the micro-batches in each."""

import pytest

from meshcost.job import Job, analyze
from meshcost.models import read_model

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 256,
}
MICRO_BATCHES = 4


def dualpipe(*, stages=2, layers=None, **data):
    return {
        "pipeline": {"size": stages, "schedule": "dualpipe", "layers_per_stage": layers},
        "data": {"size": 2, **data},
    }


def bill(parallel, *, tied=False):
    model = {**LLAMA, "tie_word_embeddings": tied}
    batch = {"sequence": 8, "global_batch": 2 * MICRO_BATCHES}
    return analyze(Job(model=model, parallel=parallel, batch=batch)), read_model(model).weights_total


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_each_of_two_ranks_holds_the_whole_model_once(strategy, tied):
    """Also where embedding and head are one: both ends are on both ranks."""
    ledger, weights = bill(dualpipe(strategy=strategy), tied=tied)
    sums = ledger.filter(phase="backward", dtype="bf16")
    for name in (strategy, "pipeline"):
        paid = [x for x in sums.filter(strategy=name) if x.op not in ("send", "recv")]
        assert sum(x.calls * x.payload_bytes for x in paid) == 2 * weights


@pytest.mark.parametrize("layers", [[6, 6], [4, 8]])
@pytest.mark.parametrize(
    "data", [{"strategy": "zero2"}, {"strategy": "ddp", "gradient_sync": "every_micro_batch"}]
)
def test_a_micro_batch_leaves_gradients_of_the_one_stage_that_it_went_through(data, layers):
    ledger, weights = bill(dualpipe(layers=layers, **data))
    block = (weights - 2 * 256 * 64 - 64) // 12
    stages = [2 * (256 * 64 + layers[0] * block), 2 * (256 * 64 + 64 + layers[1] * block)]
    for rank in range(ledger.mesh.world_size):
        ran = {}
        for call in ledger.calls(rank):
            if call.unit == "micro-batch":
                ran[call.micro_batch] = call.in_bytes
        first = ledger.mesh.stage(rank)
        assert ran == {
            i: stages[first if i < MICRO_BATCHES // 2 else 1 - first] for i in range(MICRO_BATCHES)
        }


@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
@pytest.mark.parametrize("stages", [2, 6])
def test_gradients_of_a_step_are_those_of_every_pass(strategy, stages):
    """Unit by unit (zero3) or together (zero2), what all ranks reduce is every weight in every micro-batch."""
    ledger, weights = bill(dualpipe(stages=stages, strategy=strategy))
    paid = ledger.filter(strategy=strategy, op="reduce_scatter")
    assert sum(x.calls * x.payload_bytes * len(x.stages) for x in paid) == 2 * weights * MICRO_BATCHES


@pytest.mark.parametrize("schedule", ["1f1b", "zbv", "dualpipe"])
def test_the_mean_loss_is_that_of_all_tokens(schedule):
    """Every rank that computes the loss of some tokens ends with the losses of all of them, none counted twice."""
    parallel = {"pipeline": {"size": 2, "schedule": schedule}, "data": {"size": 2}, "context": {"size": 2}}
    ledger, _ = bill(parallel)
    last = ledger.program.schedule.virtual_stages - 1
    ends = {ledger.program.schedule.host(last, i) for i in range(MICRO_BATCHES)}
    ranks = [rank for rank in range(ledger.mesh.world_size) if ledger.mesh.stage(rank) in ends]
    seen = {rank: [rank] for rank in ranks}
    calls = {rank: [x for x in ledger.calls(rank) if "loss" in x.why] for rank in ranks}
    for turn in zip(*calls.values(), strict=True):
        seen = {
            rank: [x for member in call.ranks for x in seen[member]]
            for rank, call in zip(ranks, turn, strict=True)
        }
    assert all(sorted(found) == ranks for found in seen.values())
