"""The sizes that many families read in the same way."""

from meshcost.models.fields import Fields
from meshcost.models.parts import Dims
from meshcost.symbols import E, V, a, a_kv, d_head, f_e, h, k


def multihead(fields: Fields, hidden: tuple[str, ...], heads: tuple[str, ...]) -> Dims:
    """Read hidden size, heads and vocabulary of a family in which every head has its own key and value."""
    width, count = fields.size(*hidden), fields.size(*heads)
    per_head = fields.multiple((fields.called(*hidden), width), (fields.called(*heads), count))
    return {h: width, a: count, d_head: per_head, V: fields.size("vocab_size")}


def grouped(
    fields: Fields,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    heads: int | None = None,
    vocabulary: int | None = None,
) -> Dims:
    """Read the sizes of grouped-query attention; the arguments are the family's own defaults."""
    width = fields.size("hidden_size")
    count = fields.size("num_attention_heads", default=heads)
    default = count if kv_heads is None or fields.null("num_key_value_heads") else kv_heads
    groups = fields.size("num_key_value_heads", default=default)
    fields.multiple(("num_attention_heads", count), ("num_key_value_heads", groups))
    per_head = fields.maybe("head_dim") or head_dim
    if per_head is None:
        per_head = fields.multiple(("hidden_size", width), ("num_attention_heads", count))
    words = fields.size("vocab_size", default=vocabulary)
    return {h: width, a: count, a_kv: groups, d_head: per_head, V: words}


def even_heads(fields: Fields, dims: Dims, why: str) -> None:
    """Refuse heads that do not make up the hidden size, where the family takes it for granted."""
    if dims[a] * dims[d_head] != dims[h]:
        product = f"num_attention_heads {dims[a]} x head_dim {dims[d_head]}"
        fields.refuse(f"{product} is not hidden_size {dims[h]}: {why}.")


def routing(fields: Fields, experts: tuple[str, int], top_k: tuple[str, int], width: int) -> Dims:
    """Check and name the sizes of routed experts, each a field and its number."""
    fields.at_most(top_k, experts)
    return {E: experts[1], k: top_k[1], f_e: width}
