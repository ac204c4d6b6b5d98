"""Commands about the shelves: what each operation does, what each model is made of."""

from typing import Annotated

import typer

from meshcost.cli.common import show_or_dump
from meshcost.cli.options import PageFormat, TextFormat, choice, complete_models, complete_operations
from meshcost.report.output import show, write_json


def collectives(
    op: Annotated[
        str | None,
        typer.Argument(
            help="An operation; without it, all of them.",
            autocompletion=complete_operations,
            show_default=False,
        ),
    ] = None,
    ranks: Annotated[int, typer.Option(help="How many ranks are drawn, 2 to 16.")] = 4,
    ranks_per_node: Annotated[
        int | None,
        typer.Option(help="How many of them share a node; else as many as leave two.", show_default=False),
    ] = None,
    form: Annotated[TextFormat, choice(TextFormat, "--format", help="How it is written.")] = TextFormat.text,
) -> None:
    """Show what each collective operation does, what it costs, and who uses it."""
    from meshcost.report.collectives import as_dict, overview, page

    if form is TextFormat.json:
        write_json(as_dict(op, ranks, ranks_per_node))
    else:
        show(overview() if op is None else page(op, ranks, ranks_per_node))


def models(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME|config.json]",
            help="A model of the catalogue or a Hugging Face config.json; without it, the catalogue.",
            autocompletion=complete_models,
            show_default=False,
        ),
    ] = None,
    form: Annotated[PageFormat, choice(PageFormat, "--format", help="How it is written.")] = PageFormat.table,
) -> None:
    """Show the catalogue of models, or the weights of one model by group and by block."""
    from meshcost.models import read_model
    from meshcost.report.models import Card, Catalogue, card, cards

    if name is None:
        show_or_dump(form, Catalogue, cards)
    else:
        model = read_model(name)
        show_or_dump(form, lambda: Card(model), lambda: card(model))
