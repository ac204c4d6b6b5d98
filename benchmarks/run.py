"""How long meshcost takes, beside the floors it stands on and the tools nearest to it. README.md explains the rows.

Nothing here passes or fails: timings of a shared machine are noisy, even those of processor time. What is compared runs
in turns, in one go.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
JOBS = {name: HERE / f"{name}-everything.yaml" for name in ("llama-3.1-405b", "deepseek-v3")}
FAMOUS = "llama-3.1-405b"  # the job that has budgets and that the peers are given
INSTALL = {
    "llm-analysis": "pip install llm-analysis",
    "calculon": "git clone https://github.com/calculon-ai/calculon; pip install numpy pandas psutil; --calculon PATH",
}
MESHCOST = (sys.executable, "-m", "meshcost")


@dataclass(frozen=True)
class Row:
    """One line of the table: seconds (or calls per second) beside what they are compared with."""

    what: str
    unit: str = "s"
    values: tuple[float, ...] = ()
    against: str = ""
    reference: tuple[float, ...] = ()
    budget: float | None = None
    note: str = ""

    @property
    def best(self) -> float:
        """The shortest time, or the highest rate."""
        return (min if self.unit == "s" else max)(self.values)

    @property
    def ratio(self) -> float | None:
        """How many times the reference this is, by medians."""
        return median(self.values) / median(self.reference) if self.values and self.reference else None

    def as_dict(self) -> dict[str, Any]:
        """All fields and what follows from them."""
        sums = {"median": median(self.values), "best": self.best} if self.values else {}
        return {**asdict(self), **sums, "ratio": self.ratio}

    def cells(self) -> list[str]:
        """The row as it is printed."""
        middle, best = (
            (show(x, self.unit) for x in (median(self.values), self.best)) if self.values else ("", "")
        )
        beside = f"{self.against} {show(median(self.reference), self.unit)}" if self.reference else ""
        ratio = f"{self.ratio:.3g}" if self.ratio else ""
        budget = show(self.budget, self.unit) if self.budget else ""
        return [self.what, middle, best, beside, ratio, budget, self.note]


def show(number: float, unit: str) -> str:
    """A number with its unit: milliseconds, or calls per second."""
    return f"{number * 1e3:.4g} ms" if unit == "s" else f"{number:,.0f} {unit}"


class Failed(Exception):
    """A process that is timed did not succeed; the message is the last line it wrote."""


def start(command: Sequence[str | Path], path: Path | None = None) -> tuple[float, str]:
    """Seconds of processor time that one process takes, and its output. ``path`` is searched for modules first.

    Bytecode is kept whatever the environment says: compiling sources anew is not what is measured.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(path), os.environ.get("PYTHONPATH"))))
    before = _spent()
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment, check=False)
    seconds = _spent() - before
    if done.returncode:
        raise Failed((done.stderr.strip().splitlines() or ["no message"])[-1])
    return seconds, done.stdout


