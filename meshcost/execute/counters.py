"""Counting bytes: what this process has sent and received so far, as its kernel knows it. Knows no torch.

A counter is believed only after it has counted known bytes right. On Linux the TCP sockets of this process say it
themselves (TCP_INFO), without privileges. Where they do not, the counters of the network interface stand in; they
include headers, acknowledgements and whatever else the host sends, and on one host they see all ranks together.
"""

import os
import socket
import struct
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

CounterKind = Literal["tcp_info", "interface", "nvlink", "none"]

#: Offsets in ``struct tcp_info`` of Linux: tcpi_bytes_received, then tcpi_bytes_sent and tcpi_bytes_retrans (4.19).
_RECEIVED, _SENT, _INFO_LENGTH, _LISTEN = 128, 200, 216, 10
_PROBE_BYTES = 100_000


class Bytes(NamedTuple):
    """Bytes sent and received since some moment."""

    sent: int
    received: int

    def since(self, before: "Bytes") -> "Bytes":
        """What has been added after ``before``."""
        return Bytes(self.sent - before.sent, self.received - before.received)


Counter = Callable[[], Bytes]


def tcp_counter(*, skip_ports: Collection[int] = ()) -> Counter:
    """Count on the TCP sockets of this process, retransmissions left out.

    Sockets from or to ``skip_ports`` are left out: the store that ranks meet at is not part of a collective.
    """

    def count() -> Bytes:
        sent = received = 0
        for each in _connections(skip_ports):
            sent, received = sent + each.sent, received + each.received
        return Bytes(sent, received)

    return count


def _connections(skip_ports: Collection[int]) -> Iterator[Bytes]:
    for link in Path("/proc/self/fd").iterdir():
        try:
            if not str(link.readlink()).startswith("socket:"):
                continue
            found = socket.socket(fileno=os.dup(int(link.name)))
        except OSError:  # closed since the listing
            continue
        with found:
            if found.type == socket.SOCK_STREAM and found.family in (socket.AF_INET, socket.AF_INET6):
                yield from _bytes_of(found, skip_ports)


def _bytes_of(connection: socket.socket, skip_ports: Collection[int]) -> Iterator[Bytes]:
    try:
        ports = {connection.getsockname()[1], connection.getpeername()[1]}
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:  # not connected
        return
    if len(info) >= _INFO_LENGTH and info[0] != _LISTEN and not ports & set(skip_ports):
        sent, resent = struct.unpack_from("QQ", info, _SENT)
        yield Bytes(sent - resent, struct.unpack_from("Q", info, _RECEIVED)[0])


def interface_counter(name: str) -> Counter:
    """Count on a network interface of this host (``lo``, ``eth0``): everything that anybody sends over it.

    Source: /proc/net/dev, bytes received in the first column, bytes sent in the ninth.
    """

    def count() -> Bytes:
        for line in Path("/proc/net/dev").read_text(encoding="ascii").splitlines():
            label, _, figures = line.partition(":")
            if label.strip() == name:
                columns = figures.split()
                return Bytes(int(columns[8]), int(columns[0]))
        return Bytes(0, 0)

    return count


def choose_counter(interface: str, *, skip_ports: Collection[int] = ()) -> tuple[CounterKind, Counter]:
    """Return the best counter that this host offers, and its kind; each is tried on known bytes first."""
    if _counts(tcp_counter(), at_most=_PROBE_BYTES):
        return "tcp_info", tcp_counter(skip_ports=skip_ports)
    if _counts(interface_counter("lo"), at_most=20 * _PROBE_BYTES):
        return "interface", interface_counter(interface)
    return "none", lambda: Bytes(0, 0)


def _counts(counter: Counter, *, at_most: int) -> bool:
    """Whether a counter sees bytes sent over loopback: both ends of the connection are in this process."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            sender = socket.create_connection(server.getsockname())
            receiver, _ = server.accept()
        with sender, receiver:
            before = counter()
            left = _PROBE_BYTES
            while left:
                sender.sendall(bytes(min(left, 10_000)))
                left -= len(receiver.recv(10_000, socket.MSG_WAITALL))
            seen = counter().since(before)
    except (OSError, struct.error, ValueError, AttributeError):
        return False
    return all(_PROBE_BYTES <= number <= at_most for number in seen)
