"""Units at the edge: bytes, counts and data types as people write them.

Inside, everything is bytes, seconds and elements. GB is 10^9 bytes and GiB is 2^30; the two never share a label.
"""

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType

#: Bytes of one element, by the name used in a job file. ``fp8_block128`` carries one fp32 scale per 128 elements,
#: as DeepSeek-V3 dispatches (DeepSeek-AI 2024, section 3.3.2).
DTYPE_BYTES: Mapping[str, Fraction] = MappingProxyType(
    {
        "fp64": Fraction(8),
        "int64": Fraction(8),
        "fp32": Fraction(4),
        "tf32": Fraction(4),
        "int32": Fraction(4),
        "bf16": Fraction(2),
        "fp16": Fraction(2),
        "fp8": Fraction(1),
        "int8": Fraction(1),
        "uint8": Fraction(1),
        "fp8_block128": Fraction(33, 32),
    }
)


def item_bytes(dtype: str) -> int:
    """Whole bytes of what cannot be parted: an element, or one byte where elements take a fraction of it.

    >>> item_bytes("bf16"), item_bytes("fp8_block128")
    (2, 1)
    """
    size = DTYPE_BYTES[dtype]
    return int(size) if size.denominator == 1 else 1


_STEPS = ((10**18, "EB"), (10**15, "PB"), (10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def human_bytes(count: int) -> str:
    """Write a number of bytes with a decimal unit and four significant digits.

    >>> human_bytes(13_476_831_232), human_bytes(4), human_bytes(20_971_520)
    ('13.48 GB', '4 B', '20.97 MB')
    """
    return _scaled(count, _STEPS, "B")


def human_count(count: int) -> str:
    """Write a count (weights, calls) shortly.

    >>> human_count(70_553_706_496), human_count(960)
    ('70.55 B', '960')
    """
    steps = ((10**12, "T"), (10**9, "B"), (10**6, "M"))
    return _scaled(count, steps, "").strip() if count >= 10**6 else f"{count:,}"


def _scaled(count: int, steps: tuple[tuple[int, str], ...], base: str) -> str:
    for size, label in steps:
        if abs(count) >= size:
            return f"{count / size:.4g} {label}"
    return f"{count} {base}"
