"""The communication operations that PyTorch dispatches: which of ours each one is, and which tensors go in and out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from meshcost.execute.recording import UNKNOWN
from meshcost.execute.recording_truth import DTYPES

NAMESPACES = ("c10d", "_c10d_functional", "_dtensor")

#: Operations of these namespaces that send nothing.
SILENT = frozenset(
    {
        "_c10d_functional.wait_tensor",
        "_c10d_functional._wrap_tensor_autograd",
        "_dtensor.mesh_get_process_group",
        "c10d.check_for_nan",
    }
)

RESULT = "result"


@dataclass(frozen=True, slots=True)
class Signature:
    """Where the tensors of an operation are: names of its arguments, or ``result``, or None where nothing goes."""

    op: str
    into: str | None
    out: str | None
    root: str | None = None


#: By name; the functional forms of c10d give back what c10d writes into an argument.
SIGNATURES: Mapping[str, Signature] = {
    "c10d._allgather_base_": Signature("all_gather", "input_tensor", "output_tensor"),
    "c10d.allgather_": Signature("all_gather", "input_tensors", "output_tensors"),
    "c10d.allgather_coalesced_": Signature("all_gather", "input_list", "output_lists"),
    "c10d.allgather_into_tensor_coalesced_": Signature("all_gather", "inputs", "outputs"),
    "c10d._reduce_scatter_base_": Signature("reduce_scatter", "input_tensor", "output_tensor"),
    "c10d.reduce_scatter_": Signature("reduce_scatter", "input_tensors", "output_tensors"),
    "c10d.reduce_scatter_tensor_coalesced_": Signature("reduce_scatter", "inputs", "outputs"),
    "c10d.allreduce_": Signature("all_reduce", "tensors", "tensors"),
    "c10d.allreduce_coalesced_": Signature("all_reduce", "tensors", "tensors"),
    "c10d.alltoall_": Signature("all_to_all", "input_tensors", "output_tensors"),
    "c10d.alltoall_base_": Signature("all_to_all", "input", "output"),
    "c10d.broadcast_": Signature("broadcast", "tensors", "tensors", "root_rank"),
    "c10d.reduce_": Signature("reduce", "tensors", "tensors", "root_rank"),
    "c10d.gather_": Signature("gather", "input_tensors", "output_tensors", "root_rank"),
    "c10d.scatter_": Signature("scatter", "input_tensors", "output_tensors", "root_rank"),
    "c10d.send": Signature("send", "tensors", None, "dst"),
    "c10d.recv_": Signature("recv", None, "tensors", "src"),
    "c10d.recv_any_source_": Signature("recv", None, "tensors"),
    "c10d.barrier": Signature("barrier", None, None),
    "c10d.monitored_barrier_": Signature("barrier", None, None),
    "_c10d_functional.all_gather_into_tensor": Signature("all_gather", "input", RESULT),
    "_c10d_functional.all_gather_into_tensor_out": Signature("all_gather", "input", RESULT),
    "_c10d_functional.all_gather_into_tensor_coalesced": Signature("all_gather", "inputs", RESULT),
    "_c10d_functional.reduce_scatter_tensor": Signature("reduce_scatter", "input", RESULT),
    "_c10d_functional.reduce_scatter_tensor_out": Signature("reduce_scatter", "input", RESULT),
    "_c10d_functional.reduce_scatter_tensor_coalesced": Signature("reduce_scatter", "inputs", RESULT),
    "_c10d_functional.all_reduce": Signature("all_reduce", "input", RESULT),
    "_c10d_functional.all_reduce_": Signature("all_reduce", "input", RESULT),
    "_c10d_functional.all_reduce_coalesced": Signature("all_reduce", "inputs", RESULT),
    "_c10d_functional.all_reduce_coalesced_": Signature("all_reduce", "inputs", RESULT),
    "_c10d_functional.all_to_all_single": Signature("all_to_all", "input", RESULT),
    "_c10d_functional.broadcast": Signature("broadcast", "input", RESULT, "src"),
    "_c10d_functional.broadcast_": Signature("broadcast", "input", RESULT, "src"),
    "_c10d_functional.isend": Signature("send", "tensor", None, "dst"),
    "_c10d_functional.irecv": Signature("recv", None, "tensor", "src"),
    "_dtensor.shard_dim_alltoall": Signature("all_to_all", "input", RESULT),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What one call of an operation showed, before anyone asked when and why. ``root`` is a global rank."""

    op: str
    raw: str
    ranks: tuple[int, ...]
    in_bytes: int
    out_bytes: int
    dtype: str
    reduce_op: str
    root: int | None
    tensors: tuple[int, ...]
    group: str


