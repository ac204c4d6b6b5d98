"""Results on disk: one JSON line for each row, written as it comes, so that an interrupted run loses nothing."""

import errno
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from meshcost.document import sentences
from meshcost.errors import ExecutionError
from meshcost.measurement import Key, Measurement, from_dict

#: Bytes that no file of rows needs.
_LARGEST = 2**28


@dataclass(slots=True)
class Results:
    """A JSON-lines file that grows. Raises ExecutionError where it cannot be written or read.

    ``kept`` counts the rows of whole calls in it, of this run and those it goes on with.
    """

    path: Path
    kept: int = 0

    @property
    def advice(self) -> str:
        """What to do after an interruption; empty where nothing is kept."""
        return f" {self.kept} rows are kept in {self.path}; go on with --resume." if self.kept else ""

    def append(self, rows: Iterable[Measurement]) -> None:
        """Write the rows of one call; they are on the disk when this returns.

        The rows of a call are written together, so that a call is there as a whole or not at all.
        """
        lines = [_line(row) for row in rows]
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(lines))
                file.flush()
                _to_disk(file.fileno())
        except OSError as error:
            raise ExecutionError(_cannot(self.path, "written", error) + self.advice) from None
        self.kept += len(lines)

    def read(self) -> Iterator[Measurement]:
        """Yield the rows that are there; a last line that was cut off is left out.

        Raises ExecutionError, with the number of the line, for what is no row.
        """
        if not self.path.is_file():  # also a device, which has no rows and may have no end
            return
        try:
            if self.path.stat().st_size > _LARGEST:
                raise ExecutionError(
                    f"{self.path}: larger than {_LARGEST:,} bytes, which no such file needs."
                )
            *lines, _ = self.path.read_bytes().split(b"\n")
        except OSError as error:
            raise ExecutionError(_cannot(self.path, "read", error)) from None
        for number, line in enumerate(lines, 1):
            try:
                yield from_dict(json.loads(line))
            except (ValueError, TypeError, RecursionError) as error:
                raise ExecutionError(
                    f"{self.path}: line {number} is not a row of meshcost verify{_why(error)}."
                ) from None

    def keep(self, rows: Iterable[Measurement]) -> None:
        """Leave only these rows in the file: those of a call that was cut off are measured anew."""
        text = "".join(_line(row) for row in rows)
        if self.path.is_file() and self.path.read_bytes() != text.encode():
            beside = self.path.with_name(f"{self.path.name}.part")
            beside.write_text(text, encoding="utf-8")
            beside.replace(self.path.resolve())


def _line(row: Measurement) -> str:
    return json.dumps(row.as_dict()) + "\n"


def check_writable(path: Path) -> None:
    """Raise ExecutionError if a file cannot be written to; what is in it stays, and one that was not there goes again."""
    is_new = not path.exists() and not path.is_symlink()
    try:
        with path.open("a", encoding="utf-8"):
            pass
        if is_new:
            path.unlink()
    except OSError as error:
        raise ExecutionError(_cannot(path, "written", error)) from None


def _cannot(path: Path, what: str, error: OSError) -> str:
    why = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
    return f"{path}: cannot be {what}: {why}."


def _why(error: Exception) -> str:
    """Which field of a row is not legal; empty where a line is no row at all."""
    return f": {sentences(error)[0].rstrip('.')}" if isinstance(error, ValidationError) else ""


def _to_disk(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a pipe or a device has no disk
            raise


def complete(rows: Iterable[Measurement]) -> dict[Key, list[Measurement]]:
    """Rows by call, for calls of which every rank is there (or the one row that stands for all)."""
    by_call: dict[Key, dict[int | None, Measurement]] = {}
    for row in rows:
        by_call.setdefault(row.key, {})[row.rank] = row
    return {
        key: list(found.values())
        for key, found in by_call.items()
        if None in found or len(found) == key.ranks
    }
