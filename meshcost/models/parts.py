"""The pieces that families are put together from: linears, norms, attention, MLPs, experts.

Names are relative to the block. Shapes are (out, in), as PyTorch's ``Linear`` has them. A column-parallel linear is
split over what it produces (dim 0, its bias too), a row-parallel one over what it reads (dim 1, its bias is whole).
"""

from collections.abc import Callable
from dataclasses import replace

from sympy import Expr

from meshcost.models.model import Attention, Group, Kind, Model, Region, Unit, Weight
from meshcost.symbols import E, V, a, a_kv, d_head, f, f_e, h

Weights = tuple[Weight, ...]
Dims = dict[Expr, int]
Blocks = tuple[tuple[Kind, ...], tuple[int, ...]]

SEQUENTIAL = (Region("attention", (h,), h), Region("mlp", (h,), h))
PARALLEL = (Region("attention+mlp", (h,), h),)
ROUTED = (Region("attention", (h,), h), Region("experts", (h,), h))
SHARED = (Region("shared experts", (h,), h),)

GROUPED = Attention(a, a_kv, a * d_head, a_kv * d_head, a_kv * d_head, a * d_head)
MULTIHEAD = Attention(a, a, a * d_head, a * d_head, a * d_head, a * d_head)


def column(name: str, out: Expr, into: Expr, bias: bool = False) -> Weights:
    """Build a linear whose output is split."""
    weight = Weight(f"{name}.weight", (out, into), "block", shard=0)
    return (weight, Weight(f"{name}.bias", (out,), "block", shard=0)) if bias else (weight,)


def row(name: str, out: Expr, into: Expr, bias: bool = False) -> Weights:
    """Build a linear whose input is split."""
    weight = Weight(f"{name}.weight", (out, into), "block", shard=1)
    return (weight, Weight(f"{name}.bias", (out,), "block")) if bias else (weight,)


def whole(name: str, out: Expr, into: Expr, bias: bool = False, group: Group = "block") -> Weights:
    """Build a linear that no rank splits."""
    weight = Weight(f"{name}.weight", (out, into), group)
    return (weight, Weight(f"{name}.bias", (out,), group)) if bias else (weight,)


def norm(name: str, bias: bool = False, unit: Unit = "block") -> Weights:
    """Build a norm over the hidden size."""
    weight = Weight(f"{name}.weight", (h,), "norm", unit)
    return (weight, Weight(f"{name}.bias", (h,), "norm", unit)) if bias else (weight,)


def lone(dims: Dims) -> bool:
    """Whether many query heads share the one key and value head, which every tensor rank then keeps whole."""
    return dims[a_kv] == 1 < dims[a]


def kept_whole(weights: Weights) -> Weights:
    """Keep weights whole that work beside split heads."""
    return tuple(replace(weight, shard=None, split_input=True) for weight in weights)


def separate(
    dims: Dims, bias: bool = False, out_bias: bool = False, order: str = "qkv", out: str = "o_proj"
) -> Weights:
    """Build attention with a projection each for queries, keys and values."""
    key, value = (column(f"self_attn.{x}_proj", a_kv * d_head, h, bias) for x in "kv")
    if lone(dims):
        key, value = kept_whole(key), kept_whole(value)
    made = {"q": column("self_attn.q_proj", a * d_head, h, bias), "k": key, "v": value}
    inputs = tuple(weight for x in order for weight in made[x])
    return (*inputs, *row(f"self_attn.{out}", h, a * d_head, out_bias))


def fused(name: str, dims: Dims, bias: bool = False) -> Weights:
    """Build one projection for queries, keys and values together."""
    made = column(name, (a + 2 * a_kv) * d_head, h, bias)
    if not lone(dims):
        return made
    return tuple(replace(weight, whole=2 * a_kv * d_head) for weight in made)


