"""The torch profile: who writes the events of each strategy as PyTorch calls them. Imported where a job asks for it."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from meshcost.event import Event
from meshcost.strategies.context import torch as context
from meshcost.strategies.context.options import ContextParallel
from meshcost.strategies.data import torch as data
from meshcost.strategies.data.options import DataParallel
from meshcost.strategies.expert import torch as expert
from meshcost.strategies.expert.options import ExpertParallel
from meshcost.strategies.pipeline import torch as pipeline
from meshcost.strategies.pipeline.options import PipelineParallel
from meshcost.strategies.scalars import torch as scalars
from meshcost.strategies.scalars.options import Scalars
from meshcost.strategies.tensor import torch as tensor
from meshcost.strategies.tensor.options import TensorParallel
from meshcost.strategies.view import View

WRITERS: Mapping[type, Callable[[Any, View], Iterator[Event]]] = MappingProxyType(
    {
        TensorParallel: tensor.events,
        ContextParallel: context.events,
        ExpertParallel: expert.events,
        DataParallel: data.events,
        PipelineParallel: pipeline.events,
        Scalars: scalars.events,
    }
)
