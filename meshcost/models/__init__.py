"""What is trained: families of models, the catalogue, and reading a Hugging Face configuration.

read_model("llama-3.1-70b")        a Model, from the catalogue
read_model("config.json")          a Model, from a file
Model.from_module(module)          a Model, from a torch.nn.Module
freeze(model, ["*.bias"])          the same with less to train
lora(model, 16, ["q_proj"])        the same, frozen, with adapters
"""

from meshcost.models.model import Attention, Kind, Model, Region, Weight, total
from meshcost.models.reading import catalogue, families, read_model
from meshcost.models.trainable import freeze, lora
from meshcost.models.unfused import unfused

from_module = Model.from_module

__all__ = [
    "Attention",
    "Kind",
    "Model",
    "Region",
    "Weight",
    "catalogue",
    "families",
    "freeze",
    "from_module",
    "lora",
    "read_model",
    "total",
    "unfused",
]
