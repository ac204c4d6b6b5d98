"""Laws between jobs: two layouts that have to send the same, or one a known multiple of the other."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

from sympy import Add, ceiling

from meshcost import symbols as sym
from meshcost.errors import JobError
from meshcost.event import Event
from meshcost.job import Job, analyze
from meshcost.ledger import Ledger
from meshcost.strategies import View, events
from meshcost.testing.ledgers import named, require

_GROWS_WITH_BATCH = {sym.T, sym.b, sym.B}
_SHARDS_WEIGHTS = ("zero3", "fsdp")


def vary(job: Job, **changes: Any) -> Job:
    """Return the same job with some fields replaced. Raises JobError where that cannot be.

    >>> job = Job(model="gpt2", batch={"sequence": 8, "global_batch": 1})
    >>> vary(job, recompute="full").recompute
    'full'
    """
    return Job(**{name: getattr(job, name) for name in Job.model_fields} | changes)


def with_options(job: Job, axis: str, **options: Any) -> Job:
    """Return the same job with other options on one axis. Raises JobError where that cannot be."""
    strategy = job.parallel.strategies[axis].model_copy(update=options)
    return vary(job, parallel=job.parallel.model_copy(update={axis: strategy}))


def _same_events(one: Iterable[Event], other: Iterable[Event], what: str) -> None:
    first, second = Counter(map(_key, one)), Counter(map(_key, other))
    extra = next(iter((first - second) | (second - first)), None)
    require(extra is None, f"{what}: one ledger has more of {extra}.")


def _key(event: Event) -> tuple[Any, ...]:
    plain = replace(event, price=None)
    return plain, event.payload_bytes, event.calls


def order_of_strategies_is_irrelevant(job: Job) -> None:
    """Check that every order in which strategies write their events gives the same ledger.

    The layout is handed to them in that order too, so a strategy that trusts what came before it is found out.

    >>> order_of_strategies_is_irrelevant(Job(model="gpt2", batch={"sequence": 8, "global_batch": 1}))
    """
    first = None
    for order in _orders(list(job.setting.parallel)):
        setting = replace(job.setting, parallel={axis: job.setting.parallel[axis] for axis in order})
        view = View(setting, job.mesh, job.program, job.values)
        written = [
            event for strategy in setting.parallel.values() for event in events(strategy, view, job.framework)
        ]
        first = written if first is None else first
        _same_events(first, written, f"strategies in the order {', '.join(order)}")


def _orders(axes: list[str]) -> Iterator[list[str]]:
    """All rotations, and their mirror images: every axis stands before and after every other one."""
    for start in range(len(axes)):
        turned = axes[start:] + axes[:start]
        yield turned
        yield turned[::-1]


def size_one_axes_add_no_call(job: Job) -> None:
    """Check that no call is made along an axis of one rank, and that the options of such an axis change nothing.

    >>> job = Job(model="gpt2", parallel={"tensor": {"size": 1}}, batch={"sequence": 8, "global_batch": 1})
    >>> size_one_axes_add_no_call(job)
    """
    ledger = analyze(job)
    require(job.world_size > 1 or not ledger.events, "a world of one rank makes calls.")
    for event in ledger:
        alone = [axis for axis in event.axes if job.mesh.size(axis) == 1]
        require(not alone, f"{named(event)}: there is one rank along {', '.join(alone)}.")
    for axis, strategy in job.parallel.strategies.items():
        if strategy.size == 1 and axis not in _in_use(job):
            plain = vary(job, parallel=job.parallel.model_copy(update={axis: type(strategy)()}))
            _same_events(ledger, analyze(plain), f"{axis}, one rank, as written and left out")


def _in_use(job: Job) -> set[str]:
    """Axes whose options matter although one rank is along them.

    Weights are sharded over data x context, and experts over what is left of the stage.
    """
    used = {"expert"} if job.setting.experts_apart else set()
    return used | {"data"} if job.mesh.size("context") > 1 or job.mesh.size("expert_data") > 1 else used


def batch_scales_activations_only(job: Job) -> None:
    """Check that twice the micro-batch in twice the global batch doubles activations and changes nothing else.

    >>> job = Job(model="gpt2", parallel={"data": {"size": 2}}, batch={"sequence": 8, "global_batch": 2})
    >>> batch_scales_activations_only(job)
    """
    batch = job.batch.model_dump()
    doubled = {**batch, "micro_batch": 2 * batch["micro_batch"], "global_batch": 2 * batch["global_batch"]}
    before, after = analyze(job).events, analyze(vary(job, batch=doubled)).events
    require(len(before) == len(after), f"{len(before)} events became {len(after)} with twice the batch.")
    for small, large in zip(before, after, strict=True):
        same = (small.strategy, small.op, small.axes, small.stages, small.phase, small.why)
        require(
            same == (large.strategy, large.op, large.axes, large.stages, large.phase, large.why),
            f"{same} is gone.",
        )
        require(small.calls == large.calls, f"{named(small)}: {small.calls} calls became {large.calls}.")
        _grows_as_it_should(small, large)


def _grows_as_it_should(small: Event, large: Event) -> None:
    old, new = small.payload_bytes, large.payload_bytes
    rounded = small.payload.has(ceiling) or large.payload.has(ceiling)
    if not small.payload.free_symbols & _GROWS_WITH_BATCH:
        require(old == new, f"{named(small)}: {old} B, which is no activation, became {new} B.")
    elif rounded:
        require(
            old <= new <= 2 * old,
            f"{named(small)}: {old} B, rounded up, became {new} B, more than twice as much.",
        )
    else:
        require(new == 2 * old, f"{named(small)}: {old} B became {new} B, not twice as much.")


def tensor_with_sequence_equals_tensor_on_the_wire(job: Job) -> None:
    """Check that sequence parallelism sends as many bytes of activations as tensor parallelism without it.

    Each all-reduce becomes an all-gather and a reduce-scatter (Korthikanti et al. 2022, section 4.2.2). Where experts
    live apart from other weights, tokens take another way and the law says nothing; nor does it where tokens do not
    divide by the tensor ranks. Full recomputation repeats an all-reduce of what leaves a region, but a gather of what
    enters it too: where the two differ in width (latent attention), the law is about the same job without it.

    >>> tensor_with_sequence_equals_tensor_on_the_wire(
    ...     Job(model="llama-3-8b", parallel={"tensor": {"size": 2}}, batch={"sequence": 8, "global_batch": 1})
    ... )
    """
    if job.mesh.size("tensor") == 1 or job.setting.experts_apart or set(job.algorithms.values()) - {"ring"}:
        return
    if job.parallel.pipeline.scatter_gather:
        job = with_options(job, "pipeline", scatter_gather=False)
    regions = [region for kind in job.setting.model.kinds for region in kind.regions]
    if any(Add(*region.inputs) != region.output for region in regions):
        job = vary(job, recompute="none")
    try:
        whole, split = (with_options(job, "tensor", sequence_parallel=answer) for answer in (False, True))
    except JobError:
        return
    one, other = (_activation_bytes(analyze(x)) for x in (whole, split))
    require(one == other, f"tensor sends {one} B of activations, with sequence parallelism {other} B.")


def _activation_bytes(ledger: Ledger) -> list[int]:
    """Bytes of activations that tensor parallelism sends, for a rank of each stage."""
    sums = [0] * ledger.mesh.stages
    for event in ledger.filter(strategy="tensor"):
        if sym.T in event.payload.free_symbols:
            for stage in event.stages:
                sums[stage] += event.totals.sent_bytes
    return sums


def zero1_is_ddp(job: Job) -> None:
    """Check that ZeRO-1 sends what DDP sends, where weights and gradients have one data type and sync once.

    Rajbhandari et al. 2020, section 7: an all-reduce is a reduce-scatter and an all-gather.

    >>> zero1_is_ddp(Job(model="gpt2", parallel={"data": {"size": 2}}, batch={"sequence": 8, "global_batch": 2}))
    """
    _multiple_of_ddp(job, "zero1", Fraction(1))


def zero2_is_ddp_of_one_micro_batch(job: Job) -> None:
    """Check that ZeRO-2 sends what DDP sends when a step has one micro-batch; with more, it reduces after each.

    >>> zero2_is_ddp_of_one_micro_batch(
    ...     Job(model="gpt2", parallel={"data": {"size": 2}}, batch={"sequence": 8, "global_batch": 2})
    ... )
    """
    _multiple_of_ddp(job, "zero2", Fraction(1))


def zero3_is_one_and_a_half_ddp(job: Job) -> None:
    """Check that ZeRO-3 sends 1.5 times what DDP sends in a step of one micro-batch.

    Rajbhandari et al. 2020, section 7: weights are gathered forward and backward, gradients reduce-scattered.

    >>> job = Job(model="gpt2", parallel={"data": {"size": 2}}, batch={"sequence": 8, "global_batch": 2})
    >>> zero3_is_one_and_a_half_ddp(job)
    """
    _multiple_of_ddp(job, "zero3", Fraction(3, 2))


def _multiple_of_ddp(job: Job, strategy: str, factor: Fraction) -> None:
    """Compare one micro-batch of a strategy with DDP, all weights trained and in one data type."""
    ranks = job.setting.batch_ranks
    batch = {**job.batch.model_dump(), "global_batch": job.batch.micro_batch * ranks}
    precision = job.precision.model_copy(update={"gradients": None, "reduce": None})
    pipeline = {
        "pipeline": type(job.parallel.pipeline)()
    }  # one micro-batch is not legal under every schedule
    parallel = job.parallel.model_copy(update=pipeline)
    try:
        alike = vary(
            job, batch=batch, precision=precision, freeze=(), lora=None, algorithms={}, parallel=parallel
        )
    except JobError:
        return
    plain = {"replicate": 1, "gradient_sync": None, "reshard_after_forward": None, "gather": None}
    ddp, other = (analyze(with_options(alike, "data", strategy=x, **plain)) for x in ("ddp", strategy))
    sent, expected = _data_bytes(other, strategy), factor * _data_bytes(ddp, "ddp")
    slack = _rounding(other) + 2 * _rounding(ddp)
    require(
        abs(sent - expected) <= slack,
        f"{strategy} sends {sent} B, {factor} times ddp is {expected} B (rounding explains {slack} B).",
    )


def _data_bytes(ledger: Ledger, strategy: str) -> int:
    return sum(event.totals.sent_bytes for event in ledger.filter(strategy=strategy))


def _rounding(ledger: Ledger) -> int:
    """Bytes by which chunks that do not divide evenly can differ: an element or two a call."""
    return sum(2 * x.calls * x.item_bytes for x in ledger if x.payload_bytes % (x.group_size * x.item_bytes))
