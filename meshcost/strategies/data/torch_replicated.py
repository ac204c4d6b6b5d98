"""Replicas of all weights as PyTorch 2.13 keeps them: DistributedDataParallel and ZeroRedundancyOptimizer.

Calls    ddp     all_reduce of each bucket of gradients, in the order in which gradients arrive
         zero1   the same, and a broadcast of each updated weight from its owner
Sends    2 W (d - 1) / d   bytes for gradients, ring; W more for updates, from the owners
Assumes  every weight that trains gets a gradient in every pass
Source   torch.nn.parallel.DistributedDataParallel, torch.distributed.optim.ZeroRedundancyOptimizer
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from sympy import Integer, Rational

from meshcost.event import Event, Phase, Site
from meshcost.strategies.data.buckets import (
    bucket_elements,
    bucket_name,
    gradient_dtype,
    owners,
    rebuilt_at,
    reduced,
    rounds,
)
from meshcost.strategies.data.options import DataParallel, syncs_every
from meshcost.strategies.data.placed import Placed
from meshcost.strategies.data.torch_counts import Counts
from meshcost.strategies.torch_layout import REPLICAS
from meshcost.strategies.view import Draft, View, When
from meshcost.units import DTYPE_BYTES

_COMPRESSED = {"bf16_compress_hook": "bf16", "fp16_compress_hook": "fp16"}


def events(data: DataParallel, view: View) -> Iterator[Event]:
    """Yield the buckets of every stage, what is agreed on beforehand, and the updates that are handed out."""
    counts, stored = Counts(view), gradient_dtype(view)
    sent = _COMPRESSED.get(view.setting.torch.comm_hook or "", stored)
    drafts: dict[str, Draft] = {}
    for stage in range(len(view.program.units)):
        for bucket in (bucket for each in rounds(view, stage) for bucket in each.buckets):
            name = f"bucket {bucket_name(view, bucket.weights)}"
            why = f"sum the gradients of {_number(len(bucket.weights), 'weight')} in a bucket"
            drafts.setdefault(name, _draft(view, "all_reduce", bucket.weights, sent, why))
        yield from _agreed(view, stage, counts)
    for part, draft in drafts.items():
        yield from counts.place(draft, part, (0,))
    if data.strategy == "zero1":
        yield from _updates(view, stored)


def _draft(view: View, op: str, weights: Sequence[Placed], dtype: str, why: str) -> Draft:
    phase: Phase = "backward" if op == "all_reduce" else "optimizer"
    payload = bucket_elements(view, weights) * Rational(DTYPE_BYTES[dtype])
    return Draft(view.setting.parallel["data"].strategy, op, REPLICAS, phase, payload, dtype, why)


def _agreed(view: View, stage: int, counts: Counts) -> Iterator[Event]:
    """Yield the small messages by which ranks agree on unused weights, on buckets and on buffers."""
    torch, weights = view.setting.torch, len(reduced(view, stage))
    host = (view.program.schedule.host(stage),)
    used = _small(view, "all_reduce", 4 * weights, "agree on unused weights")
    yield from counts.place(used, f"bucket map of {weights} weights", (0,))
    begin = rebuilt_at(view, stage)
    begins = begin is not None and begin[0] == torch.step
    if begins and (torch.static_graph or not torch.find_unused_parameters):
        order = _small(view, "broadcast", 4 * (weights + 1), "agree on the order of gradients")
        sizes = _small(
            view, "broadcast", 4 * len(rounds(view, stage)[-1].buckets), "agree on the sizes of buckets"
        )
        yield from view.at(order, Integer(1), Site(f"begin {stage}", (0,)), host, view.values)
        yield from view.at(sizes, Integer(1), Site(f"begin {stage}", (1,)), host, view.values)
    if torch.broadcast_buffers and torch.buffer_bytes and view.mesh.stages == 1:
        buffers = _small(view, "broadcast", torch.buffer_bytes, "hand out the buffers of rank 0")
        when: When = "every" if syncs_every(view.setting) else "first"
        yield from view.call(replace(buffers, dtype="fp32"), view.units[0], order=(-99,), micro_batches=when)


def _small(view: View, op: str, size: int, why: str) -> Draft:
    phase: Phase = "backward" if op == "all_reduce" else "forward"
    return Draft(view.setting.parallel["data"].strategy, op, REPLICAS, phase, Integer(size), "int32", why)


def _updates(view: View, dtype: str) -> Iterator[Event]:
    """Yield the broadcasts of weights by the ranks that updated them."""
    drafts: dict[str, Draft] = {}
    hosts: dict[str, Counter[int]] = {}
    for stage in range(len(view.program.units)):
        for weights in handed_out(view, stage):
            name = f"update {bucket_name(view, weights)}"
            why = f"hand out {_number(len(weights), 'updated weight')} from the owner"
            drafts.setdefault(name, _draft(view, "broadcast", weights, dtype, why))
            hosts.setdefault(name, Counter())[view.program.schedule.host(stage)] += 1
    for name, draft in drafts.items():
        by_count: dict[int, list[int]] = {}
        for rank, count in hosts[name].items():
            by_count.setdefault(count, []).append(rank)
        for count, ranks in by_count.items():
            yield from view.at(draft, Integer(count), Site(name), tuple(sorted(ranks)), view.values)


def handed_out(view: View, stage: int) -> Iterator[Sequence[Placed]]:
    """Yield what each broadcast at the end of a step carries: one weight, or all that one rank owns."""
    for owned in owners(view, reduced(view, stage), view.mesh.size(*REPLICAS)):
        if not view.setting.torch.parameters_as_bucket_view:
            yield from ((item,) for item in owned)
        elif owned:
            yield owned


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
