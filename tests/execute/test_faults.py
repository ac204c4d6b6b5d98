"""Whatever goes wrong ends in time, in one sentence that names the rank and the operation, and leaves no process."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from meshcost.errors import ExecutionError
from meshcost.execute.crew import Crew, Fault
from meshcost.execute.failures import Trouble, explain, sentence_of
from meshcost.execute.plan import Case, cases
from meshcost.execute.results import Results
from meshcost.execute.verify import Settings, verify

pytestmark = [pytest.mark.gloo, pytest.mark.xdist_group("gloo")]
TIMEOUT = 2.0
#: A call may take its timeout; starting and ending ranks on a busy machine takes the rest.
LIMIT = TIMEOUT + 40


#: In the environment of whatever these tests start; other tests may have ranks of their own at the same time.
MARK = f"MESHCOST_TEST=faults-{os.getpid()}"


def workers():
    """Processes that a crew of these tests has started."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_ours = MARK.encode() in (folder / "environ").read_bytes()
            if is_ours and b"meshcost.execute.nursery" in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
    return found


@pytest.fixture(autouse=True)
def _nobody_is_left(monkeypatch):
    monkeypatch.setenv(*MARK.split("="))
    before = workers()
    yield
    end = time.monotonic() + 10
    while workers() - before and time.monotonic() < end:
        time.sleep(0.05)
    assert workers() - before == set()


def failing(fault, operations=("broadcast", "all_reduce"), **settings):
    start, rows = time.monotonic(), []
    asked = Settings(timeout=TIMEOUT, iterations=1, fault=fault, **settings)
    with pytest.raises(ExecutionError) as caught:
        rows.extend(verify(cases(operations, [3], [4800]), asked))
    assert time.monotonic() - start < LIMIT
    assert len(caught.value.problems) == 1
    return str(caught.value), rows


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("SIGKILL", "rank 2 was ended by SIGKILL in all_reduce of 4.8 kB over 3 ranks."),
        (
            "raise",
            "rank 2 failed in all_reduce of 4.8 kB over 3 ranks: RuntimeError: a fault that was asked for.",
        ),
        ("hang", "rank 2 did not come to all_reduce of 4.8 kB over 3 ranks within 2 s"),
    ],
)
def test_a_rank_that_fails_is_named_and_what_was_measured_is_kept(kind, said, tmp_path):
    path = tmp_path / "rows.jsonl"
    sentence, rows = failing(Fault(2, kind, "all_reduce"), results=path)
    assert said in sentence
    assert {row.op for row in rows} == {"broadcast"}
    assert {row.op for row in Results(path).read()} == {"broadcast"}


def test_a_port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sentence, _ = failing(None, port=port)
    assert f"rank 0 failed in opening the store at 127.0.0.1:{port}: the port is in use." in sentence


def test_a_host_name_that_does_not_resolve():
    sentence, _ = failing(None, host="no-such-host.invalid")
    assert "rank 0 cannot open the store" in sentence
    assert "'no-such-host.invalid' does not resolve" in sentence


def test_a_full_disk_ends_it_where_it_stands():
    """An error while ranks wait for the next call: none of them is left, and the call that was made is shown."""
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full, which only Linux has")
    sentence, rows = failing(None, results=Path("/dev/full"))
    assert sentence == "/dev/full: cannot be written: the disk is full."
    assert [(row.op, row.rank) for row in rows] == [("broadcast", rank) for rank in range(3)]


def test_too_little_shared_memory():
    said = sentence_of(
        1, "RuntimeError: unable to write to file: No space left on device (28)", "all_reduce over 2 ranks"
    )
    assert said.startswith("rank 1 failed in all_reduce over 2 ranks: shared memory is too small.")
    assert "--shm-size" in explain(Trouble("all_reduce", 5, ended={1: -signal.SIGBUS}))


