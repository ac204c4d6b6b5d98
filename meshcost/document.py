"""Documents that people hand us: JSON read safely and bounded in size, and what Pydantic finds, in their words."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError

from meshcost.errors import JobError, LedgerError, not_known, shortened, shown
from meshcost.fields import homes, known_fields
from meshcost.files import whole_text

_LARGEST_JSON = 2**28
_MOST_SENTENCES = 100


def read_json(path: Path) -> Any:
    """Read a file of JSON. Raises LedgerError, naming the file, if it is missing, too large, no text, or no JSON."""
    return read_json_text(path)[0]


def read_json_text(path: Path) -> tuple[Any, str]:
    """Read a file of JSON: what it holds, and its text, in which a problem has a line. Raises as ``read_json``."""
    try:
        text = whole_text(path, _LARGEST_JSON)
        return parse_json(text, finite=True), text
    except JobError as error:
        raise LedgerError(error.problems).located(str(path)) from None


def parse_json(text: str, *, finite: bool = False) -> Any:
    r"""Read JSON. Raises JobError, with the line if there is one, for what is none, and for a name that is there twice.

    ``finite`` refuses Infinity and NaN, too, which some configurations have.

    >>> parse_json('{"layers": 2,\n "layers": 4}')
    Traceback (most recent call last):
    ...
    meshcost.errors.JobError: line 2: 'layers' is written twice.
    """
    try:
        return json.loads(
            text, parse_constant=_no_number if finite else None, object_pairs_hook=partial(_once, text)
        )
    except json.JSONDecodeError as error:
        raise JobError(f"line {error.lineno}: not JSON: {error.msg}.") from None
    except (ValueError, RecursionError, MemoryError) as error:
        why = str(error).partition("\n")[0] or "it takes more memory than there is"
        raise JobError(f"not JSON that can be read: {shortened(why, 200)}.") from None


def _once(text: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        line, name = next(_twice(text))
        raise JobError(f"line {line}: {shown(name)} is written twice.")
    return found


def _twice(text: str) -> Iterator[tuple[int, str]]:
    """Each name that a mapping of a JSON text already has, with its line."""
    names: list[set[str]] = []
    before = ""
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word in "{[":
            names.append(set())
        elif word in "}]":
            names.pop()
        elif word == ":":
            name = json.loads(before)
            if name in names[-1]:
                yield text.count("\n", 0, token.start()) + 1, name
            names[-1].add(name)
        before = word


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
_NO_PART_OF_A_PATH = ("function-before", "[key]")

#: The same for one of several types that may stand at a place.
_BRANCH = re.compile(r"int|str|(literal|tuple)\[.*\]", re.DOTALL)


def _path(item: Any) -> str:
    parts = (str(part) for part in item["loc"] if part not in _NO_PART_OF_A_PATH)
    return ".".join(shortened(part) for part in parts if not _BRANCH.fullmatch(part))


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
