"""The program: ``meshcost``, or ``python -m meshcost``."""

import gc
import os
import sys
from contextlib import suppress
from typing import NoReturn


def program() -> NoReturn:
    """Run the command line and end the process with its exit code.

    A short command is spared the search for garbage, and ends at once: Python would take SymPy apart module by module. Each
    takes a tenth of the time of a bill. What runs long, and may have started threads and processes, says so
    (``cli.common.runs_long``) and ends as usual.
    """
    gc.disable()
    code: int | str | None = 0
    try:
        from meshcost.cli import main  # in here: Ctrl-C while modules are loaded is Ctrl-C, too

        main()
    except SystemExit as end:
        code = end.code
    except KeyboardInterrupt:
        code = 130
    if gc.isenabled() or not isinstance(code, int):
        sys.exit(code)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError):  # was told when it was written
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    program()