def _spent() -> float:
    """Processor time of all processes that have ended so far: a busy machine stretches a clock far more."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def in_turns(repeats: int, *commands: Sequence[str | Path]) -> list[tuple[float, ...]]:
    """Seconds of each command, one after the other and all over again.

    The first round is not counted: it warms the disk and writes bytecode.
    """
    rounds = [[start(command)[0] for command in commands] for _ in range(repeats + 1)]
    return list(zip(*rounds[1:], strict=True))


def cold(what: str, command: Sequence[str | Path], floor: str, budget: float | None, repeats: int) -> Row:
    """Time a whole process against one that only runs ``floor``."""
    try:
        values, reference = in_turns(repeats, command, (sys.executable, "-c", floor))
    except Failed as error:
        return Row(what, budget=budget, note=f"failed: {error}")
    return Row(what, values=values, against=floor, reference=reference, budget=budget)


def library(name: str, budget: float | None, repeats: int) -> list[Row]:
    """Time load and analyze inside fresh processes, and the calls of rank 0."""
    command = (sys.executable, HERE / "library.py", JOBS[name])
    try:
        runs = [json.loads(start(command)[1]) for _ in range(repeats)]
    except Failed as error:
        return [Row(f"library: {name}", note=f"failed: {error}")]
    size = f"{runs[0]['events']} events, {runs[0]['ranks']:,} ranks"
    first = tuple(run["first"] for run in runs)
    warm = tuple(x for run in runs for x in run["warm"])
    rate = tuple(x for run in runs for x in run["calls_per_second"])
    return [
        Row(f"load + analyze, first: {name}", values=first, budget=budget, note=size),
        Row(f"load + analyze, again: {name}", values=warm, budget=budget, note=size),
        Row(f"Ledger.calls(0): {name}", "calls/s", rate, note=f"{runs[0]['calls']:,} calls"),
    ]


def peer(name: str, python: str, path: Path | None, repeats: int) -> list[Row]:
    """Time another tool in turns with meshcost: a process that evaluates once, and evaluations after the import."""
    theirs, ours = (python, HERE / "peers.py", name), (sys.executable, HERE / "library.py", JOBS[FAMOUS])
    analyze = (*MESHCOST, "analyze", JOBS[FAMOUS])
    seconds: dict[str, list[float]] = {"cold": [], "cold meshcost": [], "again": [], "again meshcost": []}
    try:
        report = json.loads(start((*theirs, "0"), path)[1])
        if "missing" in report:
            return [Row(name, note=f"not installed ({report['missing']}): {INSTALL[name]}")]
        for _ in range(repeats):
            seconds["cold"].append(start((*theirs, "0"), path)[0])
            seconds["cold meshcost"].append(start(analyze)[0])
            seconds["again"].extend(json.loads(start(theirs, path)[1])["warm"])
            seconds["again meshcost"].extend(json.loads(start(ours)[1])["warm"])
    except (Failed, OSError) as error:
        return [Row(name, note=f"failed: {error}")]
    once, once_ours, again, again_ours = map(tuple, seconds.values())
    return [
        Row(f"{name}, cold", values=once, against="meshcost analyze", reference=once_ours),
        Row(f"{name}, again", values=again, against="load + analyze", reference=again_ours),
    ]


def measure(options: argparse.Namespace) -> list[Row]:
    """All rows, in the order in which they are printed."""
    repeats, floor = options.repeats, "import sympy, pydantic"
    rows = [cold("meshcost --help", (*MESHCOST, "--help"), "pass", 0.2, repeats)]
    for name, job in JOBS.items():
        budget = 1.0 if name == FAMOUS else None
        rows.append(cold(f"meshcost analyze: {name}", (*MESHCOST, "analyze", job), floor, budget, repeats))
    imports = (sys.executable, "-c", "from meshcost import load, analyze")
    rows.append(cold("import meshcost", imports, floor, None, repeats))
    for name in JOBS:
        rows.extend(library(name, 0.05 if name == FAMOUS else None, repeats))
    for name, path in {"llm-analysis": None, "calculon": options.calculon}.items():
        rows.extend(peer(name, options.peer_python, path, repeats))
    return rows


def machine() -> dict[str, Any]:
    """What the numbers depend on, as far as Python knows."""
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    return {
        "machine": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": load,
    }


def read_options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description="Time meshcost; benchmarks/README.md says what each row means."
    )
    add = parser.add_argument
    add("--json", action="store_true", help="print JSON instead of a table")
    add("--repeats", type=int, default=5, help="how often each process is started (5)")
    add("--peer-python", default=sys.executable, metavar="PATH", help="an interpreter that has the peers")
    add("--calculon", type=Path, metavar="PATH", help="a checkout of github.com/calculon-ai/calculon")
    return parser.parse_args()


def main() -> None:
    """Measure, and print a table or JSON."""
    options = read_options()
    about, rows = machine(), measure(options)
    if options.json:
        print(json.dumps({**about, "rows": [row.as_dict() for row in rows]}, indent=2))
        return
    title = ", ".join(f"{name} {value}" for name, value in about.items())
    table = Table("what", "median", "best", "beside", "ratio", "budget", "", title=title)
    for row in rows:
        table.add_row(*row.cells())
    Console().print(table)


if __name__ == "__main__":
    main()