def test_the_cause_is_named_and_not_what_followed_from_it():
    lost = {0: "Connection closed by peer", 1: "Broken pipe"}
    trouble = Trouble("all_reduce", 5, lost_peer=lost, raised={2: "ValueError: no"})
    assert explain(trouble) == "rank 2 failed in all_reduce: ValueError: no."
    late = Trouble("all_reduce", 5, stages={0: 1, 1: 1}, missing={0, 1, 2})
    assert explain(late) == "rank 2 did not come to all_reduce within 5 s (--timeout)."
    late.stages[2] = 1
    assert explain(late) == "ranks 0, 1, 2 did not finish all_reduce within 5 s (--timeout)."
    trouble.ended = {3: -9}
    assert explain(trouble).startswith("rank 3 was ended by SIGKILL")


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"starter": -9}, "was ended by SIGKILL in reduce. Often the kernel does this when memory is short"),
        ({"starter": -15}, "was ended by SIGTERM in reduce."),
        ({"starter": 1}, "ended in reduce; python -c 'import torch' may say why."),
        ({"gone": {-1, 0, 1}, "starter": -9}, "the process that starts the ranks was ended by SIGKILL"),
        (
            {"gone": set(), "missing": {0, 1}, "stages": {0: 2, 1: 2}, "stopped": {1: "SIGSTOP"}},
            "rank 1 is stopped (SIGSTOP): ranks 0, 1 did not finish reduce within 5 s (--timeout).",
        ),
        (
            {"gone": set(), "missing": {0, 1, 2}, "stages": {0: 1}, "stopped": {1: "SIGSTOP", 2: "SIGSTOP"}},
            "ranks 1, 2 are stopped (SIGSTOP): ranks 1, 2 did not come to reduce within 5 s (--timeout).",
        ),
    ],
)
def test_who_was_stopped_or_ended_by_a_signal_is_named(known, said):
    assert said in explain(Trouble("reduce", 5, **({"gone": {-1}} | known)))


def test_the_clock_is_that_of_one_call_and_a_rank_that_is_stopped_is_named():
    """Thousands of calls take longer than one may; then a rank stops in the middle, and at last what starts the ranks."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("needs /proc, which says that a process is stopped")
    case = Case("all_reduce", (0, 1), 4)
    with Crew(2, timeout=TIMEOUT) as crew:
        crew.measure(case, iterations=1)
        crew.timeout = 1
        start = time.monotonic()
        threading.Timer(1.5, os.kill, (crew.processes[1], signal.SIGSTOP)).start()
        with pytest.raises(ExecutionError) as caught:
            crew.measure(case, iterations=10**9)
        assert time.monotonic() - start > 1.5
        said = (
            "rank 1 is stopped (SIGSTOP): ranks 0, 1 did not finish all_reduce of 4 B over 2 ranks within 1 s"
        )
        assert str(caught.value) == f"{said} (--timeout)."
        os.kill(os.getsid(crew.processes[0]), signal.SIGKILL)
        with pytest.raises(ExecutionError, match="starts the ranks was ended by SIGKILL in all_reduce"):
            crew.measure(case)


#: A run in the background ignores Ctrl-C, and what it starts inherits that: the test asks for it back.
COMMAND = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from meshcost.cli import main; main()"


def started(*options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, "verify", "--iterations", "100", "--size", "1MiB", *map(str, options)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def wait_for_rows(path, process):
    """Until the rows of the second call begin: those of the first one have been taken note of."""
    end = time.monotonic() + 60
    while not path.is_file() or path.read_bytes().count(b"\n") < 3:
        assert time.monotonic() < end, "no row came"
        assert process.poll() is None
        time.sleep(0.02)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_say_where_it_was_and_keep_the_rows(stop, tmp_path):
    path = tmp_path / "rows.jsonl"
    process = started("--results", path)
    wait_for_rows(path, process)
    process.send_signal(stop)
    shown, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert "before it stopped right" in shown
    assert "interrupted in " in errors
    assert "go on with --resume" in errors
    assert "Traceback" not in errors
    assert len(list(Results(path).read())) >= 2


def test_ctrl_c_while_ranks_are_started_says_so():
    process = started("--op", "reduce", "--ranks", "2")
    assert "2 ranks take up to" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    shown, errors = process.communicate(timeout=20)
    assert (process.returncode, shown) == (2, "")
    assert errors == "meshcost: interrupted while the ranks were being started.\n"


def test_ranks_end_when_whoever_started_them_is_killed(tmp_path):
    path = tmp_path / "rows.jsonl"
    process = started("--results", path)
    wait_for_rows(path, process)
    process.kill()
    process.communicate(timeout=20)