def head_norms(query: str = "self_attn.q_norm", key: str = "self_attn.k_norm", bias: bool = False) -> Weights:
    """Build norms of single query and key heads: one weight for all heads, so its gradient is a sum over ranks."""
    return tuple(
        Weight(f"{name}.{kind}", (d_head,), "norm", split_input=True)
        for name in (query, key)
        for kind in (("weight", "bias") if bias else ("weight",))
    )


def wide_norms(dims: Dims, *shapes: tuple[Expr, ...]) -> Weights:
    """Build norms with a weight of its own for each query and key head."""
    query, key = (
        (Weight(f"self_attn.{x}_norm.weight", shape, "norm", shard=0),)
        for x, shape in zip("qk", shapes, strict=True)
    )
    return (*query, *(kept_whole(key) if lone(dims) else key))


def gated_mlp(at: str = "mlp", width: Expr = f, bias: bool = False) -> Weights:
    """Build an MLP with a gate: two column-parallel linears and a row-parallel one."""
    return (
        *column(f"{at}.gate_proj", width, h, bias),
        *column(f"{at}.up_proj", width, h, bias),
        *row(f"{at}.down_proj", h, width, bias),
    )


def mlp(up: str, down: str, bias: bool = False, down_bias: bool | None = None) -> Weights:
    """Build an MLP without a gate."""
    return (*column(up, f, h, bias), *row(down, h, f, bias if down_bias is None else down_bias))


def experts(at: str = "mlp.experts") -> Weights:
    """Build routed experts stored together, (expert, out, in); each expert's own width is what tensor splits."""
    return (
        Weight(f"{at}.gate_up_proj", (E, 2 * f_e, h), "expert", shard=1),
        Weight(f"{at}.down_proj", (E, h, f_e), "expert", shard=2),
    )


def router(name: str = "mlp.gate", bias: bool = False) -> Weights:
    """Build the linear that chooses experts."""
    return whole(name, E, h, bias, "router")


def norms(*names: str, bias: bool = False) -> Weights:
    """Build norms of one block."""
    return tuple(weight for name in names for weight in norm(name, bias))


def embedding(name: str, width: Expr = h) -> Weight:
    """Build the word embedding."""
    return Weight(f"{name}.weight", (V, width), "embedding", "embedding", shard=0)


def head(tied: bool, width: Expr = h, bias: bool = False, name: str = "lm_head") -> Weights:
    """Build the output projection; a tied one has only its bias left, if any."""
    weight = () if tied else (Weight(f"{name}.weight", (V, width), "head", "head", shard=0),)
    return (*weight, Weight(f"{name}.bias", (V,), "head", "head", shard=0)) if bias else weight


def _placed(at: str, kind: Kind) -> Kind:
    return replace(kind, weights=tuple(replace(w, name=f"{at}.{{layer}}.{w.name}") for w in kind.weights))


def uniform(at: str, kind: Kind, layers: int) -> Blocks:
    """Repeat one kind of block."""
    return (_placed(at, kind),), (0,) * layers


def mixed(at: str, dense: Kind, moe: Kind, layers: int, is_moe: Callable[[int], bool]) -> Blocks:
    """Lay out blocks of two kinds; a kind without blocks is left out."""
    chosen = [is_moe(layer) for layer in range(layers)]
    if all(chosen) or not any(chosen):
        return uniform(at, moe if chosen[0] else dense, layers)
    return (_placed(at, dense), _placed(at, moe)), tuple(map(int, chosen))


def decoder(dims: Dims, blocks: Blocks, tied: bool, attention: Attention = GROUPED) -> Model:
    """Put blocks between the embedding, the last norm and the head, named as most families name them."""
    return Model(
        name="",
        family="",
        dims=dims,
        before=(embedding("model.embed_tokens"),),
        kinds=blocks[0],
        pattern=blocks[1],
        after=(*norm("model.norm", unit="head"), *head(tied)),
        tied=tied,
        attention=attention,
    )
