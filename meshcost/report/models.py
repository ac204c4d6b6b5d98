"""Models as people look them up: the catalogue in one table, and the weights of one model by group and by block."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from meshcost.models import Model, Weight, catalogue, read_model, total
from meshcost.report import words
from meshcost.report.grid import Column, Grid
from meshcost.report.words import Glyphs, human_count
from meshcost.symbols import E, a, a_kv, h, k

#: Groups of weights, in the order in which a model runs through them.
GROUPS = {
    "embedding": "word embedding",
    "position": "learned positions and token types",
    "block": "attention and MLP matrices, shared experts",
    "norm": "norms",
    "router": "routers of the experts",
    "expert": "routed experts",
    "head": "output projection",
}


def card(model: Model) -> dict[str, Any]:
    """One model as JSON values; every count is exact."""
    return {
        "name": model.name,
        "family": model.family,
        "source": model.source,
        "weights_total": model.weights_total,
        "weights_active": model.weights_active,
        "weights_embedding": model.weights_embedding,
        "weights_head": model.weights_head,
        "weights_per_layer": list(model.weights_per_layer),
        "weights_routed_experts": model.weights_routed_experts,
        "tied": model.tied,
        "layers": model.layers,
        "hidden": model.dims.get(h),
        "heads": model.dims.get(a),
        "kv_heads": model.dims.get(a_kv, model.dims.get(a)),
        "experts": model.dims.get(E, 0),
        "experts_per_token": model.dims.get(k, 0),
        "groups": group_sums(model),
    }


def group_sums(model: Model) -> dict[str, int]:
    """Weights of each group, over the whole model; groups without weights are left out."""
    sums = dict.fromkeys(GROUPS, 0)
    for weights, times in _pieces(model):
        for weight in weights:
            sums[weight.group] += times * model.number(total((weight,)))
    return {group: number for group, number in sums.items() if number}


def _pieces(model: Model) -> Iterator[tuple[tuple[Weight, ...], int]]:
    yield (*model.before, *model.after), 1
    for number, kind in enumerate(model.kinds):
        yield kind.weights, model.layers_of(number)


def cards() -> list[dict[str, Any]]:
    """The whole catalogue as JSON values."""
    return [card(read_model(name)) for name in catalogue()]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The catalogue as a rich renderable."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield one line for each model."""
        signs = words.glyphs(options)
        grid = Grid(
            (
                Column("name", style="bold"),
                Column("family", drop=2),
                Column("weights", "right"),
                Column("active", "right"),
                Column("layers", "right"),
                Column("hidden", "right"),
                Column("experts", "right", drop=1),
                Column("source", drop=3, least=30),
            ),
            signs.line,
        )
        for name in catalogue():
            model = read_model(name)
            experts = f"{model.dims[k]} of {model.dims[E]}" if model.weights_routed_experts else ""
            active = human_count(model.weights_active) if model.weights_routed_experts else ""
            sizes = (
                human_count(model.weights_total),
                active,
                f"{model.layers}",
                f"{model.dims[h]:,}",
                experts,
            )
            grid.row(name, model.family, *sizes, model.source)
        yield from grid.fit(options.max_width)
        yield Text("")
        yield Text(
            "One of them in full: meshcost models NAME, or the path to a Hugging Face config.json",
            style="dim",
        )


@dataclass(frozen=True, slots=True)
class Card:
    """One model as a rich renderable."""

    model: Model

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield what it is made of: sizes, groups of weights, and runs of equal blocks."""
        model, signs = self.model, words.glyphs(options)
        yield Text.assemble((model.name, "bold"), f"  {model.family}", (f"  {model.source}", "dim"))
        yield Text(", ".join(_sizes(model)))
        yield Text("")
        yield from _groups(model, signs).fit(options.max_width)
        yield Text("")
        yield from _layers(model, signs).fit(options.max_width)


def _sizes(model: Model) -> Iterator[str]:
    yield f"{human_count(model.weights_total)} weights"
    if model.weights_routed_experts:
        yield f"{human_count(model.weights_active)} of them at work on one token"
    yield words.plural(model.layers, "block")
    for symbol, what in ((h, "hidden size"), (a, "heads"), (a_kv, "key and value heads")):
        if symbol in model.dims:
            yield f"{what} {model.dims[symbol]:,}"
    if model.weights_routed_experts:
        yield f"{model.dims[k]} of {model.dims[E]} experts for each token"


def _groups(model: Model, signs: Glyphs) -> Grid:
    grid = Grid(
        (
            Column("weights of"),
            Column("number", "right"),
            Column("share", "right"),
            Column("", drop=1, least=12, style="dim"),
        ),
        signs.line,
    )
    sums = group_sums(model)
    for group, meaning in GROUPS.items():
        tied = group == "head" and model.tied
        if group in sums or tied:
            number = sums.get(group, 0)
            what = "tied: its matrix is the word embedding" if tied else meaning
            grid.row(group, f"{number:,}", words.share(number, model.weights_total), what)
    grid.line()
    grid.row("all", f"{model.weights_total:,}", "100 %", human_count(model.weights_total), style="bold")
    return grid


def _layers(model: Model, signs: Glyphs) -> Grid:
    grid = Grid(
        (
            Column("blocks"),
            Column("kind", drop=1, least=10),
            Column("of", "right"),
            Column("each", "right"),
            Column("routed experts", "right", drop=2),
            Column("together", "right"),
        ),
        signs.line,
    )
    first = 0
    for number, run in groupby(model.pattern):
        count = len(list(run))
        kind, each = model.kinds[number], model.weights_per_layer[first]
        routed = model.number(total(w for w in kind.weights if w.group == "expert"))
        where = words.runs(tuple(range(first, first + count)))
        grid.row(
            where, kind.name, f"{count}", f"{each:,}", f"{routed:,}" if routed else "-", f"{count * each:,}"
        )
        first += count
    return grid
