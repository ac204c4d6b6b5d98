"""How figures and places are written, the same in every picture."""

from dataclasses import dataclass

from rich.console import ConsoleOptions

from meshcost.event import Event
from meshcost.mesh import Mesh
from meshcost.units import human_bytes, human_count

__all__ = [
    "ASCII", "UNICODE", "Glyphs", "glyphs", "group", "human_count", "plural", "product", "runs", "share", "size",
]  # fmt: skip

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The few signs that a terminal may not have."""

    line: str
    inside: str
    between: str
    times: str


UNICODE = Glyphs(line="─", inside="█", between="▒", times="×")  # noqa: RUF001 - it is meant
ASCII = Glyphs(line="-", inside="#", between="=", times="x")


def glyphs(options: ConsoleOptions, ascii_only: bool | None = None) -> Glyphs:
    """Choose the signs: the console's encoding decides, unless somebody else has."""
    return ASCII if (options.ascii_only if ascii_only is None else ascii_only) else UNICODE


def size(count: int, *, exact: bool = False) -> str:
    """Write bytes: in decimal units, or every digit.

    >>> size(134_217_728), size(134_217_728, exact=True), size(0)
    ('134.2 MB', '134,217,728', '-')
    """
    if not count:
        return NOTHING
    return f"{count:,}" if exact else human_bytes(count)


def share(part: int, whole: int) -> str:
    """Write a part of a whole in percent, without pretending that a little is nothing.

    >>> share(1, 3), share(1, 10**9), share(5, 5), share(0, 0)
    ('33.3 %', '< 0.1 %', '100 %', '-')
    """
    if not part:
        return NOTHING
    tenths = round(1000 * part / whole)
    if tenths == 0:
        return "< 0.1 %"
    return "100 %" if part == whole else f"{min(tenths, 999) / 10:.1f} %"


def runs(numbers: tuple[int, ...]) -> str:
    """Write numbers shortly: runs of neighbours, and even steps.

    >>> runs((0, 1, 2, 3)), runs((0, 8, 16, 24)), runs((0, 1, 4, 5)), runs((3,))
    ('0-3', '0-24 step 8', '0-1, 4-5', '3')
    """
    if len(numbers) > 2:
        step = numbers[1] - numbers[0]
        if step > 0 and numbers == tuple(range(numbers[0], numbers[-1] + 1, step)):
            return f"{numbers[0]}-{numbers[-1]}" + (f" step {step}" if step > 1 else "")
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def group(event: Event, mesh: Mesh, signs: Glyphs) -> str:
    """Name the group of an event: its axes and its size."""
    if event.group_size == mesh.world_size and len(event.axes) > 1:
        return f"all {event.group_size:,}"
    return f"{f' {signs.times} '.join(event.axes)} {event.group_size:,}"


def product(sizes: dict[str, int], signs: Glyphs) -> str:
    """Write axes that multiply up, leaving out those of one rank."""
    return f" {signs.times} ".join(f"{axis} {number:,}" for axis, number in sizes.items() if number > 1)


def plural(number: int, noun: str, nouns: str | None = None) -> str:
    """Count a noun.

    >>> plural(1, "node"), plural(2000, "node"), plural(2, "batch", "batches")
    ('1 node', '2,000 nodes', '2 batches')
    """
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def seconds(time: float | None) -> str:
    """Write a time in s, ms or us with three significant digits.

    >>> seconds(0.0763), seconds(2e-6), seconds(2e-11), seconds(None), seconds(0)
    ('76.3 ms', '2 us', '< 0.01 us', '-', '-')
    """
    if not time:
        return "-"
    if time < 1e-8:
        return "< 0.01 us"
    scale, unit = next((s, u) for s, u in ((1, "s"), (1e3, "ms"), (1e6, "us")) if time * s >= 1 or u == "us")
    return f"{time * scale:.3g} {unit}"
