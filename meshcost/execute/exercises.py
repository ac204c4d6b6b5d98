"""Exercises: one collective with buffers whose right result is known in advance.

Position r contributes (r mod 31 + 1) (i mod 1021) at place i of the payload. The sums of up to 1,024 of them stay whole
numbers that fp32 holds exactly, and no neighbouring positions or places look alike, so a chunk that is lost, doubled or
misplaced is seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from meshcost.execute.plan import ITEM_BYTES, Case

_PERIOD, _FACTORS, _BLOCK = 1021, 31, 2**18
# Since torch 2.13 these have new names, and the old ones warn.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, slots=True)
class Exercise:
    """One call: ``reset`` fills the buffers, ``run`` makes the call, ``check`` says whether the result is right.

    ``result`` is what this rank is promised, as one flat tensor; None if it is promised nothing.
    """

    reset: Callable[[], None]
    run: Callable[[], None]
    check: Callable[[], bool]
    result: Callable[[], torch.Tensor | None]


def factor_of(position: int) -> int:
    """How many times the pattern a position contributes.

    >>> [factor_of(position) for position in (0, 1, 30, 31)]
    [1, 2, 31, 1]
    """
    return position % _FACTORS + 1


def fill(tensor: torch.Tensor, first: int, factor: int) -> None:
    """Write ``factor`` times the pattern that begins at place ``first``, block by block to save memory."""
    for start in range(0, tensor.numel(), _BLOCK):
        part = tensor[start : start + _BLOCK]
        part.copy_(_pattern(first + start, part.numel(), tensor.device) * factor)


def holds(tensor: torch.Tensor, first: int, factor: int) -> bool:
    """Whether a tensor is ``factor`` times the pattern from ``first``, exactly."""
    blocks = range(0, tensor.numel(), _BLOCK)
    return all(
        torch.equal(part, (_pattern(first + start, part.numel(), part.device) * factor).to(part.dtype))
        for start in blocks
        for part in (tensor[start : start + _BLOCK],)
    )


def _pattern(first: int, count: int, device: torch.device) -> torch.Tensor:
    return torch.arange(first, first + count, device=device) % _PERIOD


def exercise(case: Case, position: int, group: dist.ProcessGroup, device: torch.device) -> Exercise:
    """Build the buffers of one position and the call that a case names."""
    return _BUILDERS[case.op](_Stage(case, position, group, device))


@dataclass(frozen=True, slots=True)
class _Stage:
    case: Case
    position: int
    group: dist.ProcessGroup
    device: torch.device

    @property
    def elements(self) -> int:
        return self.case.payload_bytes // ITEM_BYTES

    @property
    def chunk(self) -> int:
        return self.elements // self.case.ranks

    @property
    def factor(self) -> int:
        return factor_of(self.position)

    @property
    def whole_sum(self) -> int:
        return sum(map(factor_of, range(self.case.ranks)))

    @property
    def root(self) -> int:
        return self.case.members[self.case.root]

    @property
    def is_root(self) -> bool:
        return self.position == self.case.root

    def buffer(self, elements: int) -> torch.Tensor:
        return torch.empty(elements, dtype=torch.float32, device=self.device)

    def gathered(self, parts: Sequence[torch.Tensor]) -> bool:
        return all(holds(part, i * self.chunk, factor_of(i)) for i, part in enumerate(parts))


def _all_reduce(at: _Stage) -> Exercise:
    tensor = at.buffer(at.elements)
    return Exercise(
        lambda: fill(tensor, 0, at.factor),
        lambda: _done(dist.all_reduce(tensor, group=at.group)),
        lambda: holds(tensor, 0, at.whole_sum),
        lambda: tensor,
    )


def _reduce(at: _Stage) -> Exercise:
    tensor = at.buffer(at.elements)
    return Exercise(
        lambda: fill(tensor, 0, at.factor),
        lambda: _done(dist.reduce(tensor, at.root, group=at.group)),
        lambda: not at.is_root or holds(tensor, 0, at.whole_sum),
        lambda: tensor if at.is_root else None,
    )


def _broadcast(at: _Stage) -> Exercise:
    tensor = at.buffer(at.elements)
    return Exercise(
        lambda: fill(tensor, 0, at.factor),
        lambda: _done(dist.broadcast(tensor, at.root, group=at.group)),
        lambda: holds(tensor, 0, factor_of(at.case.root)),
        lambda: tensor,
    )


def _gathers(at: _Stage) -> Exercise:
    own, out = at.buffer(at.chunk), at.buffer(at.elements)
    return Exercise(
        lambda: fill(own, at.position * at.chunk, at.factor),
        lambda: _done(_all_gather(out, own, group=at.group)),
        lambda: at.gathered(out.chunk(at.case.ranks)),
        lambda: out,
    )


def _reduces_and_scatters(at: _Stage) -> Exercise:
    whole, out = at.buffer(at.elements), at.buffer(at.chunk)
    return Exercise(
        lambda: fill(whole, 0, at.factor),
        lambda: _done(_reduce_scatter(out, whole, group=at.group)),
        lambda: holds(out, at.position * at.chunk, at.whole_sum),
        lambda: out,
    )


def _all_to_all(at: _Stage) -> Exercise:
    whole, out = at.buffer(at.elements), at.buffer(at.elements)
    return Exercise(
        lambda: fill(whole, 0, at.factor),
        lambda: _done(dist.all_to_all_single(out, whole, group=at.group)),
        lambda: all(
            holds(part, at.position * at.chunk, factor_of(i))
            for i, part in enumerate(out.chunk(at.case.ranks))
        ),
        lambda: out,
    )


def _gather(at: _Stage) -> Exercise:
    own = at.buffer(at.chunk)
    parts = [at.buffer(at.chunk) for _ in at.case.members] if at.is_root else None
    return Exercise(
        lambda: fill(own, at.position * at.chunk, at.factor),
        lambda: _done(dist.gather(own, parts, dst=at.root, group=at.group)),
        lambda: parts is None or at.gathered(parts),
        lambda: None if parts is None else torch.cat(parts),
    )


def _scatter(at: _Stage) -> Exercise:
    own = at.buffer(at.chunk)
    parts = [at.buffer(at.chunk) for _ in at.case.members] if at.is_root else None

    def reset() -> None:
        for i, part in enumerate(parts or ()):
            fill(part, i * at.chunk, at.factor)

    return Exercise(
        reset,
        lambda: _done(dist.scatter(own, parts, src=at.root, group=at.group)),
        lambda: holds(own, at.position * at.chunk, factor_of(at.case.root)),
        lambda: own,
    )


def _send_recv(at: _Stage) -> Exercise:
    """The root sends to the position after it; everybody else looks on."""
    tensor = at.buffer(at.elements)
    place, members = (at.position - at.case.root) % at.case.ranks, at.case.members
    peer = members[(at.case.root + 1) % at.case.ranks]

    def run() -> None:
        if place == 0:
            dist.send(tensor, peer, group=at.group)
        elif place == 1:
            dist.recv(tensor, at.root, group=at.group)

    return Exercise(
        lambda: fill(tensor, 0, at.factor),
        run,
        lambda: place != 1 or holds(tensor, 0, factor_of(at.case.root)),
        lambda: tensor if place == 1 else None,
    )


def _barrier(at: _Stage) -> Exercise:
    return Exercise(lambda: None, lambda: _done(dist.barrier(group=at.group)), lambda: True, lambda: None)


def _done(work: object) -> None:
    """Drop what a blocking call returns."""


_BUILDERS: dict[str, Callable[[_Stage], Exercise]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _gathers,
    "reduce_scatter": _reduces_and_scatters,
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _scatter,
    "send_recv": _send_recv,
    "barrier": _barrier,
}


def native_call(case: Case, group: dist.ProcessGroup, first: torch.Tensor, second: torch.Tensor) -> None:
    """Make a call of the library on parts of two large enough buffers, whatever is in them; position 0 is the root."""
    elements = case.payload_bytes // ITEM_BYTES
    whole, other, chunk = first[:elements], second[:elements], second[: elements // case.ranks]
    match case.op:
        case "all_reduce":
            dist.all_reduce(whole, group=group)
        case "reduce":
            dist.reduce(whole, case.members[0], group=group)
        case "broadcast":
            dist.broadcast(whole, case.members[0], group=group)
        case "all_gather":
            _all_gather(whole, chunk, group=group)
        case "reduce_scatter":
            _reduce_scatter(chunk, whole, group=group)
        case "all_to_all":
            dist.all_to_all_single(other, whole, group=group)
        case _:
            raise ValueError(f"a step has no {case.op}")
