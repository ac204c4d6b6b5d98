"""The command line: parse, call, print. Nothing is computed here.

Only typer is imported at the top: ``meshcost --help`` must not wait for SymPy.
"""

import sys
from errno import ENOSPC
from typing import Annotated

import typer

from meshcost.cli.bills import analyze, calls, compare, explain
from meshcost.cli.common import say
from meshcost.cli.execution import record, trace, verify
from meshcost.cli.shelves import collectives, models
from meshcost.cli.start import init, schema
from meshcost.errors import MeshcostError
from meshcost.report.output import write

app = typer.Typer(
    name="meshcost",
    help="What a way of parallelising a model costs in communication: an itemised bill of one training step.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from meshcost import __version__

        write([f"meshcost {__version__}\n"])
        raise typer.Exit


@app.callback()
def _front(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


#: The table of contents, as --help shows it.
for command in (analyze, explain, compare, calls, collectives, models, verify, trace, init, schema):
    app.command()(command)
# What follows the name of a program is for that program.
app.command(context_settings={"allow_interspersed_args": False})(record)


def main() -> None:
    """Run the command line; exits 0, or 2 after one sentence for each problem."""
    if sys.stdout is None:  # closed by whoever started this
        say(["meshcost: there is no standard output to write to."])
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a name may hold letters that the terminal lacks
    try:
        app()
    except MeshcostError as error:
        say(f"meshcost: {problem}" for problem in error.problems)
        sys.exit(2)
    except OSError as error:
        if error.errno != ENOSPC:
            raise
        say(["meshcost: standard output: cannot be written: No space left on device."])  # of a help page
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
