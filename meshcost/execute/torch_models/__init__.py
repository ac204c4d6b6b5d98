"""Plain PyTorch models of our families: the same weights, names and order as ``meshcost.models`` describes.

build(model)                            a whole causal language model, on the default device (``meta`` costs nothing)
build(model, layers=range(2, 4), ...)   the part of it that one pipeline stage holds
"""

from meshcost.execute.torch_models.causal import Block, CausalModel, build

__all__ = ["Block", "CausalModel", "build"]
