"""Small calls: whether a step clips gradients by their global norm, and whether it reports a mean loss."""

from meshcost.strategies.setting import Options


class Scalars(Options):
    """Numbers of four bytes that a step adds up over ranks. Both are on unless switched off."""

    gradient_norm: bool = True
    loss: bool = True
