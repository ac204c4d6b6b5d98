"""What is trained: named weights with symbolic shapes, in units that a layout can place and shard.

A model is three runs of weights in the order in which PyTorch registers them: ``before`` the blocks, the blocks
themselves (each of one of a few kinds), and ``after`` them. Each weight says in which unit it is placed (the
embedding goes with the first block, the head with the last), to which group it belongs (routed experts are sharded
over other axes than everything else), and which of its dims tensor parallelism splits.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Literal

from sympy import Add, Expr, Integer, Mul, Symbol

from meshcost.formula import bind
from meshcost.models.registered import Entry, layer_of, numbered_run, registered, with_placeholder
from meshcost.symbols import E, k, n_type

Group = Literal["embedding", "position", "block", "norm", "router", "expert", "head"]
Unit = Literal["embedding", "block", "head"]


@dataclass(frozen=True, slots=True)
class Weight:
    """One named weight of one unit.

    ``name`` is its name within the module; in a block, ``{layer}`` stands for the number of the block.
    ``shape`` holds one SymPy expression per dim. ``shard`` is the dim that tensor parallelism splits, or None
    where every tensor rank holds the whole weight. ``split_input`` marks such a whole weight that works beside or
    before activations which are themselves split over the tensor axis (a norm of query heads, the only key head of
    multi-query attention): its gradient is a partial sum on every rank, with and without sequence parallelism.
    ``whole`` counts the rows of dim ``shard`` that every rank keeps whole all the same: a fused projection of many
    query heads and one key and value head. Those rows are as ``split_input`` says; the others are split evenly.
    ``transposed`` marks a linear weight that is stored (in, out), as GPT-2's are.
    ``latent`` marks a whole linear of low rank that leads to column-parallel ones (latent attention).
    """

    name: str
    shape: tuple[Expr, ...]
    group: Group
    unit: Unit = "block"
    shard: int | None = None
    split_input: bool = False
    trainable: bool = True
    whole: Expr = Integer(0)
    transposed: bool = False
    latent: bool = False

    @property
    def count(self) -> Expr:
        """Elements, as a formula."""
        return Mul(*self.shape)


@dataclass(frozen=True, slots=True)
class Region:
    """A stretch of a block that tensor parallelism splits: column-parallel weights in, row-parallel weights out.

    ``inputs`` are the widths (elements per token) of the activations that enter its column-parallel weights: one
    entry per distinct activation, so a block whose attention and MLP read the same norm lists it once. ``output``
    is the width of what its row-parallel weights produce. ``split_norms`` counts the norms inside whose statistics
    run over a dim that tensor parallelism splits (OLMo 2 normalises all query heads together).
    """

    name: Literal["attention", "mlp", "attention+mlp", "experts", "shared experts"]
    inputs: tuple[Expr, ...]
    output: Expr
    split_norms: int = 0


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of block: its weights in registration order, and its regions in the order of computation.

    ``use_order`` lists the modules of a block as a forward pass uses them, where their usual names do not tell it.
    """

    name: str
    weights: tuple[Weight, ...]
    regions: tuple[Region, ...]
    use_order: tuple[str, ...] = ()

    @property
    def has_experts(self) -> bool:
        """Whether tokens are routed to experts in this block."""
        return any(region.name == "experts" for region in self.regions)


@dataclass(frozen=True, slots=True)
class Attention:
    """Widths per token of what attention exchanges over a context axis, before any split by tensor parallelism."""

    heads: Expr
    kv_heads: Expr
    query: Expr
    key: Expr
    value: Expr
    output: Expr


