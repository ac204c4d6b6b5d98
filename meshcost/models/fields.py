"""Reading one configuration: every field checked, every problem kept, nothing trusted.

A family asks for its fields by name. A wrong one is noted and stands in as 1, so that reading goes on and everything
wrong with a file is said at once. ``null`` means absent, unless the family says that it means something.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from meshcost.errors import ModelError

LARGEST = 10**12
MOST_LAYERS = 100_000
_SHOWN = 40

# Fields of many families that say nothing about the number of weights: never taken for misspelt ones.
_NO_SIZES = """
    _attn_implementation _name_or_path architectures attention_dropout attention_multiplier attn_pdrop auto_map
    bos_token_id dtype embd_pdrop embedding_multiplier eos_token_id head_dropout hidden_act hidden_activation
    hidden_dropout hidden_dropout_prob id2label initializer_range is_decoder is_encoder_decoder label2id layer_norm_eps
    layer_norm_epsilon layer_types layernorm_epsilon logit_scale logits_scaling max_position_embeddings max_seq_len
    max_window_layers moe_layers n_ctx n_positions name norm_eps num_labels num_nextn_predict_layers num_mtp_layers
    output_attentions output_hidden_states output_router_logits pad_token_id partial_rotary_factor pretraining_tp
    qk_head_dim resid_pdrop residual_multiplier rms_norm_eps rope_parameters rope_scaling rope_theta rotary_dim
    rotary_emb_base rotary_pct router_aux_loss_coef routed_scaling_factor sliding_window topk_group torch_dtype
    transformers_version use_cache use_sliding_window vision_config no_rope_layers no_rope_layer_interval head_dim
