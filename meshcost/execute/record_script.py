"""Recording a person's own script without changing it.

    python -m meshcost.execute.record_script --out FOLDER [--step N] train.py ARGUMENTS

Run like this, or put by ``recorded_command`` in place of the script behind torchrun or any other launcher, it runs the
script under the recorder and leaves ``rank-0.json`` and so on in the folder, one for each process.
"""

# A launcher runs this file by its path. Python then looks for modules beside it first, where ``trace`` is not the
# standard library's: so nothing may be imported before that place is out of the way.
import sys

if __name__ == "__main__":
    sys.path.pop(0)

import argparse
import os
import runpy
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))

from meshcost.errors import ExecutionError

if TYPE_CHECKING:
    from meshcost.execute.recording import Recording


class ScriptFailed(ExecutionError):
    """The command that was recorded ended with a status that is not 0."""

    def __init__(self, problem: str, status: int) -> None:
        """Take the sentence, and the status."""
        super().__init__(problem)
        self.status = status


#: Modules that launch a script and are not one.
LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")


def record_command(
    command: Sequence[str], folder: str | Path, *, step: int | None = None
) -> "dict[int, Recording]":
    """Run a command that trains (``torchrun ... train.py``, ``python train.py``) and return what each rank called.

    The files stay in ``folder``. Without ``step``, it is the last step whose calls are those of the step before it. What
    the command prints goes to the error stream. Raises ScriptFailed if the command fails, ExecutionError if it names no
    script, cannot be started, or calls nothing in that step.
    """
    from meshcost.execute.recording_compare import RANK_FILES, read_recordings

    folder = Path(folder)
    made = recorded_command(command, folder, step=step)
    was_there = folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _clear(folder)
        status = subprocess.run(made, check=False, stdout=2).returncode
    except OSError as error:
        raise ExecutionError(f"record: {error.filename or command[0]}: {error.strerror}.") from None
    recordings = read_recordings(folder) if any(folder.glob(RANK_FILES)) else {}
    if not any(recordings.values()):
        # A refusal leaves nothing behind.
        _clear(folder)
        if not was_there:
            with suppress(OSError):  # the script may have put something of its own there
                folder.rmdir()
    if status:
        left = f" What its ranks called until then is in {folder}." if any(recordings.values()) else ""
        raise ScriptFailed(f"record: {command[0]} ended with status {status}.{left}", abs(status))
    if not recordings:
        raise ExecutionError(f"record: {command[0]} ran, but no process of it left a recording.")
    _refuse_empty(recordings, step)
    return dict(sorted(recordings.items()))


def _clear(folder: Path) -> None:
    from meshcost.execute.recording_compare import RANK_FILES

    for old in folder.glob(RANK_FILES):
        old.unlink()


def _refuse_empty(recordings: "Mapping[int, Recording]", step: int | None) -> None:
    if any(recordings.values()):
        return
    steps = max(recording.about["steps"] for recording in recordings.values())
    if step is not None and steps:
        raise ExecutionError(f"record: no rank called anything in step {step}. Steps are 0 to {steps - 1}.")
    if most := max(recording.about["seen"] for recording in recordings.values()):
        raise ExecutionError(
            f"record: the script ran, and a rank made {most} calls, but none of them in a training step: no backward pass "
            "and no step of an optimizer of torch was seen before or after them."
        )
    raise ExecutionError(
        "record: the script ran, but no rank called a collective in a training step. Does it start a process group, and "
        "more than one process (torchrun --nproc-per-node 2)?"
    )


def recorded_command(command: Sequence[str], folder: str | Path, *, step: int | None = None) -> list[str]:
    """Put this recorder in front of the script that a command runs.

    >>> made = recorded_command(["torchrun", "--nproc-per-node", "2", "-m", "mine.train", "--lr", "1"], "out")
    >>> made[:3], made[4:]
    (['torchrun', '--nproc-per-node', '2'], ['--out', 'out', '--module', 'mine.train', '--lr', '1'])
    """
    options = [str(Path(__file__).resolve()), "--out", str(folder)]
    if step is not None:
        options += ["--step", str(step)]
    parts = list(command)
    for place, part in enumerate(parts):
        if part.endswith(".py") and Path(part).is_file():
            return [*parts[:place], *options, *parts[place:]]
    for place, (part, module) in enumerate(pairwise(parts)):
        if part in ("-m", "--module") and module not in LAUNCHERS:
            return [*parts[:place], *options, "--module", *parts[place + 1 :]]
    raise ExecutionError(
        f"record: {' '.join(parts) or 'the command'} names no script that exists, and no module."
    )


#: Globals of the script that ran.
_LEFT_BEHIND: list[Mapping[str, object]] = []


def run_script(
    script: str, arguments: Sequence[str], folder: Path, *, module: bool = False, step: int | None = None
) -> None:
    """Run a script or a module in this process under the recorder and write the recording, whatever ends it."""
    from meshcost.execute.record import record

    sys.argv = [script, *arguments]
    sys.path.insert(0, "" if module else str(Path(script).resolve().parent))
    with record() as recorder:
        try:
            # What a script leaves behind lives until the process ends, as it does without a recorder: torch may wait for
            # its own threads when a process group is let go of.
            _LEFT_BEHIND.append(
                runpy.run_module(script, run_name="__main__", alter_sys=True)
                if module
                else runpy.run_path(script, run_name="__main__")
            )
        finally:
            recording = recorder.recording
            if not recording.calls:
                recording = replace(
                    recording,
                    rank=int(os.environ.get("RANK", "0")),
                    world_size=int(os.environ.get("WORLD_SIZE", "1")),
                )
            chosen(recording, step, saw_step=recorder.where.saw_step).save(
                folder / f"rank-{recording.rank}.json"
            )


def chosen(recording: "Recording", step: int | None = None, *, saw_step: bool = True) -> "Recording":
    """Keep one step: the one that is asked for, or one of the steady state. ``about`` says which and of how many.

    ``saw_step``: whether an optimizer stepped, which is what ends a step. ``seen``: calls in all.
    """
    steps = recording.steps
    steady = recording.steady_step
    number = step if step is not None else steady if steady is not None else max(steps, default=0)
    kept = recording.at_step(number)
    seen = len(recording.calls)
    said = {"steps": len(steps), "steady": number == steady, "saw_step": saw_step, "seen": seen}
    return replace(kept, about={**kept.about, **said})


def main() -> None:
    """Read the command line and run the script."""
    parser = argparse.ArgumentParser(
        prog="record_script", description="Run a training script under the recorder."
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for rank-0.json and so on")
    parser.add_argument("--step", type=int, help="the step to keep; without it one of the steady state")
    parser.add_argument("--module", action="store_true", help="the script is the name of a module")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    run_script(given.script, given.arguments, given.out, module=given.module, step=given.step)


if __name__ == "__main__":
    main()
