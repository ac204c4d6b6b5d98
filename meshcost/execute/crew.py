"""A crew: local ranks in processes of their own, started, asked and ended by this one. Knows no torch.

Whatever happens to a rank, whoever asked gets an answer or one clear sentence before the timeout, and no process stays.
"""

import contextlib
import importlib.util
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from meshcost.errors import ExecutionError
from meshcost.execute.failures import Trouble, explain
from meshcost.execute.nccl import debug_log
from meshcost.execute.open_files import allow_open_files
from meshcost.execute.plan import Case
from meshcost.execute.step import Step

#: Time for torch to load, processes to start and ranks to find each other, beyond the timeout of one call.
START_SECONDS = 120
#: After one rank has failed, how long to listen for the rank that was the cause.
_GRACE_SECONDS = 1.0
#: The library's own timeout is later than the crew's, whose sentence is better.
_LIBRARY_EXTRA = 30
#: A rank that makes many calls says only so often that it has come further.
SIGN_SECONDS = 0.05
#: Time for the nursery to end its ranks and itself, before a signal does.
_END_SECONDS = 5.0

#: Files that a command line has open beside the sockets of its ranks.
_OWN_FILES = 64
#: What starts the ranks, as arguments of Python.
NURSERY = ("-m", "meshcost.execute.nursery")

FaultKind = Literal["raise", "hang", "SIGKILL", "SIGBUS", "SIGSEGV"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure on purpose: what happens to which rank, in which operation (None: the first)."""

    rank: int
    kind: FaultKind
    op: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """As the rank reads it."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass
class Crew:
    """Local ranks. Use it in a ``with`` statement: it starts all of them, and at the end none is left.

    ``timeout`` in seconds holds for each call, and for each call of a step: the clock begins anew whenever a rank has
    finished one. ``processes`` are those of the ranks, once they have been started. ``port`` 0 lets the system choose
    where the ranks meet. ``interface`` is the network interface that Gloo binds to; empty: the one whose address ``host``
    is. Raises ExecutionError if torch
    is missing, if the host name does not resolve, if the port is taken, or if a rank does not start.
    """

    ranks: int
    timeout: float = 60.0
    host: str = "127.0.0.1"
    port: int = 0
    backend: str = "gloo"
    device: str = "cpu"
    interface: str = ""
    fault: Fault | None = None
    counter: str = field(default="", init=False)
    leader: bool = field(default=True, init=False)
    processes: list[int] = field(default_factory=list, init=False)
    _controls: list[socket.socket] = field(default_factory=list, init=False)
    _nursery: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _opened: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)
    _number: int = field(default=0, init=False)
    _waiting: dict[object, bytes] = field(default_factory=dict, init=False)
    _groups: set[tuple[int, ...]] = field(default_factory=set, init=False)

    def __enter__(self) -> Self:
        """Start the ranks and let them find each other."""
        require_torch()
        resolve(self.host)
        try:
            self._start()
            self._join()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all ranks."""
        self.close()

    def measure(self, case: Case, *, iterations: int = 1) -> dict[int, dict[str, Any]]:
        """Let the members of a case make its call; returns what each rank reports.

        Raises ExecutionError that names the rank and the operation if one fails, hangs or dies.
        """
        self.group(case.members, case.sentence)
        command = {"do": "measure", "case": asdict(case), "iterations": iterations}
        return self._ask(dict.fromkeys(case.members, command), case.sentence, self.timeout)

    def group(self, members: tuple[int, ...], what: str) -> None:
        """Let all ranks make the process group of some, once."""
        if members not in self._groups:
            together = {"do": "group", "members": members}
            self._ask(dict.fromkeys(range(self.ranks), together), f"start of {what}", self.timeout)
            self._groups.add(members)

    def play(self, step: Step) -> dict[int, dict[str, Any]]:
        """Let every rank make all calls of a step in its own order; returns what each rank reports."""
        everybody, commands, calls = tuple(range(self.ranks)), {}, 0
        self.group(everybody, "the step")
        for rank in everybody:
            cases, order = step.script(rank)
            for case in cases:
                if case.op != "send_recv":
                    self.group(case.members, case.sentence)
            described = [asdict(case) for case in cases]
            commands[rank] = {"do": "play", "cases": described, "order": order, "world": self.ranks}
            calls = max(calls, len(order))
        return self._ask(commands, f"the step of {calls:,} calls", self.timeout)

    def close(self) -> None:
        """End all ranks, whatever they are doing."""
        for control in self._controls:
            control.close()
        self._controls.clear()
        if self._nursery is not None:
            self._end(self._nursery)
            self._nursery = None
        self._opened.close()

    def _end(self, nursery: subprocess.Popen[bytes]) -> None:
        """Let the nursery end its ranks and wait for them, so that none is left as a zombie; by force where it does not."""
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        nursery.stdin.close()
        try:
            if self.processes:  # before, it does not listen yet
                nursery.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(nursery.pid, signal.SIGKILL)
            nursery.wait()
            nursery.stdout.close()

    def _start(self) -> None:
        allow_open_files(2 * self.ranks + _OWN_FILES)
        ends = [socket.socketpair() for _ in range(self.ranks)]
        self._controls = [ours for ours, _ in ends]
        theirs = [end.fileno() for _, end in ends]
        command = [sys.executable, *NURSERY, *map(str, theirs)]
        # A session of its own: Ctrl-C reaches this process alone, and one signal ends them all.
        self._nursery = subprocess.Popen(
            command, pass_fds=theirs, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=self._environment(), start_new_session=True,
        )  # fmt: skip
        for _, end in ends:
            end.close()

    def _environment(self) -> dict[str, str]:
        values = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
        }
        values["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        if self.backend == "nccl":
            values |= self._opened.enter_context(debug_log())
        interface = self.interface or (loopback() if is_local(self.host) else "")
        if interface:
            values["GLOO_SOCKET_IFNAME"] = interface
        return values

    def _join(self) -> None:
        room = self.timeout + START_SECONDS
        place = {"host": self.host, "port": self.port, "timeout": self.timeout + _LIBRARY_EXTRA}
        where = f"{self.host}:{self.port}" if self.port else self.host
        opened = self._ask({0: {"do": "store", **place}}, f"opening the store at {where}", room)
        command = {
            "do": "join", **place, "port": opened[0]["port"], "world": self.ranks, "backend": self.backend,
            "device": self.device, "interface": self.interface or loopback(),
            "fault": self.fault and self.fault.as_dict(),
        }  # fmt: skip
        joined = self._ask(dict.fromkeys(range(self.ranks), command), f"start of {self.ranks} ranks", room)
        kinds = {row["counter"] for row in joined.values()}
        self.counter = kinds.pop() if len(kinds) == 1 else "none"

    def _ask(
        self, commands: Mapping[int, Mapping[str, Any]], what: str, seconds: float
    ) -> dict[int, dict[str, Any]]:
        """Send each rank its command, and collect one answer from each."""
        self._number += 1
        for rank, command in commands.items():
            with contextlib.suppress(OSError):  # a rank that is gone is found below
                self._controls[rank].sendall(json.dumps({**command, "number": self._number}).encode() + b"\n")
        trouble = Trouble(what, seconds, expected=set(commands))
        answers: dict[int, dict[str, Any]] = {}
        end = time.monotonic() + seconds
        for rank, message in self._messages(trouble):
            if message:
                self._note(rank, message, answers, trouble)
            if "stage" in message and not trouble.found:
                end = time.monotonic() + seconds + SIGN_SECONDS
            if trouble.found and not trouble.closing:
                trouble.closing = True
                end = min(end, time.monotonic() + _GRACE_SECONDS)
            if len(answers) == len(commands):
                return answers
            if time.monotonic() >= end:
                break
        trouble.missing = set(commands) - set(answers)
        self._look(trouble)
        raise ExecutionError(explain(trouble))

    def _note(
        self, rank: int, message: Mapping[str, Any], answers: dict[int, dict[str, Any]], trouble: Trouble
    ) -> None:
        if "processes" in message:
            self.processes = list(message["processes"])
        elif "ended" in message:
            trouble.ended[message["ended"]] = message["status"]
        elif "failed" in message:
            (trouble.lost_peer if message["lost"] else trouble.raised)[rank] = message["why"]
        elif "stage" in message:
            trouble.stages[rank] = message["stage"]
        elif "port" in message:
            answers[rank] = dict(message)
        elif message.get("done") == self._number:
            answers[rank] = message["row"]

    def _look(self, trouble: Trouble) -> None:
        """Ask the system what became of the nursery and of the ranks that are missing."""
        assert self._nursery is not None
        if -1 in trouble.gone:
            with contextlib.suppress(subprocess.TimeoutExpired):
                trouble.starter = self._nursery.wait(_GRACE_SECONDS)
        known = [rank for rank in trouble.missing if rank < len(self.processes)]
        halted = {rank: stopped_by(self.processes[rank]) for rank in sorted(known)}
        trouble.stopped = {rank: how for rank, how in halted.items() if how}

    def _messages(self, trouble: Trouble) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield what ranks say, and now and then nothing, so that time can be looked at."""
        assert self._nursery is not None
        assert self._nursery.stdout is not None
        with selectors.DefaultSelector() as selector:
            for rank, control in enumerate(self._controls):
                selector.register(control, selectors.EVENT_READ, rank)
            selector.register(self._nursery.stdout, selectors.EVENT_READ, -1)
            while True:
                for key, _ in selector.select(timeout=0.1):
                    part = _received(key.fd)
                    if not part:
                        selector.unregister(key.fileobj)
                        trouble.gone.add(key.data)
                    *lines, self._waiting[key.data] = (self._waiting.get(key.data, b"") + part).split(b"\n")
                    yield from ((key.data, json.loads(line)) for line in lines)
                yield -1, {}


