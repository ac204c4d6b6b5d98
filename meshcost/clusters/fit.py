"""Fitting latency and bandwidth to measured times, robustly: one slow call does not move the line.

time = rounds x latency + bytes / bandwidth. The slope is the median of the slopes between all pairs of points that have
equal rounds, the latency the median of what is left for one round (Theil 1950, Sen 1968).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from statistics import median

from meshcost.clusters.link import Bandwidth, Fit, Latency, Speed
from meshcost.errors import MeshcostError

#: Within this factor of the line, a time still counts as linear.
_LINEAR = 1.5


@dataclass(frozen=True, slots=True)
class Point:
    """One measured call: what it was on, how many rounds it takes, what its busiest rank moves, how long it took."""

    payload_bytes: int
    rounds: int
    moved_bytes: int
    seconds: float


def fit(points: Sequence[Point], *, source: str) -> Speed:
    """Fit a speed to points. Raises MeshcostError unless two of them have equal rounds and different bytes.

    >>> found = fit([Point(n, 2, n, 2 * 5e-6 + n / 1e9) for n in (10**4, 10**6, 10**7)], source="an example")
    >>> round(found.latency.value, 3), round(found.bandwidth.value, 3), found.fit.error < 1e-9
    (5.0, 1.0, True)
    """
    slope = _slope(points)
    latency = max(0.0, median((point.seconds - slope * point.moved_bytes) / point.rounds for point in points))
    ratios = {point: (point.rounds * latency + slope * point.moved_bytes) / point.seconds for point in points}
    sizes = [point.payload_bytes for point in points]
    return Speed(
        latency=Latency(value=_short(latency * 1e6), unit="us", direction="one message", source=source),
        bandwidth=Bandwidth(
            value=_short(1e-9 / slope), unit="GB/s", direction="per direction, per rank", source=source
        ),
        fit=Fit(
            error=_short(median(abs(ratio - 1) for ratio in ratios.values())),
            points=len(points),
            payload_bytes=(min(sizes), max(sizes)),
            linear_bytes=_linear(ratios.items()),
        ),
    )


def _short(number: float) -> float:
    """Four significant digits: no measurement has more."""
    return float(f"{number:.4g}")


def _slope(points: Sequence[Point]) -> float:
    slopes = [
        (a.seconds - b.seconds) / (a.moved_bytes - b.moved_bytes)
        for a, b in combinations(points, 2)
        if a.rounds == b.rounds and a.moved_bytes != b.moved_bytes
    ]
    if not slopes:
        raise MeshcostError(
            "a fit needs two sizes with the same number of ranks: give --size at least two values."
        )
    slope = median(slopes)
    if slope > 0:
        return slope
    # Times that do not grow with size: noise outweighs bytes. The fastest rate seen is then the least that is true.
    return min(point.seconds / point.moved_bytes for point in points if point.moved_bytes)


def _linear(ratios: Iterable[tuple[Point, float]]) -> tuple[int, int] | None:
    """The longest run of sizes at which the line is within the factor; None if there is no such size."""
    by_size: dict[int, list[float]] = {}
    for point, ratio in ratios:
        by_size.setdefault(point.payload_bytes, []).append(ratio)
    good = [(size, 1 / _LINEAR <= median(found) <= _LINEAR) for size, found in sorted(by_size.items())]
    runs = [[size for size, _ in run] for is_good, run in groupby(good, key=lambda item: item[1]) if is_good]
    longest = max(runs, key=len, default=[])
    return (longest[0], longest[-1]) if longest else None
