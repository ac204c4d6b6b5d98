"""Predicted equals traced, call by call and in order: pipelines, with and without replicas, shards and split weights."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from meshcost.job import Job, analyze
from meshcost.schedule import Schedule
from meshcost.torch_schedule import LISTED, refused, steps

torch = pytest.importorskip("torch")

from torch.distributed.pipelining import schedules  # noqa: E402 - needs torch

from meshcost.execute.trace import trace  # noqa: E402 - needs torch
from meshcost.execute.trace_pipeline import SCHEDULES  # noqa: E402 - needs torch

MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 128,
    "tie_word_embeddings": False,
}
SHARDS = {"data": {"strategy": "fsdp", "size": 2}}
REPLICAS = {"data": {"size": 2}}
TENSOR = {"tensor": {"size": 2, "sequence_parallel": True}}
KEPT = {"reshard_after_forward": False}


def job(
    schedule: str,
    micro_batches: int,
    more: dict[str, Any] | None = None,
    torch: dict[str, Any] | None = None,
    *,
    ranks: int = 2,
    chunks: int | None = None,
    layers: int = 4,
) -> Job:
    pipeline = {"size": ranks, "schedule": schedule} | ({"chunks": chunks} if chunks else {})
    parallel = {"pipeline": pipeline, **(more or {})}
    data = parallel.get("data", {"size": 1})["size"]
    return Job(
        model={**MODEL, "num_hidden_layers": layers},
        framework="torch",
        parallel=parallel,
        batch={"sequence": 16, "micro_batch": 1, "global_batch": micro_batches * data},
        precision={"weights": "fp32"},
        torch=torch or {},
    )


CASES: dict[str, Job] = {
    "gpipe, shards": job("gpipe", 3, SHARDS),
    "1f1b, shards": job("1f1b", 3, SHARDS),
    "1f1b on three ranks": job("1f1b", 4, ranks=3, layers=3),
    "interleaved": job("interleaved_1f1b", 4),
    "interleaved, first step": job("interleaved_1f1b", 2, torch={"step": 0}),
    "interleaved, one long round on three ranks": job("interleaved_1f1b", 5, ranks=3, layers=6),
    "interleaved, fewer micro-batches than ranks": job("interleaved_1f1b", 2, ranks=3, layers=6),
    "interleaved, shards": job("interleaved_1f1b", 4, SHARDS),
    "interleaved, shards that stay": job("interleaved_1f1b", 4, SHARDS, KEPT),
    "interleaved, more chunks than are gathered": job("interleaved_1f1b", 4, SHARDS, chunks=4, layers=8),
    "interleaved, more chunks, and shards stay": job("interleaved_1f1b", 4, SHARDS, KEPT, chunks=4, layers=8),
    "interleaved, replicas": job("interleaved_1f1b", 2, REPLICAS),
    "zero bubble": job("interleaved_zb", 4),
    "zero bubble, shards that stay": job("interleaved_zb", 4, SHARDS, KEPT),
    "zero bubble, tensor": job("interleaved_zb", 2, TENSOR),
    "zero bubble, replicas": job("interleaved_zb", 2, REPLICAS),
    "V": job("zbv", 4),
    "V, one micro-batch": job("zbv", 1),
    "V, shards that stay": job("zbv", 3, SHARDS, KEPT),
    "V, first step": job("zbv", 2, torch={"step": 0}),
    "two ways": job("dualpipev", 5),
    "two ways, shards": job("dualpipev", 4, SHARDS),
    "two ways on three ranks, shards that stay": job("dualpipev", 7, SHARDS, KEPT, ranks=3, layers=6),
    "two ways, replicas": job("dualpipev", 4, REPLICAS),
}


@pytest.mark.parametrize("name", CASES)
def test_predicted_is_traced(name: str, equal_calls: Callable[..., None]):
    asked, options = CASES[name], CASES[name].torch
    # Replicas agree on their buckets in the first two steps, each of which is held against its own prediction.
    replicates = asked.parallel.data.strategy == "ddp" and asked.parallel.data.size > 1
    held = (0, 1, None) if replicates and options.step is None else (options.step,)
    traced = trace(asked, steps=len(held) if len(held) > 1 else 2)
    for step in held:
        ledger = analyze(asked.model_copy(update={"torch": options.model_copy(update={"step": step})}))
        for rank, recording in traced.items():
            number = recording.steps[-1] if step is None else step
            seen = recording.at_step(number).calls
            equal_calls(list(ledger.calls(rank)), seen, f"{name}, step {number}", rank)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", LISTED)
def test_steps_are_those_of_torch(name: str, ranks: int):
    for chunks in (2,) if name in ("zbv", "dualpipev") else (1, 2, 4):
        for count in (1, 3, 4, 7, 8, 10):
            schedule = Schedule(name, ranks, chunks, count)
            if refused(schedule):
                with pytest.raises(ValueError, match="microbatches"):
                    listed_by_torch(schedule)
                continue
            for ours, theirs in zip(steps(schedule), listed_by_torch(schedule), strict=True):
                # What is let go of together, torch lists in the order of a set.
                assert [written(step) for step in ours if step.do != "let_go"] == theirs


def written(step: Any) -> str:
    """Write a step as torch does."""
    names = {"gather": "UNSHARD", "reduce": "REDUCE_GRAD", "send": "SEND_", "receive": "RECV_"}
    name = names.get(step.do, step.do) + (step.way if step.do in ("send", "receive") else "")
    return f"{step.stage}{name}" + ("" if step.do in ("gather", "reduce") else f"{step.micro_batch}")


def listed_by_torch(schedule: Schedule) -> list[list[str]]:
    """The actions of every rank, pairs one after the other."""
    stages = [
        SimpleNamespace(
            num_stages=schedule.virtual_stages,
            group_size=schedule.ranks,
            group_rank=0,
            stage_index=i,
            submod=None,
        )
        for i in schedule.hosted(0)
    ]
    made = getattr(schedules, SCHEDULES[schedule.name])(stages, schedule.micro_batches)
    return [
        [
            str(part)
            for action in made.pipeline_order_with_comms[rank]
            for part in action.sub_actions or (action,)
            if part.computation_type.value != "RESHARD"
        ]
        for rank in range(schedule.ranks)
    ]
