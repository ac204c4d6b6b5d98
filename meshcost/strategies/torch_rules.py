"""What PyTorch has nothing of, or refuses: said before a step is predicted under ``framework: torch``, or traced."""

from collections.abc import Iterator

from meshcost.strategies.data.options import SHARDS_WEIGHTS
from meshcost.strategies.data.padding import placement_problems
from meshcost.strategies.setting import Setting, divisors, one_of

#: Schedules of torch.distributed.pipelining, by the names that they have here.
SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b", "interleaved_zb", "zbv", "dualpipev")


def torch_problems(setting: Setting) -> Iterator[str]:
    """Say what of a layout PyTorch cannot do."""
    parallel = setting.parallel
    if parallel["data"].strategy == "zero2":
        yield "parallel.data.strategy: torch has no zero2. Choose ddp, zero1 or fsdp."
    if parallel["context"].size > 1 and parallel["context"].method == "ulysses":
        yield "parallel.context.method: torch has no ulysses. Choose ring or all_gather."
    if parallel["pipeline"].size > 1:
        if (schedule := parallel["pipeline"].schedule) not in SCHEDULES:
            yield f"parallel.pipeline.schedule: torch has no {schedule}. Choose {', '.join(SCHEDULES)}."
        if parallel["pipeline"].scatter_gather:
            yield "parallel.pipeline.scatter_gather: torch sends activations whole. Leave it out."
    for axis in parallel:
        if axis not in ("data", "tensor", "pipeline", "context", "expert"):
            yield f"parallel.{axis}: torch knows nothing of it. Leave it out."
    yield from _reshard_problems(setting)
    yield from placement_problems(setting)


def _reshard_problems(setting: Setting) -> Iterator[str]:
    part, data = setting.torch.reshard_after_forward, setting.parallel["data"]
    if part is None or isinstance(part, bool) or data.strategy not in SHARDS_WEIGHTS:
        return
    ranks = setting.size("data", "context") // data.replicate
    if ranks % part:
        yield (
            f"torch.reshard_after_forward: {part} does not divide the {ranks} ranks that share weights. "
            + one_of(divisors(ranks))
        )
