"""From a specification to a Model: a catalogue name, a path to a configuration, or inline fields.

Files are bounded in size, read with safe loaders and believed in nothing: whatever is in them, the answer is a Model
or a ModelError that names every wrong field.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from meshcost import document, files, plain_yaml
from meshcost.errors import JobError, ModelError
from meshcost.models.families import FAMILIES, TEXT_TOWERS
from meshcost.models.fields import Fields, show
from meshcost.models.model import Model

SHELF = Path(__file__).parent / "catalogue"
MOST_BYTES = 2_000_000
#: How a path begins that can be no name.
_PATHS = ("/", "./", "../", "~")
_SUFFIXES = (".json", ".yaml", ".yml")
_SOURCE = re.compile(r"^source: *(.+?) *$", re.MULTILINE)
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def families() -> tuple[str, ...]:
    """Names of the families that can be read: what a configuration calls ``model_type``.

    >>> "llama" in families()
    True
    """
    return tuple(FAMILIES)


@cache
def catalogue() -> Mapping[str, str]:
    """Names of the models on the shelf, each with its source: a Hugging Face repository or a paper.

    >>> catalogue()["llama-3.1-405b"]
    'meta-llama/Llama-3.1-405B'
    """
    found = {}
    for path in sorted(SHELF.glob("*.yaml")):
        match = _SOURCE.search(path.read_text(encoding="utf-8"))
        found[path.stem] = match.group(1).strip("\"'") if match else ""
    return MappingProxyType(found)


def read_model(spec: str | Path | Mapping[str, Any], base: Path | None = None) -> Model:
    """Read a model.

    ``spec`` is a name from the catalogue (or the Hugging Face repository it was taken from; case does not matter), a
    path to a ``config.json`` or its folder (relative to ``base``), or a mapping of the same fields. Weights come out
    with symbolic shapes (elements), named and ordered as transformers registers them.

    Raises ModelError if the name, file or family is not known, or if fields are missing, malformed or contradict each
    other: all problems at once. Unknown fields of a file are ignored; an inline one that looks misspelt is a problem.

    >>> read_model("llama-3.1-405b").weights_total
    405853388800
    >>> tiny = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    >>> read_model(tiny | {"intermediate_size": 16, "vocab_size": 10}).weights_per_layer
    (656, 656)
    """
    if isinstance(spec, Mapping):
        return _build(spec, name=_own_name(spec), source="inline fields", inline=True)
    if isinstance(spec, Path):
        return _from_file(spec, base)
    if not isinstance(spec, str):
        raise ModelError(
            f"{show(spec)} is no model. Write a name of meshcost models, the path of a config.json, or its fields."
        )
    if (name := _shelved(spec)) is not None:
        return _from_shelf(name)
    is_path = spec.startswith(_PATHS) or spec.lower().endswith(_SUFFIXES)
    if spec and (is_path or _is_there(Path(base or "") / spec)):
        return _from_file(Path(spec), base)
    raise ModelError(_unknown(spec))


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _shelved(spec: str) -> str | None:
    """Find the catalogue name of a name or repository."""
    name = spec.strip().lower()
    if re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,99}", name) and (SHELF / f"{name}.yaml").is_file():
        return name
    return next((known for known, source in catalogue().items() if source.lower() == name), None)


def _unknown(spec: str) -> str:
    near = _near(spec.lower().rpartition("/")[2][:100])
    hint = f" Nearest: {', '.join(near)}." if near else ""
    return f"{show(spec)} is not in the catalogue.{hint} meshcost models lists all; a path ends in .json or .yaml."


def _near(wanted: str) -> list[str]:
    """Names like the wanted one, or else some of a family whose name is like its beginning."""
    names = list(catalogue())
    clans = {_clan(name) for name in names}
    kin = get_close_matches(_clan(wanted), sorted(clans), n=1, cutoff=0.75)
    return get_close_matches(wanted, names, n=3, cutoff=0.75) or [x for x in names if _clan(x) in kin][:3]


def _clan(name: str) -> str:
    """The letters that a name begins with."""
    return name[: len(name) - len(name.lstrip("abcdefghijklmnopqrstuvwxyz"))]


def _from_shelf(name: str) -> Model:
    entry = yaml.load((SHELF / f"{name}.yaml").read_text(encoding="utf-8"), Loader=_Loader)
    return _build(entry["config"], name=entry["name"], source=entry["source"])


def _from_file(spec: Path, base: Path | None) -> Model:
    path = Path(base or "") / spec
    try:
        if _is_there(path / "config.json"):
            path /= "config.json"
        config = _load(path)
        name = _own_name(config) if isinstance(config, Mapping) else ""
        plain = path.parent.name if path.stem == "config" else path.stem
        return _build(config, name=name or plain or "config", source=str(spec))
    except ModelError as error:
        raise error.located(str(spec)) from None


def _load(path: Path) -> object:
    if _is_there(path) and not path.is_file():
        raise ModelError(
            "a folder without a config.json."
            if path.is_dir()
            else "not a regular file, but a device or a pipe; copy what it holds into a file."
        )
    try:
        text = files.whole_text(path, MOST_BYTES)
        is_yaml = path.suffix in (".yaml", ".yml")
        return plain_yaml.parse(text) if is_yaml else document.parse_json(text)
    except JobError as error:
        raise ModelError(error.problems) from None


def _own_name(config: Mapping[str, Any]) -> str:
    for key in ("name", "_name_or_path"):
        if isinstance(name := config.get(key), str) and name:
            return name[:200]
    return ""


def _build(config: object, name: str, source: str, inline: bool = False) -> Model:
    """Let the family that ``model_type`` names read the fields."""
    if not isinstance(config, Mapping):
        raise ModelError(f"{show(config)} is not a mapping of fields.")
    family = config.get("model_type")
    if family is None:
        raise ModelError(f"model_type: missing. Write one of {', '.join(FAMILIES)}.")
    if isinstance(family, str) and family in TEXT_TOWERS:
        config, family = _text_tower(config, TEXT_TOWERS[family])
        source += " (text tower only)"
    if not isinstance(family, str) or family not in FAMILIES:
        raise ModelError(_unknown_family(family))
    fields = Fields(config)
    fields.raw("model_type")
    model = FAMILIES[family](fields)
    if inline:
        fields.misspelt()
    fields.close()
    return replace(model, name=name or family, family=family, source=source)


def _text_tower(config: Mapping[str, Any], family: str) -> tuple[Mapping[str, Any], str]:
    inner = config.get("text_config")
    if not isinstance(inner, Mapping):
        raise ModelError(f"text_config: {show(inner)} is not a mapping of fields.")
    outer = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
    return {**outer, **inner, "model_type": family}, family


def _unknown_family(family: object) -> str:
    near = get_close_matches(family[:100], FAMILIES, n=1, cutoff=0.75) if isinstance(family, str) else []
    guess = f" Did you mean {near[0]}?" if near else ""
    return f"model_type: {show(family)} is not a known family.{guess} Known: {', '.join(FAMILIES)}."
