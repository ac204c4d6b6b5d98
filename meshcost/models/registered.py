"""What a module registers, told without importing torch: names in order, and the run of them that is blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from meshcost.errors import ModelError

LARGEST = 10**12


@dataclass(frozen=True, slots=True)
class Entry:
    """One weight as a module registers it."""

    name: str
    shape: tuple[int, ...]
    trainable: bool


def registered(module: object) -> list[Entry]:
    """List the weights of a module in registration order, shared ones once."""
    named = getattr(module, "named_parameters", None)
    if not callable(named):
        raise ModelError(f"{type(module).__name__}: has no named_parameters(); give a torch.nn.Module.")
    seen: set[int] = set()
    entries, tensors, problems = [], [], []
    for name, tensor in named():
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        tensors.append(tensor)  # Holds on to it: the id of a dead object may return.
        shape = _shape(tensor)
        if shape is None:
            problems.append(f"{name}: its shape is not known; materialise the module first.")
        else:
            entries.append(Entry(str(name), shape, bool(getattr(tensor, "requires_grad", True))))
    if problems or not entries:
        raise ModelError(problems or f"{type(module).__name__}: has no weights.")
    return entries


def _shape(tensor: object) -> tuple[int, ...] | None:
    try:
        shape = tuple(int(size) for size in tensor.shape)  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None
    return shape if all(0 <= size <= LARGEST for size in shape) else None


def numbered_run(names: Sequence[str]) -> tuple[str, int, int]:
    """Find the blocks: the longest run ``prefix.0. ... prefix.n.`` at the shallowest level.

    Returns the prefix (with its dot), and where the run starts and stops; an empty run at the end if there is none.

    >>> numbered_run(["embed", "layers.0.w", "layers.0.b", "layers.1.w", "head"])
    ('layers.', 1, 4)
    """
    found: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        parts = name.split(".")
        for depth, part in enumerate(parts[:-1]):
            if part.isdecimal() and part.isascii():
                prefix = "".join(f"{p}." for p in parts[:depth])
                found.setdefault(prefix, []).append(place)
    runs = [(prefix.count("."), -count, prefix) for prefix, places in found.items()
            if (count := _blocks(names, prefix, places)) > 1]  # fmt: skip
    if not runs:
        return "", len(names), len(names)
    prefix = min(runs)[2]
    return prefix, found[prefix][0], found[prefix][-1] + 1


def _blocks(names: Sequence[str], prefix: str, places: list[int]) -> int:
    """Count blocks, or 0 if they are not 0, 1, 2, ... in one stretch: then numbers could not be put back."""
    if places[-1] - places[0] + 1 != len(places):
        return 0
    numbers = [layer_of(names[place], prefix) for place in places]
    if numbers[0] != "0" or any(b != a and b != str(int(a) + 1) for a, b in pairwise(numbers)):
        return 0
    return int(numbers[-1]) + 1


def layer_of(name: str, prefix: str) -> str:
    """Read the number of the block out of a name."""
    return name[len(prefix) :].partition(".")[0]


def with_placeholder(name: str, prefix: str) -> str:
    """Put ``{layer}`` in place of the number of the block."""
    return f"{prefix}{{layer}}.{name[len(prefix) :].partition('.')[2]}"
