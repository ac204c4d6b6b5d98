"""The number of every symbol that holds for a whole job."""

from meshcost import symbols as sym
from meshcost.formula import Values
from meshcost.mesh import Mesh
from meshcost.strategies.setting import Setting
from meshcost.strategies.view import AXIS_SYMBOL

_TYPES = {
    sym.b_w: "weights",
    sym.b_g: "reduce",
    sym.b_a: "activations",
    sym.b_d: "dispatch",
    sym.b_c: "combine",
}


def numbers(setting: Setting, mesh: Mesh, chunks: int, micro_batches: int) -> Values:
    """Numbers of the dims of a model, of axes, of bytes per element, and of a batch."""
    batch = setting.batch
    types = {symbol: setting.precision.bytes(what) for symbol, what in _TYPES.items()}
    fractions = {**types, **setting.parallel["expert"].routing}
    return {
        **setting.model.dims,
        # Replicas are as many for experts as for all else, and say it with one symbol.
        **{symbol: mesh.size(axis) for axis, symbol in AXIS_SYMBOL.items() if axis != "expert_replicate"},
        **{symbol: int(x) if x.denominator == 1 else x for symbol, x in fractions.items()},
        sym.s: batch.sequence,
        sym.b: batch.micro_batch,
        sym.B: batch.global_batch,
        sym.m: micro_batches,
        sym.T: batch.micro_batch * batch.sequence // mesh.size("context"),
        sym.v: chunks,
    }
