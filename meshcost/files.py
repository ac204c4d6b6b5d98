"""Files that people name, read up to a limit: a device or a pipe says nothing of its size, and may never end."""

import sys
from pathlib import Path
from typing import IO

from meshcost.errors import JobError

#: Bytes that no job, cluster or configuration needs.
LARGEST = 1_000_000
_PIECE = 2**20


def read_text(path: Path, *, where_from: str = "") -> str:
    """Read a text file. Raises JobError, naming the file, if it is missing, a folder, too large, or not UTF-8.

    ``where_from`` tells whoever has no such file how to get one.
    """
    try:
        return whole_text(path, LARGEST, where_from=where_from)
    except JobError as error:
        raise error.located(str(path)) from None


def read_stream(where: str) -> str:
    """Read standard input as a text file. Raises JobError, beginning with ``where``, for the same reasons."""
    try:
        return _text(sys.stdin.buffer, LARGEST) if sys.stdin else ""
    except JobError as error:
        raise error.located(where) from None


def whole_text(path: Path, most: int, *, where_from: str = "") -> str:
    """Read a text file of at most so many bytes. Raises JobError as ``read_text``, with sentences that do not name it."""
    try:
        with path.open("rb") as file:
            return _text(file, most)
    except FileNotFoundError:
        raise JobError(f"no such file.{where_from and f' {where_from}'}") from None
    except (OSError, ValueError) as error:  # a name with a NUL is no path
        raise JobError(f"cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def _text(file: IO[bytes], most: int) -> str:
    try:
        return _bytes(file, most).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise JobError("not text in UTF-8.") from None
    except OSError as error:
        raise JobError(f"cannot be read: {error.strerror or error}.") from None


def _bytes(file: IO[bytes], most: int) -> bytes:
    """Read piece by piece: asked for all at once, a file object would take that much memory for the smallest file."""
    pieces, room = [], most
    while True:
        asked = min(_PIECE, room + 1)
        pieces.append(file.read(asked))
        room -= len(pieces[-1])
        if room < 0:
            raise JobError(f"larger than {most:,} bytes, which no such file needs.")
        if len(pieces[-1]) < asked:  # whoever types it says once that it ends
            return b"".join(pieces)
