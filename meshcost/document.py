"""Documents that people hand us: YAML read safely, bounded in size and depth, and errors in their words.

YAML here is plain data: no tags that build objects, no anchors (they can make a small file a huge document), no key
twice in one mapping.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from meshcost.errors import JobError, LedgerError, not_known
from meshcost.fields import homes, known_fields

_LARGEST_FILE = 1_000_000
_LARGEST_JSON = 2**28
_LONGEST_VALUE = 2000
_DEEPEST = 40
_MOST_SENTENCES = 100
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Document(_Loader):
    """A safe loader that refuses repeated keys, and keys that are no names."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.YAMLError(f"line {line}: a key has to be a name, not a list or a mapping")
            if key.value in seen:
                raise yaml.YAMLError(f"line {line}: {shown(key.value)} is written twice")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


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
            raise yaml.YAMLError(f"{where}: tags (!{tag.rpartition('!')[2][:20]}) are not read; leave it out")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > _LONGEST_VALUE:
            raise yaml.YAMLError(f"{where}: a value of more than {_LONGEST_VALUE} characters")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise yaml.YAMLError(f"{where}: nested more than {_DEEPEST} deep")


def read_text(path: Path, *, where_from: str = "") -> str:
    """Read a text file. Raises JobError if it is missing, a folder, too large, or not UTF-8.

    ``where_from`` tells whoever has no such file how to get one.
    """
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise JobError(f"{path}: larger than {_LARGEST_FILE:,} bytes, which no such file needs.")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise JobError(f"{path}: no such file.{where_from and f' {where_from}'}") from None
    except UnicodeDecodeError:
        raise JobError(f"{path}: not a text file in UTF-8.") from None
    except (OSError, ValueError) as error:
        raise JobError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def read_stream(where: str) -> str:
    """Read standard input as a text file. Raises JobError, beginning with ``where``, for the same reasons."""
    try:
        data = sys.stdin.buffer.read(_LARGEST_FILE + 1) if sys.stdin else b""
    except OSError as error:
        raise JobError(f"{where}: cannot be read: {error.strerror or error}.") from None
    if len(data) > _LARGEST_FILE:
        raise JobError(f"{where}: larger than {_LARGEST_FILE:,} bytes, which no such file needs.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise JobError(f"{where}: not text in UTF-8.") from None


def read_json(path: Path) -> Any:
    """Read a file of JSON. Raises LedgerError, naming the file, if it is missing, too large, no text, or no JSON."""
    return read_json_text(path)[0]


def read_json_text(path: Path) -> tuple[Any, str]:
    """Read a file of JSON: what it holds, and its text, in which a problem has a line. Raises as ``read_json``."""
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise LedgerError(f"{path}: larger than {_LARGEST_JSON:,} bytes, which no such file needs.")
        text = path.read_text(encoding="utf-8")
        return json.loads(text, parse_constant=_no_number), text
    except FileNotFoundError:
        raise LedgerError(f"{path}: no such file.") from None
    except UnicodeDecodeError:
        raise LedgerError(f"{path}: not a text file in UTF-8.") from None
    except json.JSONDecodeError as error:
        raise LedgerError(f"{path}: line {error.lineno}: not JSON: {error.msg}.") from None
    except (ValueError, RecursionError) as error:
        raise LedgerError(
            f"{path}: not JSON that can be read: {str(error).partition(chr(10))[0][:200]}."
        ) from None
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read: {error.strerror or error}.") from None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s{}\[\],:"]+|[{}\[\],:]')


def line_of(text: str, path: Sequence[str | int]) -> int:
    r"""Line of a JSON text on which a value stands; of what is around it, if there is no such value.

    >>> line_of('{"calls": [\n {"op": "send"},\n {"op": 7}]}', ("calls", 1, "op"))
    3
    """
    at: list[
        str | int | None
    ] = []  # which value comes next in each collection that is open; None: a name comes first
    found = 0
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word in "}]":
            at.pop()
        elif word == ",":
            at[-1] = at[-1] + 1 if isinstance(at[-1], int) else None
        elif word[0] == '"' and at and at[-1] is None:
            at[-1] = json.loads(word)
        elif word != ":":
            if at == list(path[: len(at)]):
                found = token.start()
                if len(at) == len(path):
                    break
            if word in "{[":
                at.append(None if word == "{" else 0)
    return text.count("\n", 0, found) + 1


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


