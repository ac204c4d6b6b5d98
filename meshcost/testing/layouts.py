"""Jobs that can exist: each choice is made among those that earlier choices leave legal, so hardly any is thrown away."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

from meshcost.job import Job
from meshcost.layout import ORDER
from meshcost.mesh import EXPERT_AXES, Mesh
from meshcost.models import Model, read_model
from meshcost.schedule import PLACEMENT, Schedule
from meshcost.strategies.expert.options import routed_experts
from meshcost.strategies.setting import divisors
from meshcost.symbols import V
from meshcost.testing.hypotheses import strategies
from meshcost.testing.models_drawn import models

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from meshcost.testing.hypotheses import Draw

__all__ = ["jobs", "legal_documents", "meshes", "models"]

_INTERLEAVED = ("interleaved_1f1b", "interleaved_zb")
_TWO_CHUNKS = ("zbv", "dualpipev")
_PATTERNS = ("*.bias", "*norm*", "*embed*", "*.0.*", "*q_proj*", "*")
_FLOATS = ("bf16", "fp16", "fp32")


def meshes(largest: int = 64) -> "SearchStrategy[Mesh]":
    """Generate meshes of up to ``largest`` ranks: axes in any order, a second factoring for experts, nodes of any size.

    >>> meshes() is not None
    True
    """
    return strategies().composite(_mesh)(largest)


def jobs(
    *, plug_ins: Mapping[str, Mapping[str, Any]] | None = None, largest: int = 32, **fixed: Any
) -> "SearchStrategy[Job]":
    """Generate jobs over all strategies and options, of at most ``largest`` ranks (times those of plug-ins).

    ``plug_ins`` maps the axis of a strategy of yours to its options in every job; the strategy has to be installed
    under the entry point ``meshcost.strategies``, or made known with ``registered``. ``fixed`` replaces top-level
    fields of every job, as ``recompute="none"``.

    >>> jobs(recompute="full") is not None
    True
    """
    drawn = legal_documents(plug_ins=plug_ins, largest=largest)
    return drawn.map(lambda document: Job(**{**document, **fixed}))


def legal_documents(
    *, plug_ins: Mapping[str, Mapping[str, Any]] | None = None, largest: int = 32
) -> "SearchStrategy[dict[str, Any]]":
    """Generate the documents of legal jobs, as a YAML file holds them."""
    return strategies().composite(_document)(plug_ins or {}, largest)


def _mesh(draw: "Draw[Any]", largest: int) -> Mesh:
    st = strategies()
    names = draw(st.permutations(("tensor", "context", "data", "replicate", "pipeline")))
    sizes = {name: draw(st.integers(1, 4)) for name in names[: draw(st.integers(1, 4))]}
    while prod(sizes.values()) > largest:
        sizes.popitem()
    left, expert = prod(sizes.values()) // sizes.get("pipeline", 1), {}
    for name in EXPERT_AXES[:-1]:
        expert[name] = draw(st.sampled_from(divisors(left)))
        left //= expert[name]
    expert[EXPERT_AXES[-1]] = left
    return Mesh(sizes, expert if draw(st.booleans()) else None, draw(st.sampled_from((1, 2, 3, 4, 8))))


def _document(draw: "Draw[Any]", plug_ins: Mapping[str, Mapping[str, Any]], largest: int) -> dict[str, Any]:
    st = strategies()
    spec = draw(models())
    plan = _Plan(draw, read_model(spec), plug_ins, largest)
    return {
        "model": spec,
        "parallel": plan.parallel(),
        "batch": plan.batch(),
        "precision": _precision(draw),
        "recompute": draw(st.sampled_from(("none", "none", "selective", "full"))),
        "scalars": {"gradient_norm": draw(st.booleans()), "loss": draw(st.booleans())},
        "algorithms": _algorithms(draw),
        "cluster": {"gpus_per_node": draw(st.sampled_from((1, 2, 3, 4, 8)))},
        **plan.trained(),
    }


def _precision(draw: "Draw[Any]") -> dict[str, str]:
    st = strategies()
    chosen = {"weights": draw(st.sampled_from(_FLOATS))}
    for name in ("gradients", "reduce", "activations"):
        if draw(st.integers(0, 3)) == 0:
            chosen[name] = draw(st.sampled_from(_FLOATS))
    for name in ("dispatch", "combine"):
        if draw(st.integers(0, 3)) == 0:
            chosen[name] = draw(st.sampled_from((*_FLOATS, "fp8", "fp8_block128")))
    return chosen


def _algorithms(draw: "Draw[Any]") -> dict[str, str]:
    st = strategies()
    choices = {
        "all_reduce": ("tree", "direct", "nvls", "sharp"),
        "all_gather": ("direct", "nvls"),
        "reduce_scatter": ("pairwise", "direct", "nvls"),
    }
    return {op: draw(st.sampled_from(names)) for op, names in choices.items() if draw(st.integers(0, 4)) == 0}


@dataclass
class _Plan:
    """A layout in the making: what has been chosen so far, and which choices that leaves."""

    draw: "Draw[Any]"
    model: Model
    plug_ins: Mapping[str, Mapping[str, Any]]
    largest: int
    sizes: dict[str, int] = field(default_factory=dict)
    chosen: dict[str, Any] = field(default_factory=dict)
    sequence_parallel: bool = False
    deals_out_tokens: bool = False
    tensor_first: bool = False

    def parallel(self) -> dict[str, Any]:
        """Choose the strategy of each axis, the most constrained first."""
        self.chosen = {"tensor": self._tensor(), "context": self._context(), "pipeline": self._pipeline()}
        self.chosen["data"] = self._data()
        if routed_experts(self.model):
            self.chosen["expert"] = self._expert()
        self._pad_vocabulary()
        self.chosen |= {axis: dict(options) for axis, options in self.plug_ins.items()}
        self._order()
        return self.chosen

    def trained(self) -> dict[str, Any]:
        """Freeze some weights, or train adapters beside some linears."""
        kind = self._one_of("all", "all", "all", "all", "frozen", "adapters")
        if kind == "frozen":
            names = [weight.name for weight in self.model.weights()]
            matching = [x for x in _PATTERNS if any(fnmatchcase(name, x) for name in names)]
            return {"freeze": [self._one_of(*matching)]}
        if kind == "adapters" and (linears := sorted(set(_linears(self.model)))):
            targets = self.draw(
                strategies().lists(strategies().sampled_from(linears), min_size=1, max_size=3, unique=True)
            )
            return {"lora": {"rank": self._one_of(1, 8), "targets": targets}}
        return {}

    def batch(self) -> dict[str, int]:
        """Choose a batch that divides among all ranks that want a part of it."""
        st, pipeline = strategies(), self.chosen["pipeline"]
        dealt = self.sizes["tensor"] if self.sequence_parallel or self.deals_out_tokens else 1
        count = self.draw(st.integers(1, 5))
        if pipeline["schedule"] in _INTERLEAVED:
            count = pipeline["size"] * min(count, 2)
        elif pipeline["schedule"] == "dualpipe":
            count *= 2
        micro_batch = self.draw(st.integers(1, 3))
        ranks = self.sizes["data"] * prod(options.get("size", 1) for options in self.plug_ins.values())
        return {
            "sequence": self.sizes["context"] * dealt * self.draw(st.integers(1, 20)),
            "micro_batch": micro_batch,
            "global_batch": micro_batch * ranks * count,
        }

    def _one_of(self, *choices: Any) -> Any:
        return self.draw(strategies().sampled_from(choices))

    def _maybe(self, **options: tuple[Any, ...]) -> dict[str, Any]:
        """Write each option one time in three."""
        rare = {name: self._one_of(None, None, choices) for name, choices in options.items()}
        return {name: self._one_of(*choices) for name, choices in rare.items() if choices is not None}

    def _size(self, axis: str, choices: Iterable[int]) -> int:
        """Choose among sizes for which there are ranks left."""
        left = self.largest // prod(self.sizes.values())
        self.sizes[axis] = self._one_of(*(size for size in choices if size <= left))
        return self.sizes[axis]

    def _tensor(self) -> dict[str, Any]:
        size = self._size("tensor", [x for x in (1, 2, 4, 8) if self._splits(x)])
        self.sequence_parallel = self._one_of(True, False) and size > 1
        options = self._maybe(vocabulary_parallel=(True, False), loss_parallel=(True, False))
        return {"size": size, "sequence_parallel": self.sequence_parallel, **options}

    def _splits(self, size: int) -> bool:
        """Whether so many ranks can split every head and every weight, the vocabulary left aside."""
        attention, number = self.model.attention, self.model.number
        if attention is None:
            return size == 1
        heads, keys = number(attention.heads), number(attention.kv_heads)
        split = [w for kind in self.model.kinds for w in kind.weights if w.shard is not None]
        return (
            heads % size == 0
            and (keys == 1 or keys % size == 0)
            and all(number(w.shape[w.shard] - w.whole) % size == 0 for w in split if w.shard is not None)
        )

    def _context(self) -> dict[str, Any]:
        method, copies = self._one_of("ring", "all_gather", "ulysses"), self._one_of(True, False)
        legal = [x for x in (1, 2, 3, 4) if method != "ulysses" or self._trades(x, copies=copies)]
        options = {"size": self._size("context", legal), "method": method}
        return options | ({"replicate_kv_heads": copies} if method == "ulysses" else {})

    def _trades(self, size: int, *, copies: bool) -> bool:
        """Whether Ulysses can trade sequence for heads among so many ranks."""
        attention, tensor = self.model.attention, self.sizes["tensor"]
        if attention is None:
            return size == 1
        heads, keys = (max(self.model.number(x) // tensor, 1) for x in (attention.heads, attention.kv_heads))
        return heads % size == 0 and (keys % size == 0 or (copies and size % keys == 0))

    def _pipeline(self) -> dict[str, Any]:
        schedule = self._one_of(*PLACEMENT)
        size = self._size("pipeline", (2, 4) if schedule == "dualpipe" and self._room(2) else (1, 2, 3, 4))
        if schedule == "dualpipe" and size == 1:
            schedule = "1f1b"
        options: dict[str, Any] = {"size": size, "schedule": schedule}
        if schedule in _INTERLEAVED:
            options["chunks"] = self._one_of(1, 2, 3)
        chunks = options.get("chunks", 2 if schedule in _TWO_CHUNKS else 1)
        stages, layers = Schedule(schedule, size, chunks, 1).virtual_stages, self.model.layers
        if layers % stages or self._one_of(True, False, False):
            cuts = self.draw(
                strategies().lists(strategies().integers(0, layers), min_size=stages - 1, max_size=stages - 1)
            )
            ends = [0, *sorted(cuts), layers]
            options["layers_per_stage"] = [after - before for before, after in pairwise(ends)]
        if not self.sequence_parallel:
            options |= self._maybe(scatter_gather=(True,))
        return options

    def _room(self, size: int) -> bool:
        return prod(self.sizes.values()) * size <= self.largest

    def _data(self) -> dict[str, Any]:
        strategy = self._one_of("ddp", "zero1", "zero2", "zero3", "fsdp")
        size = self._size("data", (1, 2, 3, 4))
        options = {"strategy": strategy, "size": size}
        options |= self._maybe(gradient_sync=("every_micro_batch", "last_micro_batch"))
        if strategy in ("zero3", "fsdp"):
            options["replicate"] = self._one_of(*divisors(size))
            options |= self._maybe(reshard_after_forward=(True, False), gather=("every_micro_batch", "once"))
            if options.get("gather") == "once" and options.get("reshard_after_forward"):
                del options["reshard_after_forward"]
        return options

    def _expert(self) -> dict[str, Any]:
        size, split = self._one_of(*self._expert_sizes())
        tensor = self.sizes["tensor"]
        apart = size > 1 or (split or tensor) != tensor
        self.deals_out_tokens = apart and (split or tensor) == 1
        self.tensor_first = apart and (split or tensor) > 1 and tensor > 1
        options = {"size": size} | ({} if split is None else {"expert_tensor": split})
        crowd = self._one_of({}, {}, {"capacity_factor": self._one_of(0.3, 1.0, 1.25, 2)}, {"imbalance": 1.5})
        return options | crowd

    def _expert_sizes(self) -> Iterator[tuple[int, int | None]]:
        """Yield the legal pairs of expert ranks and ranks that split one expert."""
        ranks, tensor = prod(self.sizes.values()) // self.sizes["pipeline"], self.sizes["tensor"]
        for size in divisors(routed_experts(self.model)):
            for split in (None, *sorted({1, 2, 4, tensor})):
                each = split or tensor
                apart = size > 1 or each != tensor
                known = each in (1, tensor) or tensor == 1 or self.sequence_parallel
                even = ranks % (size * each) == 0 and all(
                    width % each == 0 for width in self._expert_widths()
                )
                whole = not apart or ranks // (size * each) % self.chosen["data"].get("replicate", 1) == 0
                if even and whole and (known or not apart):
                    yield size, split

    def _expert_widths(self) -> set[int]:
        weights = [w for kind in self.model.kinds for w in kind.weights if w.group == "expert"]
        return {self.model.number(w.shape[w.shard]) for w in weights if w.shard is not None}

    def _pad_vocabulary(self) -> None:
        """Pad where ranks that split the vocabulary would not divide it, and sometimes where they do."""
        splits = self.chosen["tensor"].get("vocabulary_parallel", True)
        if splits and self.model.dims.get(V, 0) % self.sizes["tensor"]:
            self.chosen["pad_vocabulary"] = self._one_of(1, 128)
        else:
            self.chosen |= self._maybe(pad_vocabulary=(64, 128))

    def _order(self) -> None:
        axes = [*ORDER, *self.plug_ins]
        if self._one_of(True, False):
            order = self.draw(strategies().permutations(axes))
            first = ["tensor"] if self.tensor_first else []
            self.chosen["order"] = [*first, *(axis for axis in order if axis not in first)]


def _linears(model: Model) -> Iterator[str]:
    for kind in model.kinds:
        for weight in kind.weights:
            if weight.group == "block" and len(weight.shape) == 2 and weight.name.endswith(".weight"):
                yield weight.name.split(".")[-2]
