"""Seconds: links with sources, robust fits, and what an event takes on a cluster."""

from math import ceil, log2

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from sympy import Integer

from meshcost import Job, analyze
from meshcost.clusters import clusters, read_cluster
from meshcost.clusters.fit import Point, fit
from meshcost.errors import ExecutionError, JobError, MeshcostError
from meshcost.event import Event
from meshcost.execute.command import Request
from meshcost.execute.saving import cluster_of, save
from meshcost.job import load
from meshcost.measurement import Measurement
from meshcost.mesh import Mesh
from meshcost.price import Pricer
from meshcost.report.bill import Bill
from meshcost.timing import timing

LINK = """
links:
  intra_node:
    latency: {value: 5, unit: us, direction: one message, source: a test bench}
    bandwidth: {value: 80, unit: Gb/s, direction: "per direction, per rank", source: a test bench}
"""


@pytest.mark.parametrize("name", clusters())
def test_every_number_of_the_catalogue_has_unit_direction_and_source(name):
    cluster = read_cluster(name)
    assert set(cluster.links) == {"intra_node", "inter_node"}
    for link in cluster.links.values():
        for number in (link.latency, link.bandwidth):
            assert number.unit
            assert number.direction
            assert len(number.source) > 20
    inside, between = cluster.link("intra_node"), cluster.link("inter_node")
    assert inside.bandwidth.bytes_per_second > between.bandwidth.bytes_per_second
    assert inside.latency.seconds < between.latency.seconds


@pytest.mark.parametrize("missing", ["unit", "direction", "source"])
def test_a_number_without_unit_direction_or_source_is_refused(missing, tmp_path):
    data = yaml.safe_load(LINK)
    del data["links"]["intra_node"]["bandwidth"][missing]
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(JobError, match=rf"mine.yaml: links.intra_node.bandwidth.{missing}: missing"):
        read_cluster(str(path))


def test_a_cluster_is_read_from_a_file(tmp_path):
    (tmp_path / "mine.yaml").write_text(LINK)
    cluster = read_cluster("mine.yaml", base=tmp_path)
    assert cluster.name == "mine"
    assert cluster.link("intra_node").bandwidth.bytes_per_second == 10e9
    with pytest.raises(JobError, match=r"no links\.inter_node"):
        cluster.link("inter_node")


@given(
    latency=st.floats(1e-7, 1e-3),
    bandwidth=st.floats(1e6, 1e12),
    sizes=st.lists(st.integers(10**4, 10**9), min_size=5, max_size=9, unique=True),
    slow=st.integers(0, 4),
)
def test_one_slow_call_does_not_move_the_line(latency, bandwidth, sizes, slow):
    points = [Point(size, 6, size, 6 * latency + size / bandwidth) for size in sorted(sizes)]
    exact = fit(points, source="a computation")
    assert exact.bandwidth.bytes_per_second == pytest.approx(bandwidth, rel=1e-2)
    late = points[slow]
    points[slow] = Point(late.payload_bytes, 6, late.moved_bytes, late.seconds * 40)
    moved = fit(points, source="a computation")
    spread = max(sizes) / min(sizes)
    assert moved.bandwidth.bytes_per_second <= exact.bandwidth.bytes_per_second * 1.1 * spread


def test_a_fit_says_where_it_is_linear_and_how_far_off_it_is():
    points = [Point(size, 2, size, 2e-6 + size / 1e9) for size in (10**5, 10**6, 10**7, 10**8)]
    points += [Point(10**9, 2, 10**9, 5.0)]
    found = fit(points, source="a computation").fit
    assert found.payload_bytes == (10**5, 10**9)
    assert found.linear_bytes == (10**5, 10**8)
    assert found.error < 0.1
    with pytest.raises(MeshcostError, match="two sizes"):
        fit(points[:1], source="a computation")


def rows(op, sizes):
    return [
        Measurement(op, 2, size, rank, size, size, size, size, True, 1e-5 + size / 2e9, 0.0, 0.0)
        for size in sizes
        for rank in (0, 1)
    ]


