"""The setting of a strategy: the model, the whole layout and the batch, as the person asked for them.

Strategies never fold over each other. Each reads the setting (which says what all the others do) to check whether it is
legal, and then a View (which holds the model as all the others have sharded it) to write its events.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd, prod
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from meshcost import symbols as sym
from meshcost.mesh import LARGEST_WORLD
from meshcost.models import Model, Weight
from meshcost.strategies.torch_options import TorchOptions
from meshcost.units import DTYPE_BYTES

#: Sizes are bounded, so that no file can ask for more work than a machine has.
LARGEST_BATCH = 2**32

Size = Annotated[int, Field(strict=True, ge=1, le=LARGEST_WORLD)]
Count = Annotated[int, Field(strict=True, ge=1, le=LARGEST_BATCH)]

_ALIASES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "half": "fp16", "float": "fp32"}


#: Eight bits an element and a scale for every 128 of them: a token has scales of its own, a sum or a shard has not.
_SCALED = "fp8_block128"


def _dtype(value: Any) -> Any:
    return _ALIASES.get(value, value) if isinstance(value, str) else value


def _plain_dtype(value: Any) -> Any:
    if value == _SCALED:
        problem = f"{_SCALED} is for tokens on their way to experts and back (dispatch, combine). Choose fp8, or bf16."
        raise PydanticCustomError("problems", "{problem}", {"problem": problem, "problems": [problem]})
    return _dtype(value)


Dtype = Annotated[
    Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"], BeforeValidator(_plain_dtype)
]
TokenDtype = Annotated[
    Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp8_block128", "int8"], BeforeValidator(_dtype)
]


class Options(BaseModel):
    """Base of everything a person writes: frozen, and unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Batch(Options):
    """One training step in sequences.

    ``sequence`` is tokens per sequence, ``micro_batch`` and ``global_batch`` are counted in sequences.
    """

    sequence: Count
    micro_batch: Count = 1
    global_batch: Count


class Precision(Options):
    """Data types. Each default follows its neighbour: gradients are kept as weights, reduced as they are kept, and so on.

    ``dispatch`` and ``combine`` are what experts are sent and what they return; only these may be ``fp8_block128``.
    """

    weights: Dtype = "bf16"
    gradients: Dtype | None = None
    reduce: Dtype | None = None
    activations: Dtype | None = None
    dispatch: TokenDtype | None = None
    combine: TokenDtype | None = None

    def dtype(self, what: str) -> str:
        """Resolve one of the fields to a data type.

        >>> Precision(weights="bf16", gradients="fp32").dtype("reduce")
        'fp32'
        """
        follows = {
            "gradients": "weights",
            "reduce": "gradients",
            "activations": "weights",
            "dispatch": "activations",
            "combine": "activations",
        }
        chosen = getattr(self, what)
        return chosen if chosen is not None else self.dtype(follows[what])

    def bytes(self, what: str) -> Fraction:
        """Bytes of one element of that kind."""
        return DTYPE_BYTES[self.dtype(what)]


Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True)
class Setting:
    """Everything a strategy may look at before anything is computed.

    ``parallel`` maps an axis to the strategy that was asked for there.
    """

    model: Model
    parallel: Mapping[str, Any]
    order: tuple[str, ...]
    batch: Batch
    precision: Precision
    recompute: Recompute = "none"
    torch: TorchOptions = field(default_factory=TorchOptions)
    framework: str = "textbook"

    def size(self, *axes: str) -> int:
        """Multiply the sizes of some axes."""
        return prod(self.parallel[axis].size if axis in self.parallel else 1 for axis in axes)

    @property
    def ranks_in_stage(self) -> int:
        """Ranks that share one pipeline stage."""
        return prod(
            strategy.size for axis, strategy in self.parallel.items() if axis not in ("pipeline", "expert")
        )

    @property
    def sequence_parallel(self) -> bool:
        """Whether activations between regions are split over the tensor axis along the sequence."""
        return self.size("tensor") > 1 and bool(self.parallel["tensor"].sequence_parallel)

    @property
    def splits_vocabulary(self) -> bool:
        """Whether embedding and head are split over the tensor axis.

        With sequence parallelism torch splits them whatever is asked for: that is what scatters the embedding's output.
        """
        is_forced = self.framework == "torch" and self.sequence_parallel
        return bool(self.parallel["tensor"].vocabulary_parallel) or is_forced

    @property
    def unties(self) -> bool:
        """Whether torch makes two weights of a tied one: its plan splits both the embedding and the head."""
        return self.model.tied and self.size("tensor") > 1 and self.splits_vocabulary

    def makes_new(self, weight: Weight) -> bool:
        """Whether a plan makes a new weight of one that every rank has whole, and whose gradient is a partial sum there.

        Those are norms of the style SequenceParallel, and what leads to split heads by way of latents.
        """
        is_whole_norm = weight.group == "norm" and weight.shard is None
        sees_part = (weight.split_input and self.torch.tp_plan is None) or self.sequence_parallel
        is_partial = (is_whole_norm and sees_part) or (weight.latent and self.sequence_parallel)
        return self.size("tensor") > 1 and is_partial

    @property
    def wraps_flat(self) -> bool:
        """Whether torch wraps units in the older FSDP, which keeps the weights of each in one flat parameter."""
        return self.torch.wrapper == "FullyShardedDataParallel"

    @property
    def expert_tensor(self) -> int:
        """Ranks that split one expert; as many as split the rest, unless the job says otherwise."""
        return int(self.parallel["expert"].expert_tensor or self.size("tensor"))

    @property
    def experts_apart(self) -> bool:
        """Whether routed experts are sharded over other ranks than all other weights."""
        return self.size("expert") > 1 or self.expert_tensor != self.size("tensor")

    @property
    def batch_ranks(self) -> int:
        """Ranks among which the global batch is divided."""
        return prod(x.size for x in self.parallel.values() if x.splits_batch)


def split_size(model: Model, weight: Weight) -> int:
    """Elements that tensor parallelism has to divide in one weight: of its split dim, what is not kept whole.

    Experts that are stored one above the other are split within each of them.
    """
    assert weight.shard is not None
    dim = weight.shape[weight.shard] - weight.whole
    if weight.group == "expert" and sym.E in dim.free_symbols:
        dim /= sym.E
    return model.number(dim)


def divisors(number: int) -> list[int]:
    """Divisors of a number, ascending.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [i for i in range(1, int(number**0.5) + 1) if number % i == 0]
    return small + [number // i for i in reversed(small) if i * i != number]


def one_of(choices: list[int]) -> str:
    """Write legal choices as a person would.

    >>> one_of([1, 2, 4])
    'Choose 1, 2 or 4.'
    """
    shown = [str(choice) for choice in choices]
    if len(shown) > 14:
        shown = [*shown[:12], "...", shown[-1]]
    return f"Choose {', '.join(shown[:-1])} or {shown[-1]}." if len(shown) > 1 else f"Choose {shown[0]}."


def common_divisors(*numbers: int) -> list[int]:
    """Divisors that some numbers share."""
    return divisors(gcd(*numbers))
