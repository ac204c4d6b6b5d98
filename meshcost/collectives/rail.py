"""Rail: an all-to-all in two steps, first inside the node to the right rail, then along the rail to the right node."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sympy import Expr

from meshcost.collectives.algorithm import Form, Move
from meshcost.collectives.cells import Cells
from meshcost.collectives.hierarchical import OnNodes
from meshcost.symbols import S, n


@dataclass(frozen=True)
class Rail(OnNodes):
    """Rail-aligned all-to-all: a rail joins the ranks of one place in all nodes, and messages change node on it only.

    Between nodes a rank sends S (n - g) / n, as any all-to-all must, but in k - 1 large messages and not n - g small
    ones, and never across rails; the price is S (g - 1) / g inside the node. NCCL's PXN and the dispatch of DeepSeek's
    DeepEP do so.

    >>> for messages in Rail(ranks_per_node=2).steps("all_to_all", 4, 4).rounds:
    ...     print(messages[0])
    0 -> 1, cells 1 3
    0 -> 2, cells 2 6
    """

    name = "rail"
    how = (
        "First inside the node, to the rank whose place is that of the receiver; then from node to node "
        "between equal places."
    )
    source = "NCCL 2.12 release notes (PXN, rail-local aggregation); DeepSeek-V3 report 2024, section 3.2.2"

    alike = frozenset({"all_to_all"})

    def on_nodes(self, inside: Expr) -> Mapping[str, Form]:
        """Inside the node, then along the rail; pairwise on both."""
        moved = S * (inside - 1) / inside + self.between_nodes(inside)
        return {"all_to_all": Form(moved, moved, n * moved, (inside - 1) + (n / inside - 1))}

    def between_nodes(self, inside: Expr) -> Expr:
        """What is for ranks of other nodes: all but the share of the own one."""
        return S * (n - inside) / n

    def moved(self, op: str, at: int, ranks: int, cells: Cells) -> tuple[int, int]:
        """What goes to and comes from other places in the node, then other nodes on the rail."""
        inside, _ = self.nodes(ranks)
        node, local = divmod(at, inside)
        mates = range(node * inside, (node + 1) * inside)
        rail = range(local, ranks, inside)

        def elements(sources: range, targets: range) -> int:
            return sum(cells[i * ranks + j] for i in sources for j in targets)

        row, kept = elements(range(at, at + 1), range(ranks)), elements(range(at, at + 1), rail)
        gathered, home = elements(mates, rail), elements(mates, range(at, at + 1))
        arrived = elements(range(ranks), range(at, at + 1))
        return row - kept + gathered - home, gathered - kept + arrived - home

    def moves(self, op: str, ranks: int) -> Iterator[list[Move]]:
        """Pairwise inside the node, with what is for all nodes; pairwise along the rail, with what the node has for one."""
        inside, nodes = self.nodes(ranks)
        for step in range(1, inside):
            pairs = [(i, i - i % inside + (i + step) % inside) for i in range(ranks)]
            yield [Move(i, j, range(i * ranks + j % inside, (i + 1) * ranks, inside)) for i, j in pairs]
        for step in range(1, nodes):
            pairs = [(i, (i + step * inside) % ranks) for i in range(ranks)]
            yield [Move(i, j, _node_to(i - i % inside, j, inside, ranks)) for i, j in pairs]


def _node_to(first: int, target: int, inside: int, ranks: int) -> range:
    """Cells that the ranks of a node, the lowest of them ``first``, have for one rank."""
    return range(first * ranks + target, (first + inside) * ranks + target, ranks)


RAIL = Rail()
