"""The command line as a process of its own: what only a real terminal, pipe or signal can show."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import get_args

import pytest

import meshcost

COMMAND = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "sys.argv[0] = 'meshcost'; from meshcost.__main__ import program; program()"
)


def start(*arguments: object, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", COMMAND, *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "PYTHONIOENCODING")}
    return kept | more


def test_help_lists_every_command_and_loads_nothing_heavy():
    command = [sys.executable, "-X", "importtime", "-c", COMMAND, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0
    for name in (
        "analyze",
        "explain",
        "compare",
        "collectives",
        "models",
        "calls",
        "verify",
        "trace",
        "record",
        "init",
        "schema",
        "--install-completion",
    ):
        assert name in done.stdout
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert {"sympy", "pydantic_core", "yaml", "rich", "torch", "numpy", "pandas"} & loaded <= {
        "pydantic_core"
    }
    assert "meshcost.job" not in done.stderr


def test_a_textbook_bill_loads_only_what_it_shows(jobs: dict[str, Path]):
    command = [sys.executable, "-X", "importtime", "-c", COMMAND, "analyze", str(jobs["dense"])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "meshcost.strategies.data.textbook" in loaded
    strange = {name for name in loaded if re.fullmatch(r"meshcost\.strategies\..*torch", name)}
    assert strange == set()
    assert (
        not {"meshcost.strategies.torch_profile", "meshcost.ledger_json", "meshcost.torch_program"} & loaded
    )


def test_version():
    code, out, err = finish(start("--version"))
    assert (code, err) == (0, "")
    assert out.startswith("meshcost ")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "utf-8"])
def test_a_console_of_any_encoding_is_written_to(jobs: dict[str, Path], encoding: str):
    process = start("analyze", jobs["dense"], env=environment(PYTHONIOENCODING=encoding), encoding=encoding)
    code, out, err = finish(process)
    assert (code, err) == (0, "")
    assert ("█" in out) == (encoding == "utf-8")
    assert ("####" in out) == (encoding != "utf-8")


def test_a_name_that_the_console_cannot_write(tmp_path: Path, jobs: dict[str, Path]):
    text = jobs["dense"].read_text().replace("{model_type: llama", "{name: модель, model_type: llama")
    path = tmp_path / "Ж.yaml"
    path.write_text(text, encoding="utf-8")
    code, out, _ = finish(start("analyze", path, env=environment(PYTHONIOENCODING="ascii"), encoding="ascii"))
    assert code == 0
    assert "\\u043c" in out
    code, out, err = finish(start("analyze", tmp_path / "Щ.yaml", env=environment(PYTHONIOENCODING="ascii")))
    assert (code, out) == (2, "")
    assert "Traceback" not in err


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX pipes")
def test_a_reader_who_has_enough_ends_it_quietly(jobs: dict[str, Path], tmp_path: Path):
    job = tmp_path / "long.yaml"
    job.write_text(
        "{model: gpt2, parallel: {data: {strategy: fsdp, size: 2}}, batch: {sequence: 8, global_batch: 2048}}"
    )
    with start("calls", job, "--rank", 0, "--format", "jsonl") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_sentence(jobs: dict[str, Path]):
    with Path("/dev/full").open("w") as full:
        code, _, err = finish(start("analyze", jobs["dense"], stdout=full))
    assert code == 2
    assert err.strip().endswith("No space left on device.")
    assert len(err.splitlines()) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_width_of_nothing_is_no_width():
    code, out, _ = finish(start("collectives", "barrier", env=environment(COLUMNS="0")))
    assert code == 0
    assert "barrier" in out


def test_an_interrupt_ends_it_quietly(tmp_path: Path):
    job = tmp_path / "endless.yaml"
    job.write_text(
        "{model: gpt2, parallel: {data: {strategy: fsdp, size: 2}}, batch: {sequence: 8, global_batch: 2097152}}"
    )
    process = start("calls", job, "--rank", 0, "--format", "jsonl", stdout=subprocess.DEVNULL)
    time.sleep(4)  # it is in the middle of its calls by then
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("meshcost ana", {"analyze"}),
        ("meshcost models deepseek-", {"deepseek-v3", "deepseek-v2-lite", "deepseek-llm-67b"}),
        ("meshcost collectives all_", {"all_reduce", "all_gather", "all_to_all"}),
        ("meshcost analyze job.yaml --by st", {"strategy", "stage"}),
    ],
)
def test_the_shell_completes(words: str, expected: set[str]):
    asked = environment(
        _MESHCOST_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(len(words.split()) - 1)
    )
    code, out, _ = finish(start(env=asked))
    assert code == 0
    assert set(out.split()) == expected


def test_completion_can_be_shown_for_a_shell():
    asked = environment(
        _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1"
    )  # there may be no shell above the tests
    code, out, _ = finish(start("--show-completion", "bash", env=asked))
    assert code == 0
    assert "_MESHCOST_COMPLETE" in out


def test_what_completes_are_the_real_names():
    from meshcost.cli.options import Profile, complete_clusters, complete_models, complete_operations
    from meshcost.clusters import clusters
    from meshcost.collectives.operations import OPERATIONS, OTHERS
    from meshcost.job import Framework
    from meshcost.models import catalogue

    assert set(complete_operations("")) == {*OPERATIONS, *OTHERS}
    assert set(complete_models("")) == set(catalogue())
    assert set(complete_clusters("")) == set(clusters())
    assert set(Profile) == set(get_args(Framework))


def test_a_program_that_ends_at_once_has_written_everything(tmp_path: Path):
    job = tmp_path / "job.yaml"
    job.write_text(
        "model: gpt2\nparallel: {data: {strategy: zero3, size: 8}}\nbatch: {sequence: 8, global_batch: 64}\n"
    )
    code, out, err = finish(start("calls", job, "--rank", 7, "--format", "jsonl"))
    listed = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert out.endswith("\n")
    assert len(listed) == meshcost.analyze(job).rank_totals(7).calls > 300


def test_the_program_of_the_package_is_this_one():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["scripts"] == {"meshcost": "meshcost.__main__:program"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full, which is always full")
@pytest.mark.parametrize("arguments", [("--help",), ("analyze", "--help")])
def test_a_page_of_help_on_a_full_disk_is_an_error(arguments: tuple[str, ...]):
    with Path("/dev/full").open("w") as full:
        code, _, err = finish(start(*arguments, stdout=full))
    assert (code, err) == (2, "meshcost: standard output: cannot be written: No space left on device.\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full, which is always full")
@pytest.mark.parametrize("arguments", [("analyze", "nowhere.yaml"), ("--nonsense",), ("analyze",)])
def test_an_error_that_nobody_can_read_is_still_one(arguments: tuple[str, ...]):
    with Path("/dev/full").open("w") as full:
        code, out, _ = finish(start(*arguments, stderr=full))
    assert (code, out) == (2, "")


def test_standard_input_is_named_once(tmp_path: Path):
    code, out, err = finish(start("compare", "-", "-", stdin=subprocess.DEVNULL))
    assert (code, out, err) == (2, "", "meshcost: -: standard input can be named once.\n")
