"""The recorder: watches any training code and notes every communication call that torch makes, in order.

    with record() as recorder:
        step()
    print(recorder.recording.log())

One dispatch mode sees everything, because each collective of a process group, from Python or from C++, goes through the
dispatcher: DDP's reducer, FSDP2, DTensor, point-to-point messages, pipeline schedules, object collectives.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from meshcost.execute.record_ops import NAMESPACES, SILENT, Seen, look, name_of
from meshcost.execute.record_phase import Where
from meshcost.execute.recording import RecordedCall, Recording, axes_of
from meshcost.ledger import Ledger
from meshcost.mesh import Mesh

Axes = tuple[str, ...]


class Recorder(TorchDispatchMode):
    """A recording while it is made. ``recording`` is what has been seen so far, as frozen data."""

    def __init__(self, mesh: Mesh | DeviceMesh | None = None) -> None:
        """Take the mesh that names the groups; without it, names come from the device meshes that are met."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not type it
        self.where = Where()
        self.where.on_root = self._meet
        self._mesh = mesh if isinstance(mesh, Mesh) else None
        self._axes: dict[tuple[int, ...], Axes] = {}
        self._met: set[int] = set()
        self._at = (0, 1)
        self._calls: list[RecordedCall] = []
        self._same: dict[RecordedCall, RecordedCall] = {}
        #: Called with each call as it is noted.
        self.listener: Callable[[RecordedCall], None] | None = None
        if isinstance(mesh, DeviceMesh):
            self._learn(mesh)

    @property
    def calls(self) -> tuple[RecordedCall, ...]:
        """The calls seen so far, in order."""
        return tuple(self._calls)

    @property
    def recording(self) -> Recording:
        """What has been seen so far, as frozen data."""
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else self._at
        return Recording(rank, world, self.calls, {"torch": torch.__version__})

    def to_dict(self) -> dict[str, Any]:
        """Write what has been seen as JSON values."""
        return self.recording.to_dict()

    def to_ledger(self, mesh: Mesh | None = None) -> Ledger:
        """Count what has been seen by kind, as the events of a ledger."""
        return self.recording.to_ledger(mesh if mesh is not None else self._mesh)

    def log(self) -> str:
        """Write what has been seen as text."""
        return self.recording.log()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and note it if it communicates."""
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.HigherOrderOperator):
            return func(*args, **kwargs)
        # A DTensor first falls apart into plain tensors; its communication comes back here on its own.
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        result = func(*args, **kwargs)
        if func.namespace in NAMESPACES and name_of(func) not in SILENT:
            self._note(look(func, args, kwargs, result))
        return result

    def _note(self, seen: Seen) -> None:
        self._at = dist.get_rank(), dist.get_world_size()
        where, ranks, root = self.where, seen.ranks, seen.root
        phase, micro_batch = where.phase, where.current_micro_batch
        if seen.op in ("send", "recv"):
            phase, micro_batch = where.messages.get(seen.tensors[0], (phase, micro_batch))
            peer, root = root if root is not None else -1, None
            ranks = (self._at[0], peer) if seen.op == "send" else (peer, self._at[0])
        call = RecordedCall(
            op=seen.op,
            ranks=ranks,
            in_bytes=seen.in_bytes,
            out_bytes=seen.out_bytes,
            dtype=seen.dtype,
            phase=phase,
            module=where.module,
            reduce_op=seen.reduce_op,
            raw=seen.raw,
            axes=self._name(seen, ranks),
            step=where.step,
            micro_batch=micro_batch,
            root=root,
        )
        # Steps repeat themselves: equal calls share one object.
        self._calls.append(self._same.setdefault(call, call))
        if self.listener is not None:
            self.listener(call)

    # -- names of groups ---------------------------------------------------------------------------------------------

    def _name(self, seen: Seen, ranks: tuple[int, ...]) -> Axes:
        if self._mesh is not None:
            if ranks not in self._axes:
                pair = seen.op in ("send", "recv")
                self._axes[ranks] = axes_of(self._mesh, self._at[0], ranks, pair=pair)
            return self._axes[ranks]
        if seen.ranks in self._axes:
            return self._axes[seen.ranks]
        return (seen.group.removeprefix("mesh_"),) if seen.group.startswith("mesh_") else ()

    def _meet(self, root: nn.Module) -> None:
        """Learn the device meshes on which the weights of a module lie."""
        if self._mesh is None and id(root) not in self._met:
            self._met.add(id(root))
            for mesh in {weight.device_mesh for weight in root.parameters() if isinstance(weight, DTensor)}:
                self._learn(mesh)

    def _learn(self, mesh: DeviceMesh) -> None:
        """Note the group of this rank along every choice of dims of a mesh, fewest dims first."""
        names = mesh.mesh_dim_names
        place = mesh.get_coordinate()
        if names is None or place is None:
            return
        with torch._C._DisableTorchDispatch(), torch.utils._python_dispatch._disable_current_modes():
            ranks = mesh.mesh
            for number in range(1, len(names) + 1):
                for dims in combinations(range(len(names)), number):
                    at = tuple(slice(None) if dim in dims else place[dim] for dim in range(len(names)))
                    members = tuple(ranks[at].flatten().tolist())
                    self._axes.setdefault(members, tuple(names[dim] for dim in dims))


@contextmanager
def record(mesh: Mesh | DeviceMesh | None = None) -> Iterator[Recorder]:
    """Record the calls of everything that runs inside the block, on one rank or on each of them under torchrun.

    ``mesh`` names the groups: a meshcost Mesh, or a DeviceMesh with names for its dims. Without it the meshes on which the
    weights of the models lie are used, and the names that torch gave to the groups. Single operations get slower by some
    microseconds while a recording lasts. Calls of an operation that is not known are recorded as ``unknown``.
    """
    recorder = Recorder(mesh)
    with recorder.where.watch(), recorder:
        yield recorder
