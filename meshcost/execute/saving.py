"""Writing a cluster file: the latency and bandwidth that fit what was measured, operation by operation."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from meshcost.clusters import LinkClass, read_cluster
from meshcost.clusters.fit import Point, fit
from meshcost.collectives import choose
from meshcost.collectives.gloo import rounds
from meshcost.errors import ExecutionError, MeshcostError
from meshcost.execute.plan import Case
from meshcost.formula import value
from meshcost.measurement import Measurement
from meshcost.symbols import n
from meshcost.units import human_bytes

_NO_FIT = "--save: a fit needs two sizes with the same number of ranks: --size 1MiB,8MiB."


def points(rows: Sequence[Measurement], op: str) -> list[Point]:
    """One point for each native call of an operation: its slowest rank, and the bytes of its busiest one."""
    calls: dict[Any, list[Measurement]] = {}
    for row in rows:
        if row.op == op and row.algorithm == row.backend and row.payload_bytes:
            calls.setdefault(row.key, []).append(row)
    return [
        Point(
            found[0].payload_bytes,
            waits(op, found[0].ranks, found[0].backend),
            max(max(row.predicted_sent_bytes, row.predicted_received_bytes) for row in found),
            max(row.seconds for row in found),
        )
        for found in calls.values()
    ]


def waits(op: str, ranks: int, backend: str) -> int:
    """Messages that wait for each other in a call: as Gloo makes it, or else as the default algorithm of the shelf."""
    if backend == "gloo":
        return rounds(op, ranks)
    call = {"send_recv": "send"}.get(op, op)
    return int(value(choose(call).forms[call].rounds, {n: ranks}))


def check_fit(planned: Iterable[Case], backend: str) -> None:
    """Raise ExecutionError if it is certain before anything is measured that no operation can be fitted."""
    alike = Counter(
        (case.op, waits(case.op, case.ranks, backend))
        for case in dict.fromkeys(planned)
        if case.algorithm == "native" and case.payload_bytes
    )
    if not any(count > 1 for count in alike.values()):
        raise ExecutionError(_NO_FIT)


def cluster_of(
    rows: Sequence[Measurement], *, name: str, kind: LinkClass, gpus_per_node: int
) -> dict[str, Any]:
    """Fit a cluster to rows, as the fields of its file; an operation that cannot be fitted is left out.

    Raises ExecutionError if none can be.
    """
    speeds: dict[str, Any] = {}
    source = (
        _source([row for row in rows if row.payload_bytes]) if any(row.payload_bytes for row in rows) else ""
    )
    for op in dict.fromkeys(row.op for row in rows):
        try:
            speeds[op] = fit(points(rows, op), source=source).model_dump(mode="json", exclude_none=True)
        except MeshcostError:
            continue
    if not speeds:
        raise ExecutionError(_NO_FIT)
    general = speeds.get("send_recv") or next(iter(speeds.values()))
    return {
        "name": name,
        "accelerator": rows[0].device,
        "gpus_per_node": gpus_per_node,
        "library": rows[0].backend,
        "source": source,
        "links": {kind: {**general, "operations": speeds}},
    }


def kept_links(path: Path) -> dict[str, Any]:
    """The links that a cluster file has already, so that those of one class can be added to those of the other.

    Raises JobError if the file is there and is not that of a cluster.
    """
    links = read_cluster(str(path)).links if path.is_file() and path.stat().st_size else {}
    return {kind: link.model_dump(mode="json", exclude_none=True) for kind, link in links.items()}


def _source(rows: Sequence[Measurement]) -> str:
    sizes = [row.payload_bytes for row in rows]
    ranks = sorted({row.ranks for row in rows})
    return (
        f"measured by meshcost verify: {rows[0].backend} on {rows[0].device}, {', '.join(map(str, ranks))} ranks, payloads "
        f"of {human_bytes(min(sizes))} to {human_bytes(max(sizes))}"
    )


class _Plain(yaml.SafeDumper):
    """Writes everything out: anchors are not read back."""

    def ignore_aliases(self, data: Any) -> bool:
        """Repeat what stands twice."""
        return True


def save(path: Path, cluster: dict[str, Any]) -> None:
    """Write a cluster file. Raises ExecutionError if the disk does not take it."""
    text = "# Written by meshcost verify --save; read by cluster: in a job, and by analyze --cluster.\n"
    text += yaml.dump(cluster, Dumper=_Plain, sort_keys=False, default_flow_style=None, width=120)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ExecutionError(f"{path}: cannot be written: {error.strerror}.") from None
