"""meshcost: what a way of parallelising a model costs in communication.

import meshcost as mc

ledger = mc.analyze(mc.load("job.yaml"))    # or mc.analyze("job.yaml")
ledger                                      # the bill, in a terminal or in a notebook
ledger.filter(op="all_gather").totals       # calls and exact bytes of the busiest rank

Names are loaded when they are first used: importing meshcost costs next to nothing.
"""

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshcost import clusters as clusters
    from meshcost import collectives as collectives
    from meshcost import errors as errors
    from meshcost import models as models
    from meshcost import strategies as strategies
    from meshcost import testing as testing
    from meshcost.clusters import Cluster, read_cluster
    from meshcost.collectives import ALGORITHMS, Algorithm
    from meshcost.difference import Difference
    from meshcost.errors import (
        ExecutionError,
        FormulaError,
        JobError,
        LedgerError,
        MeshcostError,
        ModelError,
        UnknownAlgorithm,
    )
    from meshcost.event import Event, Totals
    from meshcost.execute.record import record
    from meshcost.execute.recording import Recording
    from meshcost.execute.recording_compare import assert_same
    from meshcost.execute.trace import trace
    from meshcost.job import Job, analyze, load, read_job
    from meshcost.ledger import Ledger
    from meshcost.mesh import Mesh
    from meshcost.models import Model, freeze, lora, read_model
    from meshcost.strategies import Strategy
    from meshcost.strategies.torch_options import TorchOptions
    from meshcost.unroll import Call

    __version__: str

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Call",
    "Cluster",
    "Difference",
    "Event",
    "ExecutionError",
    "FormulaError",
    "Job",
    "JobError",
    "Ledger",
    "LedgerError",
    "Mesh",
    "MeshcostError",
    "Model",
    "ModelError",
    "Recording",
    "Strategy",
    "TorchOptions",
    "Totals",
    "UnknownAlgorithm",
    "__version__",
    "analyze",
    "assert_same",
    "freeze",
    "load",
    "lora",
    "read_cluster",
    "read_job",
    "read_model",
    "record",
    "trace",
]

#: Where each public name lives.
_HOMES = MappingProxyType(
    {
        name: home
        for home, names in {
            "meshcost.clusters": ("Cluster", "read_cluster"),
            "meshcost.collectives": ("ALGORITHMS", "Algorithm"),
            "meshcost.errors": (
                "ExecutionError",
                "FormulaError",
                "JobError",
                "LedgerError",
                "MeshcostError",
                "ModelError",
                "UnknownAlgorithm",
            ),
            "meshcost.event": ("Event", "Totals"),
            "meshcost.execute.record": ("record",),
            "meshcost.execute.recording": ("Recording",),
            "meshcost.execute.recording_compare": ("assert_same",),
            "meshcost.execute.trace": ("trace",),
            "meshcost.strategies.torch_options": ("TorchOptions",),
            "meshcost.job": ("Job", "analyze", "load", "read_job"),
            "meshcost.difference": ("Difference",),
            "meshcost.ledger": ("Ledger",),
            "meshcost.mesh": ("Mesh",),
            "meshcost.models": ("Model", "freeze", "lora", "read_model"),
            "meshcost.strategies": ("Strategy",),
            "meshcost.unroll": ("Call",),
        }.items()
        for name in names
    }
)

_NEED_TORCH = ("record", "trace")
_SHELVES = ("clusters", "collectives", "errors", "models", "strategies", "testing")


if not TYPE_CHECKING:  # a type checker has the imports above, and finds names that do not exist

    def __getattr__(name: str) -> object:
        """Load a public name, or one of the shelves, when it is first asked for."""
        if name == "__version__":
            found: object = _version()
        elif name in _HOMES:
            if name in _NEED_TORCH:
                _require_torch(name)
            found = getattr(import_module(_HOMES[name]), name)
        elif name in _SHELVES:
            return import_module(f"meshcost.{name}")
        else:
            raise AttributeError(f"module 'meshcost' has no attribute {name!r}")
        globals()[name] = found
        return found


def _require_torch(name: str) -> None:
    from meshcost.execute.crew import require_torch

    require_torch(f"meshcost.{name} watches PyTorch")


def __dir__() -> list[str]:
    return sorted({*__all__, *_SHELVES, *(name for name in globals() if name.startswith("__"))})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("meshcost")
    except PackageNotFoundError:  # a checkout that is not installed
        return "0+unknown"
