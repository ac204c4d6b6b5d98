"""Plain data in and out: a small JSON codec for frozen dataclasses of numbers, strings and tuples."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def to_plain(record: Any) -> dict[str, Any]:
    """Turn a dataclass into a dictionary of JSON values, leaving out fields at their default.

    >>> from meshcost.schedule import Schedule
    >>> to_plain(Schedule("1f1b", 4, 1, 8))
    {'name': '1f1b', 'ranks': 4, 'chunks': 1, 'micro_batches': 8}
    """
    return {
        field.name: _plain(getattr(record, field.name))
        for field in fields(record)
        if getattr(record, field.name) != field.default
    }


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def as_tuple(value: Any) -> Any:
    """Turn nested lists, as JSON has them, into nested tuples.

    >>> as_tuple([1, [2, 3]])
    (1, (2, 3))
    """
    return tuple(as_tuple(item) for item in value) if isinstance(value, list) else value
