"""What ``meshcost verify`` was asked to do, checked and made ready; the command line shows what comes of it."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from pathlib import Path

from meshcost.clusters import Cluster, LinkClass, read_cluster
from meshcost.errors import ExecutionError, MeshcostError
from meshcost.execute.crew import require_torch
from meshcost.execute.export import commands
from meshcost.execute.gpus import check_ranks, choose_device, count_gpus
from meshcost.execute.launcher import launch, launched, launched_here, launched_ranks, one_host
from meshcost.execute.plan import OPERATIONS, RANKS, SIZES, Case, bound, cases, cut_sizes, schedules
from meshcost.execute.results import check_writable
from meshcost.execute.saving import check_fit, cluster_of, kept_links, save, waits
from meshcost.execute.step import Step
from meshcost.execute.verify import Settings, kept_rows, verify, verify_step
from meshcost.job import analyze, load
from meshcost.measurement import Measurement

#: The largest payload of a job that is really sent, unless --cap says otherwise.
_CAP = "4MiB"
_UNITS = {"": 1, "B": 1} | {
    f"{letter}{unit}": base**power
    for power, letter in enumerate("KMGTPE", 1)
    for unit, base in (("B", 1000), ("IB", 1024))
}
#: No machine holds more.
_LARGEST, _LARGEST_NAME = 2**50, "1 PiB"
#: Longer than any call; what it is for has to end some day.
_LONGEST_SECONDS = 86_400.0


@dataclass(frozen=True)
class Request:
    """The options of the command line, as they were typed; None means the default."""

    job: Path | None = None
    op: str | None = None
    ranks: str | None = None
    size: str | None = None
    backend: str = "gloo"
    cap: str | None = None
    timeout: float = 60.0
    iterations: int = 3
    port: int = 0
    schedules: bool = False
    results: Path | None = None
    resume: bool = False
    save: Path | None = None
    cluster: str | None = None

    @property
    def leader(self) -> bool:
        """Whether this process shows anything: always, unless a launcher has started it as another rank than 0."""
        return not launched() or launched_here() == 0

    @cached_property
    def planned(self) -> list[Case]:
        """The calls that are measured. Raises ExecutionError for options that cannot be."""
        return self._asked if self.step is None else self.step.kinds()

    @cached_property
    def _asked(self) -> list[Case]:
        operations = OPERATIONS if self.op is None else [spelled(name) for name in self.op.split(",")]
        ranks = self._default_ranks() if self.ranks is None else _numbers("--ranks", self.ranks)
        found = (schedules if self.schedules else cases)(operations, ranks, self._sizes)
        return list(dict.fromkeys(found))

    @cached_property
    def _sizes(self) -> Sequence[int]:
        return SIZES if self.size is None else [read_bytes("--size", text) for text in self.size.split(",")]

    @cached_property
    def step(self) -> Step | None:
        """The step of the job, if one was named."""
        if self.job is None:
            if self.cap is not None:
                raise ExecutionError(
                    "--cap is the largest payload of a job: name one, or choose sizes with --size."
                )
            return None
        if any(option is not None for option in (self.op, self.ranks, self.size)):
            raise ExecutionError("--op, --ranks and --size do not go with a job, which names its own calls.")
        cap = None if self.cap == "none" else read_bytes("--cap", self.cap or _CAP)
        return Step(analyze(load(self.job)), cap, self.schedules)

    @cached_property
    def settings(self) -> Settings:
        """How to run them."""
        backend, device, _ = self._device
        return Settings(
            timeout=self.timeout, iterations=self.iterations, port=self.port, backend=backend, device=device,
            results=self.results, resume=self.resume,
        )  # fmt: skip

    @cached_property
    def _device(self) -> tuple[str, str, str]:
        return choose_device(self.backend)

    @cached_property
    def notes(self) -> list[str]:
        """What is said before anything starts: how much memory it takes, and what the figures will be about."""
        launch()
        if not 0 < self.timeout <= _LONGEST_SECONDS:  # nor is what is no number
            raise ExecutionError(
                f"--timeout {self.timeout:g}: choose seconds, {_LONGEST_SECONDS:g} (a day) at most."
            )
        self._check_files()
        if self.step and not launched():
            # Before its calls are listed, of which a large job has many.
            self.step.check()
        planned = self.planned
        if self.save is not None:
            check_fit(planned, self.settings.backend)
        kept_rows(planned, self.settings)
        require_torch()
        world = self.step.world if self.step else max(max(case.members) for case in planned) + 1
        if self._device[0] == "nccl" and not launched():
            check_ranks(world)
        memory = "" if launched() else bound(planned, world=world)
        return [note for note in (memory, self._scaled, self._device[2], *self._untimed) if note]

    @property
    def is_scaled(self) -> bool:
        """Whether payloads of a job are scaled down to the cap."""
        return self.step is not None and self.step.is_scaled

    @property
    def _untimed(self) -> Iterator[str]:
        """Say which calls the cluster that was named has no seconds for, and why."""
        known = self._named_cluster
        if known is None:
            return
        lacking: dict[LinkClass, set[int]] = {}
        for case in self.planned:
            if (kind := _link_of(known, case.ranks)) not in known.links:
                lacking.setdefault(kind, set()).add(case.ranks)
        for kind, ranks in lacking.items():
            yield (
                f"--cluster {self.cluster}: it has no links.{kind}, and nodes of {known.gpus_per_node} GPUs, so calls of "
                f"{', '.join(map(str, sorted(ranks)))} ranks have no predicted time."
            )

    @property
    def _scaled(self) -> str:
        """How the payloads that are measured differ from those asked for; empty if they do not."""
        if self.step is None:
            return cut_sizes(self.planned, self._sizes)
        if not self.is_scaled:
            return ""
        cap = self.cap or _CAP
        return f"Payloads above {cap} are scaled down to it (--cap), as far as their ranks can share it; bytes are linear."

    def _check_files(self) -> None:
        """Refuse what could not be kept before hours are spent on measuring it."""
        if self.resume and self.results is None:
            raise ExecutionError("--resume goes on with a file of rows: name it with --results rows.jsonl.")
        if self.results is not None and self.leader:
            check_writable(self.results)
        self._named_cluster  # noqa: B018 - it is read here, so that one that cannot be is refused
        if self.save is None:
            return
        if self.save.suffix not in (".yaml", ".yml"):
            raise ExecutionError(f"--save {self.save}: a job reads a cluster from a file that ends in .yaml.")
        if not self.save.parent.is_dir():
            raise ExecutionError(f"--save {self.save}: there is no folder {self.save.parent}.")
        kept_links(self.save)
        if self.leader:
            check_writable(self.save)

    def _default_ranks(self) -> Sequence[int]:
        if launched():
            return (launched_ranks(world=True),)
        if self._device[0] == "nccl":
            return tuple(number for number in (*RANKS, 8) if number <= count_gpus())
        return RANKS

    @property
    def calls(self) -> int:
        """Calls that the progress bar counts."""
        return len(self.planned)

    @cached_property
    def _named_cluster(self) -> Cluster | None:
        try:
            return None if self.cluster is None else read_cluster(self.cluster)
        except MeshcostError as error:
            raise error.located("--cluster") from None

    def run(self, progress: Callable[[Case], None] | None = None) -> Iterator[Measurement]:
        """Yield the rows as they come, with predicted seconds where a cluster was named."""
        require_torch()
        known = self._named_cluster
        if self.step is not None:
            rows = verify_step(self.step, self.settings, progress=progress)
        else:
            rows = verify(self.planned, self.settings, progress=progress)
        for row in rows:
            yield row if known is None else predicted_seconds(row, known)

    def finish(self, rows: Sequence[Measurement]) -> list[str]:
        """Write what ``--save`` asked for; returns what to say about it."""
        if self.save is None or not rows:
            return []
        between = not one_host()
        kind: LinkClass = "inter_node" if between else "intra_node"
        per_node = launched_ranks() if between else max(row.ranks for row in rows)
        fitted = cluster_of(rows, name=self.save.stem, kind=kind, gpus_per_node=per_node)
        fitted["links"] = {**kept_links(self.save), **fitted["links"]}
        save(self.save, fitted)
        return [_wrote(self.save, sorted(fitted["links"]), per_node)]

    def export(self, tool: str) -> list[str]:
        """Command lines that measure the same calls with another program."""
        notes = [self._scaled] if self._scaled else []
        planned = self._asked if self.step is None else self.step.shapes()
        return commands(planned, tool, iterations=self.iterations, notes=notes)


def _wrote(path: Path, kinds: Sequence[str], per_node: int) -> str:
    """Say what a cluster file is good for, and what it lacks."""
    said = f"wrote {path}: latency and bandwidth of each operation; in a job: cluster: {path}. It has links"
    match kinds:
        case ["intra_node"]:
            return (
                f"{said} inside a node; a job on more than {per_node} ranks needs those between nodes, too: --save to the "
                "same file under torchrun on several hosts adds them."
            )
        case ["inter_node"]:
            return f"{said} between nodes; --save to the same file on one host adds those inside a node."
    return f"{said} inside a node and between nodes."


def predicted_seconds(row: Measurement, cluster: Cluster) -> Measurement:
    """Put the time that a cluster's figures say beside a row; a row without a link stays as it is."""
    link = cluster.links.get(_link_of(cluster, row.ranks))
    if link is None or row.op == "step":
        return row
    moved = max(row.predicted_sent_bytes, row.predicted_received_bytes)
    waiting = waits(row.op, row.ranks, row.backend)
    return replace(row, predicted_seconds=link.speed(row.op).seconds(rounds=waiting, sent_bytes=moved))


def _link_of(cluster: Cluster, ranks: int) -> LinkClass:
    return "intra_node" if ranks <= cluster.gpus_per_node else "inter_node"


def read_bytes(option: str, text: str) -> int:
    """Read a size: ``8MiB``, ``64 KiB``, ``1GB``, ``4096``. Raises ExecutionError for anything else, and above 1 PiB.

    >>> read_bytes("--size", "8MiB"), read_bytes("--size", "1 kB")
    (8388608, 1000)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if not match or match[2].upper() not in _UNITS:
        raise ExecutionError(f"{option} {text}: not a size. Write 64KiB, 1MiB or 8MB.")
    size = Decimal(match[1]) * _UNITS[match[2].upper()]
    if size > _LARGEST:
        raise ExecutionError(f"{option} {text[:60]}: too large. The largest is {_LARGEST_NAME}.")
    return int(size)


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ExecutionError(f"{option} {text}: not numbers. Write 2,4.") from None


def spelled(name: str) -> str:
    """The name of an operation as the shelf has it.

    >>> spelled(" All-Reduce")
    'all_reduce'
    """
    return name.strip().lower().replace("-", "_")