"""
_HARMLESS = frozenset(_NO_SIZES.split())


def show(value: object) -> str:
    """Write a value of unknown origin so that it fits into a sentence.

    >>> show("a" * 100)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...'"
    """
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST**3:
        return "a number of more than 36 digits"
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN else value[: _SHOWN - 4] + "...")
    if isinstance(value, (bool, int, float)):
        return str(value)
    return "null" if value is None else f"a {type(value).__name__}"


class Fields:
    """The fields of one configuration, and what is wrong with them so far."""

    def __init__(self, config: Mapping[Any, Any], outer: "Fields | None" = None, prefix: str = "") -> None:
        """Take a parsed configuration; ``outer`` and ``prefix`` are for a mapping inside another."""
        self._config = config
        self._prefix = prefix
        self._asked: set[str] = set()
        self._inner: list[Fields] = []
        self.problems: list[str] = outer.problems if outer else []
        self._wrong: set[str] = outer._wrong if outer else set()

    def refuse(self, problem: str) -> None:
        """Note a problem."""
        self.problems.append(problem)

    def raw(self, name: str, *aliases: str) -> tuple[str, Any]:
        """Find a field under its name or an alias; returns the name it has here and its value, None if absent."""
        names = (name, *aliases)
        self._asked.update(names)
        given = [(n, self._config[n]) for n in names if self._config.get(n) is not None]
        if any(type(value) is not type(given[0][1]) or value != given[0][1] for _, value in given[1:]):
            both = " and ".join(f"{self._prefix}{n} {show(value)}" for n, value in given)
            self.refuse(f"{both}: two names of one field must agree.")
        return given[0] if given else (name, None)

    def null(self, name: str) -> bool:
        """Whether a field is there and null: in a few families that is not the same as absent."""
        self._asked.add(name)
        return name in self._config and self._config[name] is None

    def maybe(self, name: str, *aliases: str, least: int = 1) -> int | None:
        """Read a size that may be absent: a whole number, at least ``least``."""
        name, value = self.raw(name, *aliases)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            self.refuse(f"{self._prefix}{name}: {show(value)} is not a whole number.")
        elif not least <= value <= LARGEST:
            self.refuse(f"{self._prefix}{name}: {show(value)} is not between {least} and {LARGEST}.")
        else:
            return value
        self._wrong.add(name)
        return 1

    def size(self, name: str, *aliases: str, default: int | None = None, least: int = 1) -> int:
        """Read a size: a whole number. Without a default the field must be there."""
        value = self.maybe(name, *aliases, least=least)
        if value is not None:
            return value
        if default is not None:
            return default
        self.refuse(f"{self._prefix}{name}: missing.")
        self._wrong.add(name)
        return 1

    def flag(self, name: str, default: bool) -> bool:
        """Read true or false."""
        _, value = self.raw(name)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self.refuse(f"{self._prefix}{name}: {show(value)} is neither true nor false.")
        return default

    def layers(self, name: str, *aliases: str) -> int:
        """Read the number of blocks."""
        count = self.size(name, *aliases)
        if count <= MOST_LAYERS:
            return count
        self.refuse(f"{self._prefix}{name}: {count} is more than {MOST_LAYERS} layers.")
        return 1

    def numbers(self, name: str, count: int) -> frozenset[int] | None:
        """Read a list of numbers of layers, each below ``count``; None if absent."""
        _, value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, list) or any(not isinstance(n, int) or isinstance(n, bool) for n in value):
            self.refuse(f"{self._prefix}{name}: {show(value)} is not a list of layer numbers.")
            return frozenset()
        if strange := [n for n in value if not 0 <= n < count]:
            self.refuse(f"{self._prefix}{name}: there is no layer {show(strange[0])} of {count}.")
        return frozenset(value)

    def inner(self, name: str) -> "Fields":
        """Open a mapping inside this one; an absent one is empty."""
        _, value = self.raw(name)
        if value is not None and not isinstance(value, Mapping):
            self.refuse(f"{self._prefix}{name}: {show(value)} is not a mapping.")
        inside = Fields(value if isinstance(value, Mapping) else {}, self, f"{self._prefix}{name}.")
        self._inner.append(inside)
        return inside

    def unsupported(self, name: str, value: object, why: str) -> None:
        """Refuse the one value of a field whose weights are not known here."""
        _, given = self.raw(name)
        if given is not None and type(given) is type(value) and given == value:
            self.refuse(f"{self._prefix}{name}: {show(given)} is not supported: {why}.")

    def called(self, name: str, *aliases: str) -> str:
        """Name a field as this configuration does."""
        return next((n for n in (name, *aliases) if n in self._config), name)

    def multiple(self, whole: tuple[str, int], part: tuple[str, int]) -> int:
        """Divide ``whole`` by ``part``, each a field and its number; a remainder is a contradiction."""
        known = not {whole[0], part[0]} & self._wrong
        if known and whole[1] % part[1]:
            absent = "." not in part[0] and part[0] not in self._config
            default = ", the default of its family" if absent else ""
            self.refuse(f"{whole[0]} {whole[1]} is not a multiple of {part[0]} {part[1]}{default}.")
        return max(whole[1] // part[1], 1)

    def at_most(self, small: tuple[str, int], large: tuple[str, int]) -> None:
        """Hold one field to another, each with its number."""
        if small[1] > large[1] and large[0] not in self._wrong:
            self.refuse(f"{small[0]} {small[1]} is more than {large[0]} {large[1]}.")

    def misspelt(self) -> None:
        """Note unknown fields that look like a misspelt known one."""
        for key in self._config:
            if not isinstance(key, str) or key in self._asked or key in _HARMLESS:
                continue
            if near := get_close_matches(key[:100], sorted(self._asked), n=1, cutoff=0.75):
                self.refuse(f"{self._prefix}{show(key).strip(chr(39))}: unknown; did you mean {near[0]}?")
        for inside in self._inner:
            inside.misspelt()

    def close(self) -> None:
        """Raise ModelError with all problems, if there are any."""
        if self.problems:
            raise ModelError(dict.fromkeys(self.problems))
