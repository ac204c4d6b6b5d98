"""How PyTorch lays weights out on the ranks of a stage: which are DTensors, over which axes, and in what they are stored."""

from collections.abc import Iterator
from itertools import takewhile

from sympy import Expr, Integer

from meshcost import symbols as sym
from meshcost.models import Kind, Weight
from meshcost.strategies.data.options import SHARDS_WEIGHTS
from meshcost.strategies.view import Unit, View
from meshcost.units import DTYPE_BYTES

#: Axes over which replicas of all weights lie.
REPLICAS = ("data", "context", "replicate")

#: Data types of PyTorch that have another name here.
_AS_STORED = {"tf32": "fp32"}


def shards_weights(view: View) -> bool:
    """Whether the job wants units wrapped: in fully_shard, or in FullyShardedDataParallel whatever it shards."""
    return view.setting.wraps_flat or view.setting.parallel["data"].strategy in SHARDS_WEIGHTS


def replicates(view: View) -> bool:
    """Whether the model is wrapped in DistributedDataParallel."""
    return not shards_weights(view) and view.mesh.size(*REPLICAS) > 1


def computed_in(view: View) -> tuple[str, Expr]:
    """Data type of weights in use, and so of activations and their gradients; and the bytes of one element.

    fully_shard casts weights to that of the job's precision; otherwise they are used as they are stored.
    """
    asked = view.setting.precision.dtype("weights")
    stored = view.setting.torch.weights_dtype
    if stored is None or stored == asked or shards_weights(view):
        return _AS_STORED.get(asked, asked), sym.b_w
    return stored, Integer(int(DTYPE_BYTES[stored]))


def stored_in(view: View) -> tuple[str, Expr]:
    """Data type in which weights and their gradients are kept for the optimizer, and the bytes of one element."""
    if shards_weights(view):
        stored = view.setting.torch.weights_dtype or "fp32"
        return stored, Integer(int(DTYPE_BYTES[stored]))
    return computed_in(view)


def module_of(weight: Weight) -> str:
    """Name of the module that a weight belongs to."""
    return weight.name.rpartition(".")[0]


def is_shared_expert(weight: Weight) -> bool:
    """Whether a weight belongs to an expert that every token goes to."""
    return ".shared_expert" in weight.name


def planned_modules(view: View, unit: Unit) -> set[str]:
    """Modules of a unit for which the plan of parallelize_module has a style, which makes all their weights DTensors.

    With sequence parallelism that is all of them.
    """
    if view.mesh.size("tensor") == 1:
        return set()
    return {
        module_of(weight)
        for weight in unit.held
        if view.setting.sequence_parallel
        or (view.is_split(weight) and weight.group != "expert")
        or is_partial(view, weight)
    }


def partial_runs(view: View, weights: tuple[Weight, ...]) -> Iterator[tuple[Expr, int]]:
    """Yield elements and number of the weights whose gradients stay partial sums over the tensor axis, equal ones together.

    Those are weights that every rank holds whole but applies to a part of the sequence, or of the heads.
    """
    run: tuple[Expr, int] | None = None
    for weight in weights:
        if not is_partial(view, weight):
            continue
        if run is not None and run[0] == weight.count:
            run = (run[0], run[1] + 1)
            continue
        if run is not None:
            yield run
        run = (weight.count, 1)
    if run is not None:
        yield run


def is_partial(view: View, weight: Weight) -> bool:
    """Whether a weight has a gradient that is a partial sum over the tensor axis."""
    return view.setting.makes_new(weight)


def partial_name(weight: Weight) -> str:
    """Name the part of the walk in which the gradient of such a weight is summed: weights of one size are one event."""
    return f"partial sum of {weight.count} elements"


def is_trained(view: View, weight: Weight) -> bool:
    """Whether torch computes a gradient of a weight, even of a frozen one.

    SequenceParallel makes new parameters, and so does DistributedDataParallel of all DTensors: those have one.
    """
    is_new = replicates(view) and view.is_split(weight) and view.mesh.size("tensor") > 1
    return weight.trainable or is_partial(view, weight) or is_new


def is_column(weight: Weight) -> bool:
    """Whether a weight is a linear whose output tensor parallelism splits."""
    return len(weight.shape) == 2 and weight.shard == (1 if weight.transposed else 0)


def is_row(weight: Weight) -> bool:
    """Whether a weight is a linear whose input tensor parallelism splits: the last one of a region."""
    return len(weight.shape) == 2 and weight.shard == (0 if weight.transposed else 1)


def gradients_from(view: View) -> int:
    """First block whose input needs a gradient: all if the embedding is trained, else those after a trained block."""
    model = view.setting.model
    if any(is_trained(view, weight) for weight in model.before):
        return 0
    trains = [any(is_trained(view, weight) for weight in kind.weights) for kind in model.kinds]
    return next((layer + 1 for layer, kind in enumerate(model.pattern) if trains[kind]), model.layers)


def core_gradients_from(view: View, kind: Kind) -> int:
    """First block of a kind in which queries, keys or values need a gradient."""
    before = [*takewhile(lambda weight: not is_row(weight), (w for w in kind.weights if w.group != "norm"))]
    norms = [weight for weight in kind.weights if weight.group == "norm"]
    inner = [weight for weight in norms if weight.split_input or weight.shard is not None]
    first = [weight for weight in norms if weight not in inner][:1]
    trains = any(is_trained(view, weight) for weight in (*before, *inner, *first))
    return 0 if trains else gradients_from(view)
