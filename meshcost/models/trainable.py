"""What of a model is trained: frozen weights, and low-rank adapters on frozen linears."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

from meshcost.errors import ModelError
from meshcost.models.fields import LARGEST, show
from meshcost.models.model import Kind, Model, Weight
from meshcost.symbols import r_lora

_NEAREST = 3


def freeze(model: Model, patterns: Sequence[str]) -> Model:
    """Return the model with every weight frozen whose name matches one of the patterns (``*``, ``?``, ``[...]``).

    Raises ModelError for a pattern that matches no weight, with the nearest names.

    >>> from meshcost.models import read_model
    >>> model = freeze(read_model("llama-3.1-8b"), ["model.layers.[0-9].*", "model.embed_tokens.*"])
    >>> len(model.kinds), model.weights_total - model.weights_trainable
    (2, 2706456576)
    """
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    unused = dict.fromkeys(patterns)

    def frozen(name: str) -> bool:
        hits = [pattern for pattern in patterns if fnmatchcase(name, pattern)]
        for pattern in hits:
            unused.pop(pattern, None)
        return bool(hits)

    def frozen_if_matched(weight: Weight) -> Weight:
        return replace(weight, trainable=False) if frozen(weight.name) else weight

    before = tuple(map(frozen_if_matched, model.before))
    after = tuple(map(frozen_if_matched, model.after))
    kinds, pattern = _freeze_blocks(model, frozen)
    if unused:
        names = {weight.name for weight in model.weights()}
        raise ModelError(f"freeze: {show(text)} matches no weight. {_near(text, names)}" for text in unused)
    return replace(model, before=before, kinds=kinds, pattern=pattern, after=after)


def _freeze_blocks(model: Model, frozen: Callable[[str], bool]) -> tuple[tuple[Kind, ...], tuple[int, ...]]:
    """Freeze block by block: blocks of one kind that differ in what is frozen become kinds of their own."""
    found: dict[tuple[int, tuple[bool, ...]], int] = {}
    pattern = []
    for layer, number in enumerate(model.pattern):
        weights = model.kinds[number].weights
        marks = tuple(frozen(weight.name.replace("{layer}", str(layer))) for weight in weights)
        pattern.append(found.setdefault((number, marks), len(found)))
    kinds = tuple(_frozen_kind(model.kinds[number], marks) for number, marks in found)
    names: dict[str, int] = {}
    for kind in kinds:
        names[kind.name] = names.get(kind.name, 0) + 1
    unique = [
        replace(kind, name=f"{kind.name} {place}") if names[kind.name] > 1 else kind
        for place, kind in enumerate(kinds)
    ]
    return tuple(unique), tuple(pattern)


def _frozen_kind(kind: Kind, marks: tuple[bool, ...]) -> Kind:
    marked = zip(kind.weights, marks, strict=True)
    return replace(
        kind, weights=tuple(replace(weight, trainable=False) if mark else weight for weight, mark in marked)
    )


def _near(text: str, names: Iterable[str]) -> str:
    return f"Nearest: {', '.join(get_close_matches(text[:200], sorted(names), n=_NEAREST, cutoff=0.0))}."


def lora(model: Model, rank: int, targets: Sequence[str]) -> Model:
    """Return the model frozen, with a trainable low-rank adapter beside each target linear of the blocks.

    ``targets`` are last names of modules (``q_proj``). An adapter is ``lora_A`` (rank, in) and ``lora_B`` (out, rank),
    registered after its linear as peft does it. Raises ModelError for a rank that is no positive whole number, and for
    a target that no block has, with the linears there are.

    >>> from meshcost.models import read_model
    >>> lora(read_model("llama-3.1-8b"), 16, ["q_proj", "v_proj"]).weights_trainable
    6815744
    """
    targets = [targets] if isinstance(targets, str) else list(targets)
    if type(rank) is not int or not 1 <= rank <= LARGEST:
        raise ModelError(f"lora.rank: {show(rank)} is not a positive whole number.")
    if r_lora in model.dims:
        raise ModelError("lora: the model has adapters already.")
    linears = {_module(w.name): None for kind in model.kinds for w in kind.weights if _is_linear(w)}
    missing = [target for target in targets if not any(_is_target(module, target) for module in linears)]
    if missing or not targets:
        known = ", ".join(dict.fromkeys(module.rpartition(".")[2] for module in linears)) or "none"
        wrong = [f"{show(name)} is no linear of a block" for name in missing] or ["empty"]
        raise ModelError(f"lora.targets: {problem}. Linears: {known}." for problem in wrong)
    return replace(
        model,
        dims={**model.dims, r_lora: rank},
        before=_all_frozen(model.before),
        kinds=tuple(replace(kind, weights=_adapted(kind.weights, targets)) for kind in model.kinds),
        after=_all_frozen(model.after),
    )


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _is_linear(weight: Weight) -> bool:
    return weight.group == "block" and len(weight.shape) == 2 and weight.name.endswith(".weight")


def _is_target(module: str, target: str) -> bool:
    return module == target or module.endswith(f".{target}")


def _all_frozen(weights: Iterable[Weight]) -> tuple[Weight, ...]:
    return tuple(replace(weight, trainable=False) for weight in weights)


def _adapted(weights: tuple[Weight, ...], targets: Sequence[str]) -> tuple[Weight, ...]:
    """Freeze one block and put each adapter after the last weight (the bias, if any) of its linear."""
    made: list[Weight] = []
    waiting: tuple[Weight, ...] = ()
    for weight in _all_frozen(weights):
        if waiting and _module(weight.name) != _module(waiting[0].name).rpartition(".lora_A")[0]:
            made.extend(waiting)
            waiting = ()
        made.append(weight)
        if _is_linear(weight) and any(_is_target(_module(weight.name), target) for target in targets):
            waiting = _adapter(weight)
    return (*made, *waiting)


def _adapter(weight: Weight) -> tuple[Weight, Weight]:
    out, into = reversed(weight.shape) if weight.transposed else weight.shape
    split = weight.shard if weight.shard is None or not weight.transposed else 1 - weight.shard
    # A of a column-parallel linear sees whole activations, but its gradient comes from a rank's own columns alone;
    # B of a row-parallel one the other way round. Both are whole weights with partial gradients.
    a = Weight(
        f"{_module(weight.name)}.lora_A.default.weight",
        (r_lora, into),
        "block",
        shard=1 if split == 1 else None,
        split_input=split == 0 or weight.split_input,
    )
    b = Weight(
        f"{_module(weight.name)}.lora_B.default.weight",
        (out, r_lora),
        "block",
        shard=0 if split == 0 else None,
        split_input=split == 1 or weight.split_input,
        whole=weight.whole,
    )
    return a, b