def test_what_is_saved_is_read_back(tmp_path):
    measured = rows("all_reduce", (10**5, 10**6, 10**7)) + rows("barrier", (0,))
    path = tmp_path / "mine.yaml"
    save(path, cluster_of(measured, name="mine", kind="intra_node", gpus_per_node=2))
    cluster = read_cluster(str(path))
    speed = cluster.link("intra_node").speed("all_reduce")
    assert speed.bandwidth.bytes_per_second == pytest.approx(2e9, rel=1e-3)
    assert speed.latency.seconds == pytest.approx(5e-6, rel=1e-3)
    assert set(cluster.link("intra_node").operations) == {"all_reduce"}
    assert cluster.gpus_per_node == 2
    assert cluster.library == "gloo"


def test_what_was_measured_over_gloo_is_no_claim_about_nccl(tmp_path, run):
    """Neither in words nor in seconds: there is no tree for small sums, and no rank lends another its adapter."""
    path, job = tmp_path / "mine.yaml", tmp_path / "job.yaml"
    measured = rows("all_reduce", (10**5, 10**6, 10**7))
    fields = cluster_of(measured, name="mine", kind="intra_node", gpus_per_node=2)
    save(path, {**fields, "links": {**fields["links"], "inter_node": fields["links"]["intra_node"]}})
    job.write_text("model: gpt2\nparallel: {data: 4}\nbatch: {sequence: 64, global_batch: 4}\n")
    done = run("analyze", job, "--cluster", path, columns=200)
    assert "as measured over Gloo" in done.out
    assert "NCCL" not in done.out
    assert "As NCCL would" in run("analyze", job, "--cluster", "h100-dgx", columns=200).out
    cluster = read_cluster(str(path))
    speed = cluster.link("inter_node").speed("all_reduce")
    for event in analyze(load(job, cluster=cluster)):
        price = event.priced
        inside, between = price.rounds - price.inter_node_rounds, price.inter_node_rounds
        assert inside + between == 6
        assert timing(event, cluster).seconds == pytest.approx(
            6 * speed.latency.seconds + price.sent_bytes / speed.bandwidth.bytes_per_second
        )


def test_speeds_of_one_host_and_of_several_meet_in_one_file(tmp_path, monkeypatch, run):
    """Within a node it is enough; a job on two nodes is refused in one sentence until those between nodes are added."""
    path, job = tmp_path / "mine.yaml", tmp_path / "job.yaml"
    measured = rows("all_reduce", (10**5, 10**6)) + rows("barrier", (0,))
    for ranks, lines, passes in ((2, 0, True), (4, 1, False)):
        said = Request(save=path).finish(measured)[0] if ranks == 2 else ""
        assert ("a job on more than 2 ranks needs those between nodes" in said) == (ranks == 2)
        job.write_text(
            f"model: gpt2\nparallel: {{data: {ranks}}}\nbatch: {{sequence: 64, global_batch: {ranks}}}\n"
        )
        done = run("analyze", job, "--cluster", path)
        assert ((done.code == 0), done.err.count("\n")) == (passes, lines), done.err
    assert "links.inter_node" in done.err
    launcher = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "x",
        "MASTER_PORT": "1",
    }
    for name, text in launcher.items():
        monkeypatch.setenv(name, text)
    assert Request(save=path).finish(measured) == [
        f"wrote {path}: latency and bandwidth of each operation; in a job: cluster: {path}. It has links inside a node "
        "and between nodes."
    ]
    assert run("analyze", job, "--cluster", path).code == 0


def test_calls_without_bytes_cannot_be_fitted(tmp_path):
    with pytest.raises(ExecutionError, match="a fit needs two sizes"):
        Request(save=tmp_path / "mine.yaml").finish(rows("barrier", (0,)))


def test_a_slower_link_and_more_rounds_take_longer():
    job = {"model": "gpt2", "batch": {"sequence": 1024, "global_batch": 16}, "cluster": {"gpus_per_node": 8}}
    inside = analyze(Job(parallel={"data": 8}, **job)).events[0]
    between = analyze(Job(parallel={"data": 16}, **job)).events[0]
    cluster = read_cluster("h100-dgx")
    assert (inside.priced.rounds, inside.priced.inter_node_rounds) == (14, 0)
    assert (between.priced.rounds, between.priced.inter_node_rounds) == (30, 4)
    fast, slow = cluster.link("intra_node"), cluster.link("inter_node")
    assert timing(inside, cluster).seconds == pytest.approx(
        fast.seconds(rounds=14, sent_bytes=inside.priced.sent_bytes)
    )
    leaving = between.priced.sent_bytes / 8  # each of eight adapters takes its share
    ring = 26 * fast.latency.seconds + slow.seconds(rounds=4, sent_bytes=leaving)
    tree = 14 * fast.latency.seconds + slow.seconds(rounds=2, sent_bytes=leaving * 16 / 15)
    assert ring < tree  # 0.5 GB: what a tree sends more takes longer than what it waits less
    assert timing(between, cluster).seconds == pytest.approx(ring)


