"""Several hosts: network namespaces, each with an address and a wire of its own, and the command that a launcher runs."""

import json
import os
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("torch")

pytestmark = [pytest.mark.gloo, pytest.mark.xdist_group("ranks")]

#: Everything is made inside a namespace of this script's own, so nothing is left when it ends.
HOSTS = """
set -e
mount -t tmpfs tmpfs /run && mkdir -p /run/netns
ip link set lo up
ip link add bridge0 type bridge && ip link set bridge0 up
for i in 0 1 2; do
  ip netns add host$i
  ip link add wire$i type veth peer name eth0 netns host$i
  ip link set wire$i master bridge0 up
  ip -n host$i addr add 10.77.0.$((i + 1))/24 dev eth0
  ip -n host$i link set eth0 up && ip -n host$i link set lo up
done
for i in 2 1 0; do
  ip netns exec host$i env RANK=$i "$@" &
done
wait
"""
LAUNCHER = {
    "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29511",
    "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1",
}  # fmt: skip
#: The second way needs no privilege where the kernel allows it; one of them is enough.
WAYS = {
    "CAP_SYS_ADMIN (root)": ["unshare", "--net", "--mount"],
    "unprivileged user namespaces": ["unshare", "--map-root-user", "--net", "--mount"],
}


def environment(**values):
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **values}


def way_in():
    """How this user may make network namespaces."""
    missing = [tool for tool in ("unshare", "ip", "mount") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs the tools {', '.join(missing)}")
    for enter in WAYS.values():
        probe = [*enter, "sh", "-ec", "mount -t tmpfs tmpfs /run && ip link add b0 type bridge"]
        if subprocess.run(probe, capture_output=True, check=False, timeout=20).returncode == 0:
            return enter
    pytest.skip(f"network namespaces need {' or '.join(WAYS)}, which this kernel or user does not give")


def test_hosts_agree_with_the_forms_and_with_their_wires():
    command = [
        sys.executable, "-m", "meshcost", "verify", "--timeout", "40", "--op", "all_reduce,broadcast", "--size", "300000",
        "--format", "json",
    ]  # fmt: skip
    done = subprocess.run(
        [*way_in(), "sh", "-ec", HOSTS, "hosts", *command], capture_output=True, text=True, check=False, timeout=150,
        env=environment(**LAUNCHER),
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert document["passed"], done.stderr
    assert {(row["op"], row["rank"], row["ranks"]) for row in document["rows"]} == {
        (op, rank, 3) for op in ("all_reduce", "broadcast") for rank in range(3)
    }


def test_an_address_that_does_not_resolve_under_a_launcher(monkeypatch, run):
    for name, text in (LAUNCHER | {"MASTER_ADDR": "no-such-host.invalid", "RANK": "1"}).items():
        monkeypatch.setenv(name, text)
    done = run("verify")
    assert done.code == 2
    assert "'no-such-host.invalid' does not resolve" in done.err


def test_a_host_that_never_comes_under_a_launcher(monkeypatch, run):
    values = LAUNCHER | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29517",
        "RANK": "0",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    for name, text in values.items():
        monkeypatch.setenv(name, text)
    done = run("verify", "--timeout", "1")
    assert done.code == 2
    assert "start of 3 ranks at 127.0.0.1:29517" in done.err
    assert "Traceback" not in done.err


TWO = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"RANK": "x"}, ["RANK=x in the environment: a launcher sets a number, 0 to 1."]),
        ({"RANK": ""}, ["RANK= in the environment: a launcher sets a number, 0 to 1."]),
        ({"RANK": "2"}, ["RANK=2 in the environment: a launcher sets a number, 0 to 1."]),
        (
            {"RANK": "-1", "WORLD_SIZE": "-2"},
            [
                "WORLD_SIZE=-2 in the environment: a launcher sets a number, 1 or more.",
                "RANK=-1 in",
                ", 0 or more.",
            ],
        ),
        ({"WORLD_SIZE": "9" * 5000}, ["WORLD_SIZE=99", ", 1 or more."]),
        (
            {"LOCAL_WORLD_SIZE": "3"},
            ["LOCAL_WORLD_SIZE=3 in the environment: a launcher sets a number, 1 to 2."],
        ),
        ({"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "1"}, ["LOCAL_RANK=1 in", ", 0 to 0."]),
        (
            {"MASTER_PORT": "abc"},
            ["MASTER_PORT=abc in the environment: a launcher sets a number, 1 to 65535."],
        ),
        ({"MASTER_PORT": "0"}, ["MASTER_PORT=0 in"]),
        ({"MASTER_PORT": "70000"}, ["MASTER_PORT=70000 in"]),
    ],
)
def test_what_no_launcher_says_is_one_sentence_each(values, said, monkeypatch, run):
    for name, text in (TWO | values).items():
        monkeypatch.setenv(name, text)
    done = run("verify")
    assert (done.code, done.out) == (2, "")
    assert all(part in done.err for part in said)
    assert done.err.count("Correct it, or unset RANK") == done.err.count("\n") == done.err.count("meshcost: ")
    assert len(done.err) < 400
