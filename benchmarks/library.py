"""Time meshcost as a library, in a fresh process: ``python library.py JOB [REPEATS]`` prints one JSON object."""

import json
import sys
from collections.abc import Callable
from time import process_time
from typing import Any

from meshcost import analyze, load


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of one call, and what it returned."""
    start = process_time()
    result = work()
    return process_time() - start, result


def main(job: str, repeats: int = 7) -> None:
    """Print seconds of the first bill and of later ones, and how fast the calls of rank 0 unroll."""

    def bill() -> Any:
        ledger = analyze(load(job))
        return ledger, ledger.totals  # totals: nothing may be left for later

    first, (ledger, _) = timed(bill)
    unrolled = [timed(lambda: sum(1 for _ in ledger.calls(0))) for _ in range(repeats)]
    times = {
        "first": first,
        "warm": [timed(bill)[0] for _ in range(repeats)],
        "calls_per_second": [number / seconds for seconds, number in unrolled],
        "calls": unrolled[0][1],
        "events": len(ledger),
        "ranks": ledger.mesh.world_size,
    }
    print(json.dumps(times))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
