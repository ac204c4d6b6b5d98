"""YAML as plain data: no tags that build objects, no anchors (they can make a small file a huge document), no key twice.

Where YAML 1.1 takes for another number what a person has written (octal, sexagesimal), neither is believed.
"""

import re
from collections.abc import Callable
from typing import Any

import yaml

from meshcost.errors import JobError, shortened, shown

_LONGEST_VALUE = 2000
_DEEPEST = 40
_LONG_TAG = "tag:yaml.org,2002:"
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Document(_Loader):
    """A safe loader that refuses repeated keys, keys that are no names, and numbers that mean another one."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.YAMLError(f"line {line}: a key has to be a name, not a list or a mapping")
            if key.value in seen:
                raise yaml.YAMLError(f"line {line}: {shown(key.value)} is written twice")
            seen.add(key.value)
            key.tag = f"{_LONG_TAG}str"  # a name is what is written: on, ~ and 010 too
        return super().construct_mapping(node, deep)

    def whole_number(self, node: Any) -> int:
        """Read a whole number in decimal digits; others are legal YAML, and hardly what is meant."""
        if _DECIMAL.fullmatch(node.value):
            return int(node.value.replace("_", ""))
        raise _another_number(node, self.construct_yaml_int)

    def real_number(self, node: Any) -> float:
        """Read a number with a point; one with colons counts in sixties."""
        if ":" not in node.value:
            return float(self.construct_yaml_float(node))
        raise _another_number(node, self.construct_yaml_float)


_Document.add_constructor(f"{_LONG_TAG}int", _Document.whole_number)
_Document.add_constructor(f"{_LONG_TAG}float", _Document.real_number)


def _another_number(node: Any, read: Callable[[Any], float]) -> Exception:
    written = shortened(node.value)
    try:
        taken = f"is {shortened(str(read(node)))} in YAML"
    except ValueError:  # 0x_
        taken = "is no number"
    return yaml.YAMLError(
        f"line {node.start_mark.line + 1}: {written} {taken}; write a number in decimal digits, or '{written}' if it is text"
    )


def _look_through(text: str) -> None:
    """Refuse anchors, tags, deep nesting and endless values before anything is built.

    This reads events, because the loader in C composes nodes without asking anybody.
    """
    depth = 0
    for event in yaml.parse(text, _Loader):
        where = f"line {getattr(event.start_mark, 'line', 0) + 1}"
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.YAMLError(f"{where}: anchors and aliases are not read; write it out")
        if tag := getattr(event, "tag", None):
            written = shortened(tag.replace(_LONG_TAG, "!!", 1))
            raise yaml.YAMLError(f"{where}: tags ({written}) are not read; leave it out")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > _LONGEST_VALUE:
            raise yaml.YAMLError(f"{where}: a value of more than {_LONGEST_VALUE} characters")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise yaml.YAMLError(f"{where}: nested more than {_DEEPEST} deep")


def parse(text: str) -> Any:
    """Parse YAML into plain data. Raises JobError with the line that is wrong.

    >>> parse("batch: {sequence: 8}")
    {'batch': {'sequence': 8}}
    """
    try:
        _look_through(text)
        return yaml.load(text, _Document)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise JobError(f"{where}not YAML: {error.problem}.") from None
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        raise JobError(f"{' '.join(str(error).split())}.") from None
