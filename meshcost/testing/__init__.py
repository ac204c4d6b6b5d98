"""For people who write a strategy of their own: jobs to try it on, and the laws that every strategy obeys.

    from hypothesis import given
    from meshcost import testing

    @given(testing.jobs(plug_ins={"gossip": {"size": 2}}))
    def test_gossip(job):
        testing.check(job)

``check`` runs every law of ``LAWS`` on a job, or on a few small jobs around a strategy. A law takes a Job (or, where
that is all it looks at, a Ledger) and raises AssertionError with one sentence. A law that says nothing about a job, as
"ZeRO-1 sends what DDP sends" about one without data parallelism, holds. ``models``, ``meshes``, ``jobs`` and
``job_documents`` are Hypothesis strategies and need that package; the laws do not.

>>> from meshcost.job import Job
>>> check(Job(model="llama-3-8b", parallel={"tensor": {"size": 2}}, batch={"sequence": 64, "global_batch": 1}))
('size_one_axes_add_no_call', 'bytes_are_conserved', ..., 'zero3_is_one_and_a_half_ddp')
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from meshcost.errors import JobError
from meshcost.job import Job
from meshcost.ledger import Ledger
from meshcost.strategies import Strategy
from meshcost.testing.equalities import (
    batch_scales_activations_only,
    order_of_strategies_is_irrelevant,
    size_one_axes_add_no_call,
    tensor_with_sequence_equals_tensor_on_the_wire,
    zero1_is_ddp,
    zero2_is_ddp_of_one_micro_batch,
    zero3_is_one_and_a_half_ddp,
)
from meshcost.testing.layouts import jobs, meshes, models
from meshcost.testing.ledgers import (
    bytes_are_conserved,
    calls_match_counts,
    formulas_are_the_numbers,
    json_round_trip_is_identity,
    priced_ledger,
    ranks_make_up_the_cluster,
)
from meshcost.testing.plugging import registered
from meshcost.testing.spoilt import job_documents
from meshcost.testing.walk import LARGEST_WALK, calls_in_all, messages_match

__all__ = [
    "LARGEST_WALK",
    "LAWS",
    "batch_scales_activations_only",
    "bytes_are_conserved",
    "calls_in_all",
    "calls_match_counts",
    "check",
    "formulas_are_the_numbers",
    "job_documents",
    "jobs",
    "json_round_trip_is_identity",
    "meshes",
    "messages_match",
    "models",
    "order_of_strategies_is_irrelevant",
    "ranks_make_up_the_cluster",
    "registered",
    "size_one_axes_add_no_call",
    "tensor_with_sequence_equals_tensor_on_the_wire",
    "zero1_is_ddp",
    "zero2_is_ddp_of_one_micro_batch",
    "zero3_is_one_and_a_half_ddp",
]

_OF_LEDGERS: tuple[Callable[[Job | Ledger], None], ...] = (
    bytes_are_conserved,
    ranks_make_up_the_cluster,
    formulas_are_the_numbers,
    calls_match_counts,
    messages_match,
    json_round_trip_is_identity,
)
_OF_JOBS: tuple[Callable[[Job], None], ...] = (
    order_of_strategies_is_irrelevant,
    batch_scales_activations_only,
    tensor_with_sequence_equals_tensor_on_the_wire,
    zero1_is_ddp,
    zero2_is_ddp_of_one_micro_batch,
    zero3_is_one_and_a_half_ddp,
)

#: Every law by its name.
LAWS: Mapping[str, Callable[..., None]] = MappingProxyType(
    {law.__name__: law for law in (size_one_axes_add_no_call, *_OF_LEDGERS, *_OF_JOBS)}
)

_SMALL_LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 256,
}
_SMALL_MIXTRAL = {**_SMALL_LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
_NEIGHBOURS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    (_SMALL_LLAMA, {}),
    (_SMALL_LLAMA, {"data": {"strategy": "ddp", "size": 2}}),
    (
        _SMALL_LLAMA,
        {"data": {"strategy": "fsdp", "size": 2}, "tensor": {"size": 2, "sequence_parallel": True}},
    ),
    (_SMALL_LLAMA, {"pipeline": {"size": 2}, "context": {"size": 2}}),
    (
        _SMALL_MIXTRAL,
        {"data": {"strategy": "zero1", "size": 2}, "expert": {"size": 2}, "tensor": {"size": 2}},
    ),
)


def check(subject: Job | Strategy) -> tuple[str, ...]:
    """Hold a job to every law, or a strategy on a few small jobs; returns the names of the laws.

    A strategy need not be installed: it is made known under its ``axis`` for as long as this takes. The law
    ``messages_match`` walks through every call of every rank; it is left out (and not named) for jobs of more than
    ``LARGEST_WALK`` calls in all. Raises AssertionError for a broken law, JobError if the strategy refuses every one of
    the small jobs.

    >>> from meshcost.strategies import TensorParallel
    >>> "messages_match" in check(TensorParallel(size=2))
    True
    """
    if isinstance(subject, Job):
        return _check_job(subject)
    with registered(type(subject)):
        found = [
            job for model, others in _NEIGHBOURS if isinstance(job := _around(subject, model, others), Job)
        ]
        if not found:
            raise _refusal(subject)
        return tuple(dict.fromkeys(name for job in found for name in _check_job(job)))


def _check_job(job: Job) -> tuple[str, ...]:
    ledger = priced_ledger(job)
    size_one_axes_add_no_call(job)
    held = [size_one_axes_add_no_call.__name__]
    for law in _OF_LEDGERS:
        if law is not messages_match or calls_in_all(ledger) <= LARGEST_WALK:
            law(ledger)
            held.append(law.__name__)
    for about_jobs in _OF_JOBS:
        about_jobs(job)
        held.append(about_jobs.__name__)
    return tuple(held)


def _around(strategy: Strategy, model: dict[str, Any], others: dict[str, Any]) -> Job | JobError:
    """Put the strategy on its axis of a small layout, in place of what is there."""
    ranks = 2 * (strategy.size if strategy.splits_batch else 1)
    batch = {"sequence": 32 * strategy.size, "micro_batch": 2, "global_batch": 8 * ranks}
    try:
        return Job(model=model, parallel={**others, strategy.axis: strategy}, batch=batch)
    except JobError as error:
        return error


def _refusal(strategy: Strategy) -> JobError:
    error = _around(strategy, *_NEIGHBOURS[0])
    problems = error.problems if isinstance(error, JobError) else ()
    return JobError([f"no small job allows this {type(strategy).__name__}.", *problems])
