"""Laws of the torch profile on any job that torch can run: counts are those of the calls, JSON is the identity."""

import json
from collections import Counter

import pytest
from hypothesis import assume, given, settings

from meshcost import testing
from meshcost.errors import FormulaError, JobError
from meshcost.formula import parse
from meshcost.job import Job, analyze
from meshcost.ledger import Ledger

SHARDS = {"data": {"strategy": "fsdp", "size": 8}}


def under_torch(job: Job) -> Job:
    """The same job under torch; drops it where torch has nothing of the kind."""
    fields = {name: getattr(job, name) for name in job.model_fields_set}
    try:
        return Job(**{**fields, "framework": "torch"})
    except JobError:
        assume(False)
        raise


@given(testing.jobs())
def test_counts_are_those_of_the_calls(drawn: Job):
    ledger = analyze(under_torch(drawn))
    for rank in {0, ledger.mesh.world_size // 2, ledger.mesh.world_size - 1}:
        stage = ledger.mesh.stage(rank)
        stated, made = Counter[tuple[str, str, int]](), Counter[tuple[str, str, int]]()
        for event in ledger:
            if stage in event.stages:
                stated[event.op, event.phase, event.payload_bytes] += event.calls
        for call in ledger.calls(rank):
            made[call.op, call.phase, max(call.in_bytes, call.out_bytes)] += 1
        assert stated == made


@settings(max_examples=20)
@given(testing.jobs())
def test_json_is_the_identity(drawn: Job):
    written = analyze(under_torch(drawn)).to_dict()
    assert Ledger.from_dict(json.loads(json.dumps(written))).to_dict() == written


@pytest.mark.parametrize(
    ("parallel", "torch", "sentence"),
    [
        ({"data": {"strategy": "zero2", "size": 8}}, {}, "torch has no zero2"),
        ({"context": {"size": 2, "method": "ulysses"}}, {}, "torch has no ulysses"),
        ({"pipeline": {"size": 2, "schedule": "dualpipe"}}, {}, "torch has no dualpipe"),
        (
            {"data": {"strategy": "fsdp", "size": 8}},
            {"reshard_after_forward": 3},
            "3 does not divide the 8 ranks",
        ),
        (
            {"data": {**SHARDS["data"], "reshard_after_forward": True}},
            {"reshard_after_forward": False},
            "torch.reshard_after_forward: parallel.data.reshard_after_forward says otherwise.",
        ),
        (
            {"data": {**SHARDS["data"], "gather": "once"}},
            {"reshard_after_forward": True},
            "torch.reshard_after_forward: parallel.data.gather: once keeps weights",
        ),
        (
            {**SHARDS, "tensor": {"size": 2, "vocabulary_parallel": True}},
            {"units": ["blocks", "norm", "head"]},
            "torch.units: norm and head each in a unit of its own is not predicted beside tensor parallelism. Write",
        ),
        (
            SHARDS,
            {"units": ["blocks", "model", "norm"]},
            "torch.units: model and norm each in a unit of its own is not predicted. Leave one",
        ),
        (SHARDS, {"units": ["blocks", "nosuch"]}, "nosuch is no module of llama-3.2-1b"),
        (SHARDS, {"units": ["blocks", "head"]}, "lm_head shares its weight with model.embed_tokens"),
        (SHARDS, {"units": ["model"]}, "model.embed_tokens shares its weight with lm_head"),
        (SHARDS, {"fused": True, "foreach": True}, "fused or foreach, not both"),
    ],
)
def test_what_torch_cannot_do_is_refused(
    parallel: dict[str, object], torch: dict[str, object], sentence: str
):
    with pytest.raises(JobError, match=sentence):
        Job(
            model="llama-3.2-1b",  # whose head is tied to the embedding
            framework="torch",
            parallel=parallel,
            torch=torch,
            batch={"sequence": 8192, "global_batch": 16},
        )


@pytest.mark.parametrize(
    ("parallel", "torch", "sentence"),
    [
        (
            {"data": 8},
            {"units": ["blocks", "head"]},
            "torch.units changes nothing: only fully_shard and FullyShardedDataParallel read it (strategy: fsdp or zero3 or "
            "wrapper: FullyShardedDataParallel), and this job uses DistributedDataParallel.",
        ),
        (
            SHARDS,
            {"bucket_cap_mb": 2},
            "torch.bucket_cap_mb changes nothing: only DistributedDataParallel reads it (strategy: ddp or zero1), and this "
            "job uses fully_shard.",
        ),
        (
            {"data": {"strategy": "zero1", "size": 8}},
            {"keep_last_unit": True},
            "torch.keep_last_unit changes nothing: only fully_shard reads it (strategy: fsdp or zero3), and this job uses "
            "DistributedDataParallel with ZeroRedundancyOptimizer.",
        ),
        (
            SHARDS,
            {"use_orig_params": True},
            "torch.use_orig_params changes nothing: only FullyShardedDataParallel reads it (wrapper: "
            "FullyShardedDataParallel), and this job uses fully_shard.",
        ),
    ],
)
def test_an_option_that_nobody_reads_is_named_and_changes_nothing(
    parallel: dict[str, object], torch: dict[str, object], sentence: str
):
    fields = {
        "model": "llama-3.2-1b",
        "framework": "torch",
        "parallel": parallel,
        "batch": {"sequence": 8192, "global_batch": 16},
    }
    with_it, without = Job(**fields, torch=torch), Job(**fields)
    assert sentence in with_it.warnings
    assert sentence not in without.warnings
    assert list(analyze(with_it).calls(1)) == list(analyze(without).calls(1))


def test_a_power_of_a_sum_is_read_but_no_power_of_a_power():
    assert str(parse("(c - 1)**2")) == "(c - 1)**2"
    with pytest.raises(FormulaError, match="not arithmetic"):
        parse("((c - 1)**60)**60")


OTHER_DIM = "shard another dim (torch.shard_placement_fn)"
FEWER = "shard over fewer ranks (parallel.data.replicate)"
SPREAD, FURTHER = (f"spread experts{more} (parallel.expert.size)" for more in ("", " further"))


@pytest.mark.parametrize(
    ("data", "more", "rows", "remedies"),
    [
        (16, {}, "8 rows for 16 ranks", [OTHER_DIM, SPREAD, FEWER]),
        (16, {"expert": 4}, "2 rows for 4 ranks", [OTHER_DIM, FURTHER, FEWER]),
        (16, {"expert": 8}, "1 row for 2 ranks", [OTHER_DIM, FEWER]),
        (1, {"context": 16, "expert": 8}, "1 row for 2 ranks", [OTHER_DIM]),
    ],
)
def test_padding_is_told_with_what_a_job_can_still_do(
    data: int, more: dict[str, int], rows: str, remedies: list[str]
):
    """Eight experts cannot be spread over more than eight ranks, nor one data rank hold several copies."""
    job = Job(
        model="mixtral-8x7b",
        framework="torch",
        parallel={"data": {"strategy": "fsdp", "size": data}, **more},
        batch={"sequence": 4096, "global_batch": 16},
    )
    (said,) = (warning for warning in job.warnings if "is padded" in warning)
    assert f"{rows}, and is padded. {remedies[0][0].upper()}{remedies[0][1:]}" in said
    assert [x for x in (OTHER_DIM, SPREAD, FURTHER, FEWER) if x[1:] in said] == remedies