def _received(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


def stopped_by(process: int) -> str:
    """What keeps a process from running, where the system says so (Linux); empty if it runs.

    >>> stopped_by(os.getpid())
    ''
    """
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    # The name of the program stands in brackets before it, and may hold anything.
    return {"T": "SIGSTOP", "t": "by a debugger"}.get(state.rpartition(")")[2].strip()[:1], "")


def require_torch(why: str = "verify runs real collectives") -> None:
    """Raise ExecutionError with the command to type unless torch is installed."""
    if importlib.util.find_spec("torch") is None:
        raise ExecutionError(
            f"{why} and needs torch: pip install 'meshcost[torch]' (CPU only: "
            "pip install numpy torch --index-url https://download.pytorch.org/whl/cpu)."
        )


def resolve(host: str) -> None:
    """Raise ExecutionError unless a host name has an address."""
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        raise ExecutionError(
            f"rank 0 cannot open the store: the host name {host!r} does not resolve. Use an address, or add the name to "
            "/etc/hosts or the DNS."
        ) from None


def is_local(host: str) -> bool:
    """Whether a host is this machine's loopback address."""
    return host == "localhost" or host.startswith("127.") or host == "::1"


def loopback() -> str:
    """Name of the loopback interface."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in ("lo", "lo0") if name in names), names[0] if names else "lo")