def name_of(func: Any) -> str:
    """Name an operation without its overload: ``c10d.allreduce_``."""
    return f"{func.namespace}.{func._schema.name.partition('::')[2]}"


def look(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Seen:
    """Read what a call did from its arguments and its result. An operation that is not known is called ``unknown``."""
    given = _named(func, args, kwargs)
    raw = name_of(func)
    group = next(filter(None, map(_group, given.values())), None)
    members = tuple(dist.get_process_group_ranks(group)) if group is not None else ()
    signature = SIGNATURES.get(raw)
    if signature is None:
        into, out = tensors_of(list(given.values())), tensors_of(result)
        op, root = UNKNOWN, None
    else:
        into, out = (_at(where, given, result) for where in (signature.into, signature.out))
        op, root = signature.op, _root(signature, given, members)
    seen = [*into, *out]
    return Seen(
        op=op,
        raw=raw,
        ranks=members,
        in_bytes=sum(map(bytes_of, into)),
        out_bytes=sum(map(bytes_of, out)),
        dtype=dtype_of(seen[0]) if seen else "",
        reduce_op=_reduction(given),
        root=root,
        tensors=tuple(map(id, seen)),
        group=getattr(group, "group_desc", "") or "",
    )


def _named(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _at(where: str | None, given: Mapping[str, Any], result: Any) -> list[torch.Tensor]:
    if where is None:
        return []
    return list(tensors_of(result if where == RESULT else given[where]))


def tensors_of(value: Any) -> list[torch.Tensor]:
    """List the tensors in nested lists and tuples."""
    if isinstance(value, torch.Tensor):
        return [value]
    return list(_inside(value)) if isinstance(value, list | tuple) else []


def _inside(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        yield from tensors_of(value)


def bytes_of(tensor: torch.Tensor) -> int:
    """Bytes of the elements of a tensor, whatever storage lies behind it."""
    return tensor.numel() * tensor.element_size()


def dtype_of(tensor: torch.Tensor) -> str:
    """Name a data type as meshcost does.

    >>> dtype_of(torch.zeros(1, dtype=torch.bfloat16)), dtype_of(torch.zeros(1, dtype=torch.int64))
    ('bf16', 'int64')
    """
    name = str(tensor.dtype).removeprefix("torch.")
    return DTYPES.get(name, name)


def _group(value: Any) -> Any:
    """The process group that an argument is, or is the name of; None for any other argument."""
    if isinstance(value, dist.ProcessGroup):
        return value
    if isinstance(value, torch.ScriptObject):
        try:
            return dist.ProcessGroup.unbox(value)
        except (RuntimeError, TypeError):
            return None
    if isinstance(value, str):
        try:
            resolve: Any = vars(dist.distributed_c10d)["_resolve_process_group"]
            return resolve(value)
        except (RuntimeError, ValueError, LookupError):
            return None
    return None


def _root(signature: Signature, given: Mapping[str, Any], members: Sequence[int]) -> int | None:
    if signature.root is None:
        return None
    place = int(given[signature.root])
    return members[place] if 0 <= place < len(members) else place


def _reduction(given: Mapping[str, Any]) -> str:
    value = given.get("reduce_op", "")
    if isinstance(value, str):
        return value
    kind = value.op() if hasattr(value, "op") else value
    return str(getattr(kind, "name", "") or dist.ReduceOp.RedOpType(int(kind)).name).lower()
