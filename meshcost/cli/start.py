"""Commands to start from: a commented job file, and its schema."""

from pathlib import Path
from typing import Annotated

import typer

from meshcost.errors import MeshcostError
from meshcost.report.output import write, write_json


def init(
    path: Annotated[str, typer.Argument(help="Where to write it; - prints it.")] = "job.yaml",
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Write a commented job file to start from."""
    from meshcost.report.starter import job_text

    if path == "-":
        write([job_text("job.yaml")])
        return
    if not path:
        raise MeshcostError("a file has to have a name. Write one, or - to print the job file.")
    try:
        with Path(path).open("w" if force else "x", encoding="utf-8") as file:
            file.write(job_text(path if path.isprintable() else "JOB"))
    except FileExistsError:
        raise MeshcostError(f"{path}: exists already. Choose another name, or --force.") from None
    except (OSError, ValueError) as error:
        raise MeshcostError(
            f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}."
        ) from None
    write([f"{path} is written (meshcost init - prints it instead). Next: meshcost analyze {path}\n"])


def schema() -> None:
    """Print the JSON schema of job files, for editors."""
    from meshcost.job import Job

    write_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **Job.model_json_schema()})
