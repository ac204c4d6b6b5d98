"""A strategy of somebody else's: known by its entry point, written in YAML, held to the same laws."""

from collections.abc import Iterator
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, settings

from meshcost import plain_yaml, testing
from meshcost import symbols as sym
from meshcost.errors import JobError
from meshcost.event import Event
from meshcost.job import Job, analyze, read_job
from meshcost.strategies import Setting, Strategy, View
from meshcost.strategies.view import Draft

SOME = settings(max_examples=max(settings().max_examples // 8, 10), suppress_health_check=list(HealthCheck))


class Gossip(Strategy):
    """Every rank averages its weights with the next one once in a step (local SGD's poor cousin)."""

    axis: ClassVar[str] = "gossip"
    splits_batch: ClassVar[bool] = True

    steps: int = 1

    def problems(self, setting: Setting) -> Iterator[str]:
        if self.size > 64:
            yield f"parallel.gossip.size: {self.size} is too talkative. Choose 64 or less."

    def events(self, view: View) -> Iterator[Event]:
        for stage in view.stages:
            mean = Draft(
                "gossip",
                "all_reduce",
                (self.axis,),
                "optimizer",
                (stage.total("weights") + stage.total("experts")) * sym.b_w,
                view.setting.precision.dtype("weights"),
                "average the weights with everybody",
            )
            yield from view.once(mean, stage, order=(99,))


class Forgetful(Gossip):
    """The same, but it trusts that nobody came before it: wrong."""

    axis: ClassVar[str] = "forgetful"

    def events(self, view: View) -> Iterator[Event]:
        if next(iter(view.setting.parallel)) == "forgetful":
            yield from super().events(view)


TEXT = """\
model: gpt2
parallel:
  gossip: {size: 4, steps: 2}
  tensor: {size: 2}
  pad_vocabulary: 128
  order: [tensor, gossip, context, data, pipeline]
batch: {sequence: 64, global_batch: 8}
"""


class Point:
    """What importlib.metadata gives for an installed entry point."""

    name = "gossip"

    @staticmethod
    def load() -> type[Strategy]:
        return Gossip


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(
        "meshcost.layout.entry_points", lambda group: [Point] if group == "meshcost.strategies" else []
    )


@pytest.mark.usefixtures("installed")
def test_an_installed_strategy_works_in_yaml():
    job = read_job(plain_yaml.parse(TEXT))
    assert job.world_size == 8
    assert job.micro_batches == 2
    (event,) = analyze(job).filter(strategy="gossip")
    assert event.op == "all_reduce"
    assert event.group_size == 4
    assert event.axes == ("gossip",)
    assert analyze(job).mesh.group(0, ("gossip",)) == (0, 2, 4, 6)


@pytest.mark.usefixtures("installed")
def test_its_options_are_checked_like_ours():
    with pytest.raises(JobError, match=r"gossip.*step.*unknown field"):
        read_job(plain_yaml.parse(TEXT.replace("steps", "step")))
    with pytest.raises(JobError, match="too talkative"):
        read_job(
            plain_yaml.parse(
                TEXT.replace("size: 4", "size: 128").replace("global_batch: 8", "global_batch: 128")
            )
        )


def test_without_the_package_its_key_is_a_clear_error():
    with pytest.raises(JobError, match=r"parallel\.gossip: unknown field"):
        read_job(plain_yaml.parse(TEXT))


def test_check_makes_it_known_by_itself():
    assert set(testing.check(Gossip(size=2))) == set(testing.LAWS)
    with pytest.raises(JobError):
        read_job(plain_yaml.parse(TEXT))


def test_it_obeys_the_laws_in_any_layout():
    @SOME
    @given(testing.jobs(plug_ins={"gossip": {"size": 2}}, largest=8))
    def look(job: Job):
        testing.check(job)
        assert [event.group_size for event in analyze(job).filter(strategy="gossip")]

    with testing.registered(Gossip):
        look()


def test_a_strategy_that_depends_on_the_order_is_found_out():
    with pytest.raises(AssertionError, match="strategies in the order"):
        testing.check(Forgetful(size=2))
