"""The mesh: coordinates and ranks are the same thing, groups part the world, experts are carved out of a stage."""

from collections import Counter
from itertools import combinations
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshcost import testing
from meshcost.errors import LedgerError
from meshcost.job import Job
from meshcost.mesh import EXPERT_AXES, Mesh


def every_axes(mesh: Mesh):
    """All sets of axes that lie in one factoring."""
    for names in (tuple(mesh.axes), tuple(mesh.expert or ())):
        for count in range(1, len(names) + 1):
            yield from combinations(names, count)


@given(testing.meshes())
def test_a_rank_has_one_place_and_a_place_one_rank(mesh: Mesh):
    places = [tuple(mesh.coordinates(rank)[axis] for axis in mesh.axes) for rank in range(mesh.world_size)]
    assert len(set(places)) == mesh.world_size == prod(mesh.axes.values())
    strides = dict.fromkeys(mesh.axes, 1)
    for i, axis in enumerate(mesh.axes):
        strides[axis] = prod(list(mesh.axes.values())[:i])
    for rank, place in enumerate(places):
        assert rank == sum(at * strides[axis] for at, axis in zip(place, mesh.axes, strict=True))


@given(testing.meshes())
def test_groups_part_the_world(mesh: Mesh):
    for axes in every_axes(mesh):
        groups = [tuple(group) for group in mesh.groups(axes)]
        assert {len(group) for group in groups} == {mesh.size(*axes)}
        assert sorted(rank for group in groups for rank in group) == list(range(mesh.world_size))


@given(testing.meshes(), st.data())
def test_a_group_is_who_differs_only_along_its_axes(mesh: Mesh, data):
    axes = data.draw(st.sampled_from(list(every_axes(mesh))))
    rank = data.draw(st.integers(0, mesh.world_size - 1))
    own = EXPERT_AXES if set(axes) & set(EXPERT_AXES) else tuple(mesh.axes)
    kept = [axis for axis in (*own, "pipeline") if axis not in axes and axis in mesh.coordinates(rank)]
    here = mesh.coordinates(rank)
    alike = [
        x for x in range(mesh.world_size) if all(mesh.coordinates(x)[axis] == here[axis] for axis in kept)
    ]
    assert list(mesh.group(rank, axes)) == alike


@given(testing.meshes())
def test_experts_are_consecutive_ranks_of_one_stage(mesh: Mesh):
    """DESIGN, section 4: expert_tensor innermost, then expert, then what is left, strided; torchtitan and Megatron agree."""
    if not mesh.expert:
        return
    for stage in range(mesh.stages):
        ranks = [rank for rank in range(mesh.world_size) if mesh.stage(rank) == stage]
        split, experts = mesh.expert["expert_tensor"], mesh.expert["expert"]
        for index, rank in enumerate(ranks):
            place = mesh.coordinates(rank)
            assert place["expert_tensor"] == index % split
            assert place["expert"] == index // split % experts
            assert place["expert_data"] == index // (split * experts) % mesh.expert["expert_data"]


def test_the_example_of_the_design():
    """Two tensor ranks, four data ranks, four expert ranks: experts take consecutive ranks, copies are four apart."""
    mesh = Mesh(
        {"tensor": 2, "data": 4, "pipeline": 2},
        {"expert_tensor": 1, "expert": 4, "expert_data": 2, "expert_replicate": 1},
    )
    assert mesh.group(0, ("expert",)) == (0, 1, 2, 3)
    assert mesh.group(5, ("expert_data",)) == (1, 5)
    assert mesh.group(13, ("expert_data",)) == (9, 13)
    assert mesh.group(13, ("expert_data", "pipeline")) == (1, 5, 9, 13)


@given(testing.meshes(), st.data())
def test_samples_cross_nodes_in_just_the_ways_that_groups_do(mesh: Mesh, data):
    axes = data.draw(st.sampled_from(list(every_axes(mesh))))
    stages = data.draw(st.sets(st.integers(0, mesh.stages - 1), min_size=1))

    def crossings(group):
        return tuple(rank // mesh.gpus_per_node - group[0] // mesh.gpus_per_node for rank in group)

    groups = [x for x in mesh.groups(axes) if "pipeline" in axes or mesh.stage(x[0]) in stages]
    counted = Counter[tuple[int, ...]]()
    for sample, number in mesh.samples(axes, stages).items():
        counted[crossings(sample)] += number
    assert counted == Counter(map(crossings, groups))


@pytest.mark.parametrize("before", [1, 4, 6])
def test_samples_do_not_grow_with_the_world(before):
    """Experts over the pipeline axis: not cut, cut at a multiple, and cut anywhere."""

    def samples(data):
        axes = {"context": before, "pipeline": 4, "data": data}
        mesh = Mesh(axes, {"expert_tensor": 1, "expert": 16, "expert_data": before * data // 16})
        return [set(mesh.samples(along, (0, 2))) for along in (("expert",), ("expert_data",))]

    assert [len(x) for x in samples(2**6)] == [len(x) for x in samples(2**14)]


def test_a_rank_outside_the_world_is_an_error():
    for rank in (-1, 4):
        with pytest.raises(LedgerError, match="choose 0 to 3"):
            Mesh({"data": 4}).coordinates(rank)


def test_a_job_puts_the_parts_of_one_expert_on_neighbouring_ranks():
    """Megatron and torchtitan: the ranks that split an expert are innermost, and copies of it are farthest apart."""
    model = {
        "model_type": "mixtral", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "intermediate_size": 64, "vocab_size": 128, "num_local_experts": 4,
    }  # fmt: skip
    parallel = {"tensor": {"size": 2, "sequence_parallel": True}, "data": {"size": 4}, "expert": {"size": 2}}
    mesh = Job(model=model, parallel=parallel, batch={"sequence": 8, "global_batch": 4}).mesh
    assert mesh.group(0, ("expert_tensor",)) == (0, 1)
    assert mesh.group(0, ("expert",)) == (0, 2)
    assert mesh.group(0, ("expert_data",)) == (0, 4)
