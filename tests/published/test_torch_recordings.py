"""Predictions under ``framework: torch`` against recordings of real code: every call, every field, every rank, in order.

The recordings were made elsewhere, of PyTorch's own parallel code and of Transformers, Accelerate and torchtitan, which
nobody here wrote. Each stands beside the job that describes it; the prediction knows nothing but that job.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from meshcost.execute.recording import SETUP, Recording
from meshcost.execute.recording_truth import read_truth
from meshcost.job import Job, analyze

FILE = json.loads((Path(__file__).parent / "torch_recordings.json").read_text())
NAMES = list(FILE["recordings"])


@cache
def recorded(name: str) -> dict[int, Recording]:
    """Recording of each rank."""
    entry, calls = FILE["recordings"][name], FILE["calls"]
    ranks = {rank: [calls[number] for number in numbers] for rank, numbers in entry["ranks"].items()}
    return read_truth({"name": name, "config": {"world": entry["world"]}, "ranks": ranks})


def last_step(name: str) -> int:
    return max((call.step for recording in recorded(name).values() for call in recording), default=0)


def job_of(name: str, step: int) -> Job:
    """The job of a recording, for one step of it."""
    described: dict[str, Any] = dict(FILE["recordings"][name]["job"])
    return Job(**{**described, "torch": {**described.get("torch", {}), "step": step}})


@pytest.mark.parametrize("name", NAMES)
def test_every_call_is_predicted(name: str, equal_calls: Callable[..., None]):
    step = last_step(name)
    job = job_of(name, step)
    ledger = analyze(job)
    for rank, recording in recorded(name).items():
        observed = [call for call in recording if call.step == step and call.phase != SETUP]
        predicted = list(ledger.calls(rank))
        equal_calls(predicted, observed, name, rank)


@pytest.mark.parametrize("name", NAMES)
def test_counts_are_those_of_the_calls(name: str):
    ledger = analyze(job_of(name, last_step(name)))
    for rank in recorded(name):
        stage = ledger.mesh.stage(rank)
        counted = sum(event.calls for event in ledger if stage in event.stages)
        assert counted == len(list(ledger.calls(rank)))