@dataclass(frozen=True)
class Model:
    """A model to train: weights by unit, and what its activations look like.

    ``dims`` gives every symbol of the shapes its number. ``pattern`` holds, for each block, the index of its kind.
    ``attention`` is None where nothing is known of the activations (``Model.from_module``): only data-parallel
    strategies can split such a model.
    """

    name: str
    family: str
    dims: Mapping[Symbol, int]
    before: tuple[Weight, ...]
    kinds: tuple[Kind, ...]
    pattern: tuple[int, ...]
    after: tuple[Weight, ...]
    tied: bool = False
    attention: Attention | None = None
    source: str = ""

    @property
    def layers(self) -> int:
        """Number of blocks."""
        return len(self.pattern)

    def layers_of(self, kind: int) -> int:
        """Count the blocks of one kind."""
        return self.pattern.count(kind)

    def runs(self, first: int, last: int) -> tuple[tuple[str, int], ...]:
        """Blocks from ``first`` to before ``last``: the name of each kind, and how many of it follow each other."""
        names = (self.kinds[kind].name for kind in self.pattern[first:last])
        return tuple((name, len(list(run))) for name, run in groupby(names))

    @property
    def distinct(self) -> Iterator[Weight]:
        """Every weight, those of blocks once for each kind of block: quick however many blocks there are."""
        yield from (*self.before, *(weight for kind in self.kinds for weight in kind.weights), *self.after)

    def weights(self) -> Iterator[Weight]:
        """Yield every weight once, in registration order, blocks expanded; a tied head is not repeated."""
        yield from self.before
        for layer, kind in enumerate(self.pattern):
            for weight in self.kinds[kind].weights:
                yield replace(weight, name=weight.name.replace("{layer}", str(layer)))
        yield from self.after

    def number(self, expression: Expr) -> int:
        """Evaluate a formula over this model's dims."""
        return bind(expression, self.dims)

    def unit_weights(self, unit: Unit) -> tuple[Weight, ...]:
        """Weights outside the blocks that are placed with ``unit`` (embedding or head)."""
        return tuple(w for w in (*self.before, *self.after) if w.unit == unit)

    @cached_property
    def weights_per_layer(self) -> tuple[int, ...]:
        """Weights of each block, in order."""
        of_kind = [self.number(total(kind.weights)) for kind in self.kinds]
        return tuple(of_kind[kind] for kind in self.pattern)

    @cached_property
    def weights_total(self) -> int:
        """All weights; tied ones counted once."""
        outside = self.number(total((*self.before, *self.after)))
        return outside + sum(self.weights_per_layer)

    @cached_property
    def weights_routed_experts(self) -> int:
        """Weights of the routed experts of all blocks."""
        of_kind = [self.number(total(w for w in kind.weights if w.group == "expert")) for kind in self.kinds]
        return sum(of_kind[kind] for kind in self.pattern)

    @property
    def weights_active(self) -> int:
        """Weights that work on one token: everything, but of E routed experts only k."""
        routed = self.weights_routed_experts
        if not routed:
            return self.weights_total
        return self.weights_total - routed + routed * self.dims[k] // self.dims[E]

    @property
    def weights_per_layer_runs(self) -> tuple[tuple[int, int], ...]:
        """Runs of equal blocks in order: how many, and the weights of each."""
        return tuple((len(list(run)), size) for size, run in groupby(self.weights_per_layer))

    @property
    def weights_embedding(self) -> int:
        """Weights of the word embedding."""
        return self._outside(lambda weight: weight.group == "embedding")

    @property
    def weights_head(self) -> int:
        """Weights of the output projection with its bias; 0 where it is the word embedding again."""
        return 0 if self.tied else self._outside(lambda weight: weight.group == "head")

    @property
    def weights_position(self) -> int:
        """Weights of learned positions, without token types."""
        return self._outside(lambda weight: weight.group == "position" and n_type not in weight.shape)

    @property
    def weights_non_embedding(self) -> int:
        """All weights without word embedding, untied head and learned positions."""
        return self.weights_total - self.weights_embedding - self.weights_head - self.weights_position

    @property
    def weights_trainable(self) -> int:
        """Weights that get a gradient."""
        of_kind = [self.number(total(w for w in kind.weights if w.trainable)) for kind in self.kinds]
        outside = self._outside(lambda weight: weight.trainable)
        return outside + sum(of_kind[kind] for kind in self.pattern)

    def _outside(self, wanted: Callable[[Weight], bool]) -> int:
        return self.number(total(w for w in (*self.before, *self.after) if wanted(w)))

    @classmethod
    def from_module(cls, module: object, name: str = "") -> "Model":
        """Describe any ``torch.nn.Module``: its weights, as it registers them; nothing is known of activations.

        ``module`` needs ``named_parameters()`` and nothing else of torch. Shapes are integers (elements). A weight
        that is registered twice counts once, and one with ``requires_grad=False`` is not trainable. The longest
        run of numbered children (``layers.0``, ``layers.1``, ...) at the shallowest level becomes the blocks, and
        equal ones share a kind. ``attention`` is None: only data-parallel strategies can split such a model.

        Raises ModelError if ``module`` has no weights to name, or one whose shape is not yet known.

        >>> class Weights:
        ...     def named_parameters(self):
        ...         size = lambda *shape: type("Tensor", (), {"shape": shape, "requires_grad": True})()
        ...         return [("embed", size(9, 2)), ("h.0.w", size(2, 2)), ("h.1.w", size(2, 2))]
        >>> model = Model.from_module(Weights(), name="toy")
        >>> model.layers, len(model.kinds), model.weights_total
        (2, 1, 26)
        """
        entries = registered(module)
        prefix, start, stop = numbered_run([entry.name for entry in entries])
        kinds: dict[tuple[Weight, ...], int] = {}
        pattern = []
        for _, run in groupby(entries[start:stop], key=lambda entry: layer_of(entry.name, prefix)):
            block = tuple(_plain(entry, "block", prefix) for entry in run)
            pattern.append(kinds.setdefault(block, len(kinds)))
        return cls(
            name=name or type(module).__name__,
            family="module",
            dims={},
            before=tuple(_plain(entry, "embedding") for entry in entries[:start]),
            kinds=tuple(Kind(f"block {number}", block, ()) for block, number in kinds.items()),
            pattern=tuple(pattern),
            after=tuple(_plain(entry, "head") for entry in entries[stop:]),
            source=f"named_parameters() of {type(module).__name__}",
        )


def _plain(entry: Entry, unit: Unit, prefix: str | None = None) -> Weight:
    name = entry.name if prefix is None else with_placeholder(entry.name, prefix)
    shape = tuple(Integer(size) for size in entry.shape)
    return Weight(name, shape, "block", unit, trainable=entry.trainable)


def total(weights: Iterable[Weight]) -> Expr:
    """Add up the elements of some weights, as a formula.

    >>> from meshcost.symbols import V, h
    >>> total((Weight("embed", (V, h), "embedding"), Weight("norm", (h,), "norm")))
    V*h + h
    """
    return Add(*(weight.count for weight in weights))
