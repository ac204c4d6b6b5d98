"""The process of one local rank: obeys the lines that arrive on its control socket, and ends when that closes."""

import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from meshcost.errors import MeshcostError
from meshcost.execute.member import Member, case_of, device_of, encoded
from meshcost.execute.nccl import choose_link_counter


def serve(rank: int, number: int) -> None:
    """Work for rank ``rank`` on the control socket with file descriptor ``number``, until told to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    control = socket.socket(fileno=number)
    commands = _listen(control)
    member: Member | None = None
    store: dict[str, Any] = {}

    def tell(message: Mapping[str, Any]) -> None:
        control.sendall(encoded(message))

    for command in iter(commands.get, None):
        try:
            match command["do"]:
                case "store":
                    tell({"port": _host_store(command, store)})
                case "join":
                    member, kind = _join(rank, command, store, tell)
                    tell({"done": command["number"], "row": {"counter": kind}})
                case "group" if member is not None:
                    member.group(tuple(command["members"]))
                    tell({"done": command["number"], "row": {}})
                case "play" if member is not None:
                    cases = [case_of(fields) for fields in command["cases"]]
                    row = member.play(command["number"], cases, command["order"], command["world"])
                    tell({"done": command["number"], "row": row})
                case _ if member is not None:
                    row = member.measure(command["number"], case_of(command["case"]), command["iterations"])
                    tell({"done": command["number"], "row": row})
        except Exception as error:  # noqa: BLE001 - whatever goes wrong in a rank is told to the one who started it
            tell({"failed": command.get("number"), "why": _sentence(error), "lost": _is_lost_peer(error)})


def _listen(control: socket.socket) -> "queue.Queue[Mapping[str, Any] | None]":
    """Read commands in a thread of their own: a rank that is stuck in a call still ends when its starter is gone."""
    commands: queue.Queue[Mapping[str, Any] | None] = queue.Queue()

    def read() -> None:
        for line in _lines(control):
            commands.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return commands


def _lines(control: socket.socket) -> Iterator[bytes]:
    waiting = b""
    with contextlib.suppress(OSError):
        while part := control.recv(65536):
            *lines, waiting = (waiting + part).split(b"\n")
            yield from lines


def _host_store(command: Mapping[str, Any], kept: dict[str, Any]) -> int:
    """Open the store that ranks meet at, on the port asked for; 0 lets the system choose one."""
    kept["store"] = TCPStore(
        command["host"],
        command["port"],
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=command["timeout"]),
    )
    return int(kept["store"].port)


def _join(rank: int, command: Mapping[str, Any], kept: dict[str, Any], tell: Any) -> tuple[Member, str]:
    timeout = timedelta(seconds=command["timeout"])
    store = kept.get("store") or TCPStore(command["host"], command["port"], is_master=False, timeout=timeout)
    device = device_of(command["device"], rank)  # before NCCL starts: it takes the current one
    dist.init_process_group(
        command["backend"], store=store, rank=rank, world_size=command["world"], timeout=timeout
    )
    kind, counter = choose_link_counter(
        command["backend"], device.index or 0, command["interface"], skip_ports=(command["port"],)
    )
    return Member(rank, store, counter, device, timeout, tell, command.get("fault") or {}), kind


def _sentence(error: Exception) -> str:
    if isinstance(error, MeshcostError):
        return str(error)
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}".removesuffix(": ")


def _is_lost_peer(error: Exception) -> bool:
    """Whether a rank only noticed that another one was gone."""
    signs = ("Connection closed by peer", "Connection reset", "Broken pipe", "did not come", "Socket Timeout")
    return any(sign in str(error) for sign in signs)


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
