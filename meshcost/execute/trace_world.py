"""A world without machines: torch's fake process group, on which one process plays any rank of any number."""

import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode

from meshcost.errors import ExecutionError
from meshcost.mesh import EXPERT_AXES, Mesh


@contextmanager
def fake_world(rank: int, world_size: int) -> Iterator[None]:
    """Be one rank of a world of which nothing else exists. Raises ExecutionError inside another world."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise ExecutionError("trace: this process belongs to a process group already; trace in a fresh one.")
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()
        _forget()


def _forget() -> None:
    """Empty what DTensor remembers: meshes of equal shape are equal to it, so it would bring back groups of this world."""
    for home, *path in _MEMORIES:
        found: Any = import_module(home)
        for name in path:
            found = getattr(found, name, None)
        if callable(found):
            found()


_MEMORIES = (
    ("torch.distributed.tensor.debug", "_clear_sharding_prop_cache"),
    ("torch.distributed.tensor._redistribute", "_gen_transform_infos", "cache_clear"),
    ("torch.distributed.tensor._redistribute", "clear_redistribute_planner_cache"),
    ("torch.distributed.tensor._collective_utils", "MeshTopoInfo", "build_from_mesh", "cache_clear"),
)


@contextmanager
def quietly() -> Iterator[None]:
    """Keep torch's remarks about its own future away from the person who traces."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class FakeMessages(TorchDispatchMode):
    """Puts something sensible where the fake group leaves a received buffer as it was.

    Pipeline stages agree in their first step by messages of one int32: 1 means that all know their shapes. Experts tell
    each other how many tokens they send: what comes back is what this rank sent, as if all ranks were alike. ``pending``
    holds what the next messages bring; all others bring zeros.
    """

    def __init__(self, *, static_shapes: bool = True) -> None:
        """Take whether stages know their shapes."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not type it
        self.vote = int(static_shapes)
        self.pending: deque[torch.Tensor] = deque()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and fill in what nobody sent."""
        if func is torch.ops.aten._local_scalar_dense.default and _is_vote(args[0]):
            return self.vote
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.c10d.recv_.default:
            for tensor in args[0]:
                self._deliver(tensor)
        elif func is torch.ops.c10d.alltoall_base_.default and args[0].shape == args[1].shape:
            args[0].copy_(args[1])
        return result

    def _deliver(self, tensor: torch.Tensor) -> None:
        if _is_vote(tensor):
            tensor.fill_(self.vote)
        elif self.pending and self.pending[0].shape == tensor.shape:
            tensor.copy_(self.pending.popleft())
        else:
            tensor.zero_()


def _is_vote(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.int32 and tensor.numel() == 1


@dataclass(frozen=True)
class Axes:
    """The mesh of a job as a DeviceMesh: outermost axis first, without axes of one rank."""

    device: DeviceMesh
    names: tuple[str, ...]
    expert: DeviceMesh | None = None
    made: dict[tuple[str, ...], DeviceMesh] = field(default_factory=dict)

    def sub(self, *axes: str) -> DeviceMesh | None:
        """The mesh of one dim along some axes together; None where all of them have one rank."""
        present = tuple(axis for axis in self.names if axis in axes)
        if present and present not in self.made:
            self.made[present] = self._flat(present)
        return self.made.get(present)

    def _flat(self, present: tuple[str, ...]) -> DeviceMesh:
        if len(self.names) == 1:
            return self.device
        if len(present) == 1:
            return self.device[present[0]]
        part = self.device if present == self.names else self.device[present]
        return part._flatten("_".join(present))

    def grid(self, outer: str, *inner: str) -> DeviceMesh:
        """The mesh of two dims: ``outer`` by all of ``inner`` together."""
        flat = self.sub(*inner)
        assert flat is not None
        names = flat.mesh_dim_names
        assert names is not None
        return self.device[outer, names[0]]

    def experts(self, *axes: str) -> DeviceMesh | None:
        """The same as ``sub`` for the axes of experts."""
        if self.expert is None:
            return None
        names = self.expert.mesh_dim_names
        assert names is not None
        present = tuple(axis for axis in names if axis in axes and self.expert[axis].size() > 1)
        if not present:
            return None
        return (
            self.expert[present[0]] if len(present) == 1 else self.expert[present]._flatten("_".join(present))
        )

    def group(self, *axes: str) -> dist.ProcessGroup | None:
        """The process group along some axes."""
        mesh = self.sub(*axes)
        return None if mesh is None else mesh.get_group()


def device_axes(mesh: Mesh, keep: Sequence[str] = ()) -> Axes:
    """Lay a mesh out as torch has it. Axes in ``keep`` stay even where they have only one rank."""
    sizes = {
        axis: mesh.axes[axis] for axis in reversed(tuple(mesh.axes)) if mesh.axes[axis] > 1 or axis in keep
    }
    if prod(sizes.values()) == 1 and not sizes:
        sizes = {"data": 1}
    device = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    axes = Axes(device, tuple(sizes), _expert_mesh(mesh))
    # A mesh looks at its own numbers while it is made, which a fake tensor does not have: so all are made before.
    for together in ("data", "context"), ("data", "context", "replicate"):
        axes.sub(*together)
    return axes


def _expert_mesh(mesh: Mesh) -> DeviceMesh | None:
    if mesh.expert is None:
        return None
    sizes = {"pipeline": mesh.stages, **{axis: mesh.expert.get(axis, 1) for axis in reversed(EXPERT_AXES)}}
    return init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
