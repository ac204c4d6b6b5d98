"""NCCL: which algorithm it chose, what that should move, and what the links counted. Knows no torch.

NCCL says its choice in its log (``NCCL_DEBUG=INFO``, subsystem TUNING): rank 0 of each communicator does, for the
operations that it tunes, and not for messages. NVLink bytes come from NVML, those of InfiniBand from the port counters
of the kernel. Written from the documentation of those three and NVIDIA/nccl@5067397; not run on GPUs here.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from meshcost.collectives import ALGORITHMS
from meshcost.collectives.gloo import Traffic
from meshcost.execute.counters import Bytes, Counter, CounterKind, choose_counter
from meshcost.execute.launcher import one_host
from meshcost.execute.plan import ITEM_BYTES, Case

#: Names behind the numbers of older logs (NVIDIA/nccl src/include/nccl_common.h).
_ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
_PROTOCOLS = ("ll", "ll128", "simple")
#: Bytes on the link for each byte of data: LL sends a flag with every 4 B, LL128 8 B of flags in every 128 B.
_OVERHEAD: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"ll": (2, 1), "ll128": (128, 120), "simple": (1, 1)}
)
#: Form of the shelf for what NCCL calls its algorithm.
_SHELF: Mapping[str, str] = MappingProxyType(
    {"tree": "double_tree", "ring": "ring", "nvls": "nvls", "pat": "pat"}
)
_USUAL: Mapping[str, str] = MappingProxyType(
    {"all_to_all": "pairwise", "gather": "direct", "scatter": "direct"}
)
_LINE = re.compile(r"NCCL INFO (\w+): \d+ Bytes -> Algo (\w+) proto (\w+)")
#: What NCCL calls the operations for which it chooses (src/collectives.cc); all others are messages.
_FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "all_reduce": "AllReduce",
        "all_gather": "AllGather",
        "reduce_scatter": "ReduceScatter",
        "broadcast": "Broadcast",
        "reduce": "Reduce",
    }
)


@dataclass(frozen=True, slots=True)
class Choice:
    """What NCCL chose for a call, in lower case: ``ring``, ``simple``."""

    algorithm: str
    protocol: str

    def __str__(self) -> str:
        """As NCCL users write it.

        >>> str(Choice("ring", "simple"))
        'ring/simple'
        """
        return f"{self.algorithm}/{self.protocol}"


def last_choice(log: str, op: str) -> Choice | None:
    """Read the newest choice for an operation in a log; None if there is none.

    >>> line = "h:1:2 [0] NCCL INFO AllReduce: 8388608 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}"
    >>> last_choice(line, "all_reduce"), last_choice(line, "all_to_all")
    (Choice(algorithm='ring', protocol='simple'), None)
    >>> last_choice("NCCL INFO AllReduce: 4096 Bytes -> Algo 0 proto 1 time 12.3", "all_reduce")
    Choice(algorithm='tree', protocol='ll128')
    """
    lines = [found for found in _LINE.findall(log) if found[0] == _FUNCTIONS.get(op)]
    return Choice(_named(lines[-1][1], _ALGORITHMS), _named(lines[-1][2], _PROTOCOLS)) if lines else None


def _named(text: str, names: tuple[str, ...]) -> str:
    return names[int(text)] if text.isdigit() and int(text) < len(names) else text.lower()


@contextmanager
def debug_log() -> Iterator[dict[str, str]]:
    """Variables that make NCCL write its choices to a file of each process, in a folder that goes when this ends."""
    with TemporaryDirectory(prefix="meshcost-nccl-") as folder:
        pattern = str(Path(folder) / "%h.%p")
        yield {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "COLL,TUNING", "NCCL_DEBUG_FILE": pattern}


def own_choice(op: str) -> str:
    """What NCCL last chose for an operation in this process; empty if its log does not say."""
    folder, name = os.path.split(os.environ.get("NCCL_DEBUG_FILE", ""))
    found = None
    for path in (
        Path(folder or ".").glob(name.replace("%h", "*").replace("%p", str(os.getpid()))) if name else ()
    ):
        found = last_choice(path.read_text(encoding="utf-8", errors="replace"), op)
    return str(found) if found else ""


def nccl_traffic(case: Case, position: int, chosen: str) -> Traffic:
    """What a position moves under the algorithm and protocol that NCCL chose; the ring where it did not say.

    Its tree is a chain inside a node (src/graph/connect.cc) and a double binary tree between nodes.
    """
    algorithm, _, protocol = chosen.partition("/")
    name = _SHELF.get(algorithm, "ring")
    op = {"send_recv": "send"}.get(case.op, case.op)
    if op not in ALGORITHMS[name].forms:
        name = _USUAL.get(op, "direct")
    elements = case.payload_bytes // ITEM_BYTES
    if case.op == "send_recv":
        moved = (elements * (position == 0), elements * (position == 1))
    elif algorithm == "tree" and one_host():
        moved = (elements * (1 if position in (0, case.ranks - 1) else 2),) * 2
    else:
        moved = ALGORITHMS[name].position(op, position, case.ranks, elements)
    wire, data = _OVERHEAD.get(protocol, (1, 1))
    sent, received = (x * ITEM_BYTES * wire // data for x in moved)
    return Traffic(sent, received)


def has_form(chosen: str) -> bool:
    """Whether the shelf has a form for what NCCL chose: ``collnet`` and ``nvls_tree`` have none.

    >>> has_form("nvls/simple"), has_form("nvls_tree/simple"), has_form("")
    (True, False, True)
    """
    return not chosen or chosen.partition("/")[0] in _SHELF


def choose_link_counter(
    backend: str, index: int, interface: str, *, skip_ports: tuple[int, ...]
) -> tuple[CounterKind, Counter]:
    """Return the counter for a backend: sockets for Gloo; for NCCL the links of GPU ``index``, if NVML counts them."""
    if backend != "nccl":
        return choose_counter(interface, skip_ports=skip_ports)
    nvlink = nvlink_counter(index)
    if nvlink is None:
        return "none", lambda: Bytes(0, 0)
    alone = os.environ.get("LOCAL_WORLD_SIZE") == "1"  # only then are the ports of the host this rank's own
    return "nvlink", _added(nvlink, infiniband_counter()) if alone else nvlink


def _added(first: Counter, second: Counter) -> Counter:
    def count() -> Bytes:
        a, b = first(), second()
        return Bytes(a.sent + b.sent, a.received + b.received)

    return count


def nvlink_counter(index: int) -> Counter | None:
    """Count data bytes of all NVLinks of a GPU (NVML reports KiB); None where NVML or the links are missing."""
    try:
        nvml: Any = import_module("pynvml")
        nvml.nvmlInit()
        name = visible_gpu(index)
        by_uuid = nvml.nvmlDeviceGetHandleByUUID
        handle = nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else by_uuid(name)
        fields = [
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 0xFFFFFFFF),
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, 0xFFFFFFFF),
        ]

        def count() -> Bytes:
            sides = nvml.nvmlDeviceGetFieldValues(handle, fields)
            for side in sides:  # a GPU that does not count says so here, and its value is 0
                if side.nvmlReturn != nvml.NVML_SUCCESS:
                    raise nvml.NVMLError(side.nvmlReturn)
            sent, received = (1024 * side.value.ullVal for side in sides)
            return Bytes(sent, received)

        count()
    except Exception:  # noqa: BLE001 - pynvml has an exception for each of its many reasons
        return None
    return count


def visible_gpu(index: int) -> str:
    """The driver's number or UUID of GPU ``index`` of this process: ``CUDA_VISIBLE_DEVICES`` renumbers them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return visible[index].strip() if any(visible) and index < len(visible) else str(index)


def infiniband_counter(root: Path = Path("/sys/class/infiniband")) -> Counter:
    """Count on all InfiniBand ports of this host; the kernel counts in words of 4 B."""

    def total(name: str) -> int:
        return sum(
            4 * int(path.read_text(encoding="ascii")) for path in root.glob(f"*/ports/*/counters/{name}")
        )

    return lambda: Bytes(total("port_xmit_data"), total("port_rcv_data"))