def sentences(
    error: ValidationError,
    root: type[BaseModel] | None = None,
    examples: Mapping[str, str] = MappingProxyType({}),
    *,
    text: str = "",
) -> list[str]:
    """Turn what Pydantic found into sentences: path, value, why, and what would be legal.

    ``root`` is the model of the file, which knows all fields; ``examples`` say how a field that is missing or of the wrong
    kind could be written. ``text`` is the JSON that was read, so that a sentence begins with its line.
    """
    items = _of_one_branch(error.errors())
    found = [
        (f"line {line_of(text, item['loc'])}: " if text else "")
        + sentence.removeprefix(": ")  # of what is wrong as a whole
        for item in items[:_MOST_SENTENCES]
        for sentence in _sentences(item, root, examples)
    ]
    more = len(items) - _MOST_SENTENCES
    return [*found, f"{more} more problems of this kind."] if more > 0 else found


def _sentences(item: Any, root: type[BaseModel] | None, examples: Mapping[str, str]) -> list[str]:
    path = _path(item)
    kind, context = item["type"], item.get("ctx", {})
    example = f" Write it as {examples[path]}." if path in examples else ""
    match kind:
        case "missing":
            return [f"{path}: missing.{example or ' Write it.'}"]
        case "extra_forbidden":
            return [_unknown(path, item["loc"], root)]
        case "literal_error":
            return [f"{path}: {_no_choice(item['input'], context['expected'])}"]
        case "problems":
            return [f"{path}: {problem}" for problem in context["problems"]]
        case "model_type" | "model_attributes_type" | "dict_type":
            return [f"{path}: {shown(item['input'])} is not a mapping of fields.{example}"]
        case _:
            message = item["msg"][:1].lower() + item["msg"][1:]
            message = message.replace("input should", "it has to").replace("a valid tuple", "a list")
            message = message.replace("a valid integer", "a whole number")
            return [f"{path}: {shown(item['input'])} is not legal: {message}.{example}"]


#: What Pydantic puts into a path and no file has.
_NO_PART_OF_A_PATH = ("int", "function-before", "[key]")

#: The same for one of several types that may stand at a place.
_BRANCH = re.compile(r"(literal|tuple)\[.*\]", re.DOTALL)


def _path(item: Any) -> str:
    parts = (str(part) for part in item["loc"] if part not in _NO_PART_OF_A_PATH)
    return ".".join(part for part in parts if not _BRANCH.fullmatch(part))


def _of_one_branch(items: list[Any]) -> list[Any]:
    """Keep of each place that may hold several types what the first of them says."""
    found: dict[Any, Any] = {}
    for number, item in enumerate(items):
        branches = any(_BRANCH.fullmatch(str(part)) for part in item["loc"])
        found.setdefault(_path(item) if branches else number, item)
    return list(found.values())


def _no_choice(value: Any, expected: str) -> str:
    """Say what may stand where something else does; Pydantic quotes the choices."""
    legal = re.findall(r"'([^']*)'", expected)
    if isinstance(value, str) and legal:
        return not_known(value, legal)
    return f"{shown(value)} is not known. Choose {expected}."


def _unknown(path: str, location: tuple[Any, ...], root: type[BaseModel] | None) -> str:
    if root is None:
        return f"{path}: unknown field."
    names, name = sorted(known_fields(root, location[:-1])), str(location[-1])
    near = homes(root, name)[:3] or get_close_matches(name, names, 1)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    legal = f" Known fields: {', '.join(names)}." if names else ""
    return f"{path}: unknown field.{hint}{legal}"


def shown(value: Any) -> str:
    """Write a value as a file has it, shortly.

    >>> shown(True), shown(None), shown("2"), shown(2.0)
    ('true', 'null', "'2'", '2.0')
    """
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}[value]
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole number of more than 4300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."
