"""Who calls what: one folder for each axis of a layout.

In each, ``options.py`` is what a person may ask for and whether it is legal, and there is one file for each framework
profile: ``textbook.py`` is what the papers say. Knows nothing of algorithms, hardware or torch.
"""

from collections.abc import Mapping
from types import MappingProxyType

from meshcost.strategies.base import Strategy
from meshcost.strategies.context.options import ContextParallel
from meshcost.strategies.data.options import DataParallel
from meshcost.strategies.expert.options import ExpertParallel
from meshcost.strategies.pipeline.options import PipelineParallel
from meshcost.strategies.profiles import PROFILES, events
from meshcost.strategies.scalars.options import Scalars
from meshcost.strategies.setting import Batch, Options, Precision, Recompute, Setting
from meshcost.strategies.tensor.options import TensorParallel
from meshcost.strategies.view import View

__all__ = [
    "PROFILES",
    "STRATEGIES",
    "Batch",
    "ContextParallel",
    "DataParallel",
    "ExpertParallel",
    "Options",
    "PipelineParallel",
    "Precision",
    "Recompute",
    "Scalars",
    "Setting",
    "Strategy",
    "TensorParallel",
    "View",
    "events",
]

#: The shelf: a new strategy is one folder and one line here.
STRATEGIES: Mapping[str, type[Strategy]] = MappingProxyType(
    {x.axis: x for x in (TensorParallel, ContextParallel, DataParallel, PipelineParallel, ExpertParallel)}
)
