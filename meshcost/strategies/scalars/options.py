"""Small calls: whether a step clips gradients by their global norm, and whether it reports a mean loss."""

from collections.abc import Iterator

from meshcost.ledger import Event
from meshcost.strategies.scalars import textbook
from meshcost.strategies.setting import Options
from meshcost.strategies.view import View


class Scalars(Options):
    """Numbers of four bytes that a step adds up over ranks. Both are on unless switched off."""

    gradient_norm: bool = True
    loss: bool = True

    def events(self, view: View) -> Iterator[Event]:
        """Yield what they call in one step."""
        yield from textbook.events(self, view)
