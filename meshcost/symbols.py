"""The alphabet: every symbol that a formula may use, once, with its meaning and unit.

Letters follow Narayanan et al. 2021 and Korthikanti et al. 2022 where those agree (b, s, h, L, a, V, t, p, d, m, v).
Two SymPy symbols of one name with different assumptions are unequal, so nobody else may create one.
"""

from collections.abc import Mapping
from types import MappingProxyType

from sympy import Expr, Symbol

_MEANING: dict[Symbol, tuple[str, str]] = {}


def _symbol(name: str, meaning: str, unit: str = "", *, whole: bool = True) -> Symbol:
    symbol = (
        Symbol(name, positive=True, integer=True) if whole else Symbol(name, positive=True, rational=True)
    )
    _MEANING[symbol] = (meaning, unit)
    return symbol


# The model.
h = _symbol("h", "hidden size", "elements")
L = _symbol("L", "blocks of the model (those without experts, where some have them)", "blocks")
L_e = _symbol("L_e", "blocks of the model that have experts", "blocks")
L_s = _symbol("L_s", "blocks (without experts, where some have them) on one rank of these stages", "blocks")
L_es = _symbol("L_es", "blocks with experts on one rank of these stages", "blocks")
V = _symbol("V", "vocabulary, after padding", "rows")
a = _symbol("a", "attention heads", "heads")
a_kv = _symbol("a_kv", "key and value heads", "heads")
d_head = _symbol("d_head", "size of one attention head", "elements")
f = _symbol("f", "width of the dense MLP", "elements")
f_e = _symbol("f_e", "width of one routed expert", "elements")
f_s = _symbol("f_s", "width of all shared experts together", "elements")
E = _symbol("E", "routed experts of one block", "experts")
k = _symbol("k", "experts each token is sent to (top-k)", "experts")
f_cap = _symbol("f_cap", "capacity factor: slots of an expert over its even share of the tokens", whole=False)
f_imb = _symbol("f_imb", "imbalance: what the busiest rank sends to experts over the mean", whole=False)
s_max = _symbol("s_max", "learned positions", "rows")
r_q = _symbol("r_q", "rank of the query latent", "elements")
r_kv = _symbol("r_kv", "rank of the key and value latent", "elements")
d_nope = _symbol("d_nope", "part of a query or key head without rotation", "elements")
d_rope = _symbol("d_rope", "part of a query or key head with rotation", "elements")
d_v = _symbol("d_v", "size of one value head", "elements")
e_w = _symbol("e_w", "width of the word embedding where it is not the hidden size", "elements")
n_type = _symbol("n_type", "token types", "rows")
r_lora = _symbol("r_lora", "rank of a low-rank adapter", "elements")
W = _symbol("W", "weights of one unit, as its module registers them", "elements")

# The batch.
s = _symbol("s", "sequence length", "tokens")
b = _symbol("b", "micro-batch of one rank", "sequences")
B = _symbol("B", "global batch of one step", "sequences")
m = _symbol("m", "micro-batches of one step: B / (b d r)", "micro-batches")
T = _symbol("T", "tokens of one micro-batch on one rank: b s / c", "tokens")

# The layout: sizes of the axes.
t = _symbol("t", "size of the tensor axis", "ranks")
c = _symbol("c", "size of the context axis", "ranks")
d = _symbol("d", "size of the data axis (within one replica, under HSDP)", "ranks")
r = _symbol("r", "replicas (HSDP)", "ranks")
p = _symbol("p", "size of the pipeline axis", "stages")
e = _symbol("e", "size of the expert axis", "ranks")
t_e = _symbol("t_e", "size of the expert_tensor axis", "ranks")
d_e = _symbol("d_e", "size of the expert_data axis: d c t / (e t_e)", "ranks")
v = _symbol("v", "model chunks on one pipeline rank", "chunks")
n = _symbol("n", "ranks in the group", "ranks")
g = _symbol("g", "ranks of the group in one node", "ranks")

# The data types: bytes of one element, which a scale for each block of them makes a fraction.
b_w = _symbol("b_w", "bytes of one weight", "B")
b_g = _symbol("b_g", "bytes of one gradient element as it is reduced", "B")
b_a = _symbol("b_a", "bytes of one activation element", "B")
b_d = _symbol("b_d", "bytes of one element sent to an expert (dispatch)", "B", whole=False)
b_c = _symbol("b_c", "bytes of one element returned by an expert (combine)", "B", whole=False)

# One call of a collective operation.
S = _symbol("S", "payload: the whole logical buffer of one call", "B")

ALPHABET = MappingProxyType({symbol.name: symbol for symbol in _MEANING})

#: Symbols that follow from others. Formulas use them because they are short; whoever asks how a cost grows with an axis
#: has to put these in first.
DEFINITIONS: Mapping[Symbol, Expr] = MappingProxyType(
    {m: B / (b * d * r), T: b * s / c, d_e: d * c * t / (e * t_e)}
)


def meaning(symbol: Symbol) -> str:
    """Say what a symbol stands for.

    >>> meaning(h)
    'hidden size'
    """
    return _MEANING[symbol][0]


def unit(symbol: Symbol) -> str:
    """Say what a symbol is counted in; empty for a bare number.

    >>> unit(T)
    'tokens'
    """
    return _MEANING[symbol][1]