@pytest.mark.parametrize("nodes", [1, 2, 3, 128])
def test_an_all_reduce_takes_the_shorter_of_ring_and_tree(nodes: int):
    """Two closed forms, each with its rounds and its bytes, from one element to 4 GiB."""
    cluster = read_cluster("h100-dgx")
    fast, slow = cluster.link("intra_node"), cluster.link("inter_node")
    ranks, taken = 8 * nodes, []
    pricer = Pricer(Mesh({"data": ranks}))
    for payload in (4 * ranks * 2**k for k in range(26)):
        event = Event(
            "x",
            "all_reduce",
            ("data",),
            ranks,
            "backward",
            "why",
            "fp32",
            Integer(payload),
            Integer(1),
            {},
            item_bytes=4,
        )
        found = timing(pricer.price(event, Integer(ranks)), cluster)
        ring = 2 * payload * (ranks - 1) / ranks
        hops = {"ring": (2 * (ranks - 1), 2 * nodes if nodes > 1 else 0), "tree": (14, 2 * ceil(log2(nodes)))}
        hops["tree"] = (sum(hops["tree"]), hops["tree"][1])
        times = {}
        for name, size in (("ring", ring), ("tree", 2 * payload)):
            moved = max(
                size / 8 / slow.bandwidth.bytes_per_second, size * 7 / 8 / fast.bandwidth.bytes_per_second
            )
            if nodes == 1:
                moved = size / fast.bandwidth.bytes_per_second
            inside, between = hops[name][0] - hops[name][1], hops[name][1]
            times[name] = moved + inside * fast.latency.seconds + between * slow.latency.seconds
        assert found.seconds == pytest.approx(min(times.values()), rel=1e-3)
        taken.append(found.by_tree)
    assert taken == sorted(taken, reverse=True)  # by tree up to some size, over many ranks up to any
    assert (taken[0], taken[-1]) == (nodes > 1, nodes > 100)


def test_a_small_sum_over_many_ranks_goes_by_tree_and_a_named_algorithm_by_itself():
    job = {"model": "gpt2", "parallel": {"data": 512}, "batch": {"sequence": 1024, "global_batch": 512}}
    cluster = read_cluster("h100-dgx")

    def loss(**more):
        (event,) = analyze(Job(**job, **more)).filter(lambda x: x.payload_bytes == 4)
        return timing(event, cluster).seconds

    assert loss() == pytest.approx(14 * 1.83e-6 + 12 * 14e-6, rel=1e-3)
    assert loss(algorithms={"all_reduce": "hierarchical"}) == pytest.approx(
        14 * 1.83e-6 + 126 * 14e-6, rel=1e-3
    )
    assert loss(algorithms={"all_reduce": "recursive_doubling"}) == pytest.approx(9 * 14e-6, rel=1e-3)


def test_ranks_that_share_an_adapter_take_turns():
    fields = read_cluster("h100-dgx").model_dump()
    fields["links"]["inter_node"]["adapters"] = 2
    few, many = read_cluster(fields), read_cluster("h100-dgx")
    job = Job(model="llama-3-8b", parallel={"data": 16}, batch={"sequence": 1024, "global_batch": 16})
    event = analyze(job).events[0]
    assert timing(event, few).seconds == pytest.approx(4 * timing(event, many).seconds, rel=1e-2)


def test_a_step_is_the_sum_of_its_calls():
    ledger = analyze(
        Job(
            model="qwen3-0.6b", parallel={"data": 2, "tensor": 4}, batch={"sequence": 1024, "global_batch": 2}
        )
    )
    cluster = read_cluster("a100-dgx")
    (step,) = Bill(ledger, cluster=cluster).stage_seconds
    assert step == pytest.approx(sum(e.calls * timing(e, cluster).seconds for e in ledger))


def test_a_receive_takes_no_time_of_its_own():
    ledger = analyze(Job(model="gpt2", parallel={"pipeline": 2}, batch={"sequence": 1024, "global_batch": 4}))
    for event in ledger:
        if event.op in ("send", "recv"):
            assert (timing(event, read_cluster("h100-dgx")).seconds > 0) == (event.op == "send")
