"""What commands share: reading a job, showing a page or its data, and saying what is wrong."""

import gc
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from meshcost.cli.options import PageFormat
from meshcost.errors import MeshcostError, printable
from meshcost.report.output import show, write_json

if TYPE_CHECKING:
    from meshcost.clusters import Cluster
    from meshcost.job import Job
    from meshcost.ledger import Ledger


def bill_of(job: "Job") -> "Ledger":
    """The ledger of a job."""
    from meshcost.job import analyze as bill_of

    return bill_of(job)


def read_bill(
    path: Path, framework: str | None, cluster: str | None = None, *, option: str = "--framework"
) -> "tuple[Ledger, Job | None]":
    """The bill of a job file, with its job; or a saved one (``--format json``), which has none.

    ``option`` is where the framework was asked for.
    """
    ledger = _saved(path)
    if ledger is None:
        job = read_job(path, framework, cluster)
        return bill_of(job), job
    if framework is not None:
        raise MeshcostError(f"{option}: {path} is a saved bill, its calls are counted already. Leave it out.")
    return ledger, None


def _saved(path: Path) -> "Ledger | None":
    if path.suffix != ".json":
        return None
    from meshcost.ledger_json import saved

    return saved(path)


def read_job(path: Path, framework: str | None, cluster: str | None = None) -> "Job":
    """Read a job file, with what the command line says instead; exits 2 after a sentence for each problem."""
    from meshcost.job import load

    asked: dict[str, Any] = {} if framework is None else {"framework": str(framework)}
    if cluster is not None:
        asked["cluster"] = named_cluster(cluster)
    try:
        job = load(path, **asked)
    except MeshcostError as error:
        say(error.problems)
        raise typer.Exit(2) from None
    say(f"{path}: warning: {warning}" for warning in job.warnings)
    return job


def named_cluster(name: str | None, gpus_per_node: int | None = None) -> "Cluster | None":
    """The cluster of ``--cluster``; of a saved bill, one with nodes of as many GPUs as it was counted on."""
    if name is None:
        return None
    from meshcost.clusters import read_cluster

    try:
        found = read_cluster(name)
    except MeshcostError as error:
        raise error.located("--cluster") from None
    if gpus_per_node not in (None, found.gpus_per_node):
        raise MeshcostError(
            f"--cluster: {name} has nodes of {found.gpus_per_node} GPUs, and the saved bill is of nodes of {gpus_per_node}."
        )
    return found


def speeds_of(ledger: "Ledger", job: "Job | None", cluster: str | None) -> "Cluster | None":
    """The cluster that the seconds of a bill are counted on: that of its job, or of ``--cluster`` for a saved one."""
    return job.cluster if job else named_cluster(cluster, ledger.mesh.gpus_per_node)


def bills_by_name(
    paths: Sequence[Path], frameworks: str, cluster: str | None = None
) -> "list[tuple[str, Ledger, Job | None]]":
    """Read every bill under every framework; it is named by whatever tells it apart."""
    if paths.count(Path("-")) > 1:
        raise MeshcostError("-: standard input can be named once.")
    asked: list[str | None] = [name.strip() for name in frameworks.split(",") if name.strip()]
    stems = len({path.stem for path in paths}) == len(paths)
    found = []
    for path in paths:
        for framework in asked or [None]:
            file = (path.stem if stems else str(path)) if len(paths) > 1 or not framework else ""
            bill = read_bill(path, framework, cluster, option="--frameworks")
            found.append((" ".join(filter(None, (file, framework))), *bill))
    return found


def runs_long() -> None:
    """Search for garbage again, which ``program`` spares a short command, and end as programs end."""
    gc.enable()


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM stop what runs as Ctrl-C does: what there is until then is shown, and the exit code is 2."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def show_or_dump(form: PageFormat, page: Callable[[], Any], plain: Callable[[], Any]) -> None:
    """Print a page for people or its data for programs, whichever is asked for."""
    if form is PageFormat.json:
        write_json(plain())
    else:
        show(page())


def say(problems: Iterable[str]) -> None:
    """Say on standard error what is wrong, a line for each problem."""
    for problem in problems:
        text = printable(problem).replace("\n", "\\n")
        with suppress(OSError):  # nobody hears it; the exit code says it
            print(text, file=sys.stderr)  # noqa: T201 - this is where errors are said
