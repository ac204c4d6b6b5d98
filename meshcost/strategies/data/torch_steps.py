"""The program of a step under PyTorch: the groups of fully_shard, or the buckets of DistributedDataParallel."""

from collections.abc import Iterator
from dataclasses import replace

from meshcost.program import Program
from meshcost.strategies.data.buckets import bucket_name, buckets, reduced
from meshcost.strategies.data.fully_shard import sharding_of
from meshcost.strategies.data.options import syncs_every
from meshcost.strategies.data.torch_replicated import handed_out
from meshcost.strategies.torch_layout import replicates, shards_weights
from meshcost.strategies.view import View
from meshcost.torch_program import Bucket, TorchProgram


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
        buckets=tuple(tuple(_buckets(view, stage)) for stage in stages),
        buckets_every=syncs_every(view.setting) and view.mesh.stages == 1,
        updates=tuple(tuple(_updates(view, stage)) for stage in stages) if updates else (),
    )


def _buckets(view: View, stage: int) -> Iterator[Bucket]:
    """Yield the buckets of a stage; where torch looks for unused weights, a map of them too."""
    torch = view.setting.torch
    used_map = f"map of {len(reduced(view, stage))} weights"
    filled = buckets(view, stage)
    if torch.static_graph and torch.step == 0:
        yield Bucket(used_map, filled[0].ready)
    yield from (Bucket(bucket_name(view, x.weights), x.ready, x.late) for x in filled)
    if torch.find_unused_parameters and not torch.static_graph:
        yield Bucket(used_map, filled[-1].ready, filled[-1].late)


def _updates(view: View, stage: int) -> Iterator[str]:
    """Yield the broadcasts of updated weights: one for each, or one for each rank that owns some."""
    yield from (bucket_name(view, weights) for weights in handed_out(view, stage))
