"""The program of a step under PyTorch: the groups of fully_shard, or the buckets of DistributedDataParallel."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshcost.program import Program
from meshcost.strategies.data.buckets import (
    Filled,
    arriving,
    bucket_name,
    late_weights,
    rebuilt_at,
    reduced,
    reduces_every,
    rounds,
)
from meshcost.strategies.data.fully_shard import sharding_of
from meshcost.strategies.data.torch_replicated import handed_out
from meshcost.strategies.torch_layout import is_partial, partial_name, replicates, shards_weights
from meshcost.strategies.view import View
from meshcost.torch_program import Reduction, TorchProgram


def torch_program(view: View) -> Program:
    """Put around the units of a view's program what the data strategy calls there."""
    program = view.program
    plain = TorchProgram(
        program.schedule, program.units, votes=view.setting.torch.step == 0 and view.mesh.stages > 1
    )
    if shards_weights(view):
        return replace(plain, sharding=sharding_of(view.setting, program.units))
    if not replicates(view):
        return plain
    updates = view.setting.parallel["data"].strategy == "zero1"
    stages = range(len(program.units))
    return replace(
        plain,
        reductions=tuple(tuple(_reductions(view, stage)) for stage in stages),
        reduces_every=reduces_every(view),
        rebuilt_in=tuple(_rebuilt_in(view, stage) for stage in stages),
        updates=tuple(tuple(_updates(view, stage)) for stage in stages) if updates else (),
    )


def _rebuilt_in(view: View, stage: int) -> int:
    """Micro-batch in which the ranks of a stage agree on their buckets, where they do so in this step."""
    begin = rebuilt_at(view, stage)
    return begin[1] if begin else 0


def _reductions(view: View, stage: int) -> Iterator[Reduction]:
    """Yield what a stage reduces; where torch looks for unused weights, a map of them too."""
    torch = view.setting.torch
    used_map = f"bucket map of {len(reduced(view, stage))} weights"
    made = rounds(view, stage)
    if not made[-1].buckets:
        return
    if torch.static_graph and torch.step == 0:
        yield Reduction(used_map, made[0].buckets[0].ready, until=1 if reduces_every(view) else None)
    for each in made:
        for reduction in _at_end(view, stage, each.buckets):
            yield replace(reduction, since=each.since, until=each.until)
    if torch.find_unused_parameters and not torch.static_graph:
        last = made[-1].buckets[-1]
        yield Reduction(used_map, last.ready, last.late)


def _at_end(view: View, stage: int, filled: Sequence[Filled]) -> Iterator[Reduction]:
    """Yield the buckets. Gradients of DTensors arrive at the end, and those that are partial sums are made whole first."""
    late = late_weights(view)
    waiting = deque((x, {w.name for w in x.weights if w.weight.name in late}) for x in filled)
    yield from _full(view, waiting)
    for item in arriving(view, reduced(view, stage)):
        if item.weight.name in late:
            if is_partial(view, item.weight):
                yield Reduction(partial_name(item.weight), filled[-1].ready, filled[-1].late, every=True)
            for _, missing in waiting:
                missing.discard(item.name)
            yield from _full(view, waiting)


def _full(view: View, waiting: deque[tuple[Filled, set[str]]]) -> Iterator[Reduction]:
    """Take the buckets at the front that miss no gradient."""
    while waiting and not waiting[0][1]:
        bucket, _ = waiting.popleft()
        yield Reduction(
            f"bucket {bucket_name(view, bucket.weights)}", bucket.ready, bucket.late, upto=bucket.upto
        )


def _updates(view: View, stage: int) -> Iterator[str]:
    """Yield the broadcasts of updated weights: one for each, or one for each rank that owns some."""
    yield from (bucket_name(view, weights) for weights in handed_out(view, stage))
