"""A cluster: what accelerators it has and how they are wired together."""

from difflib import get_close_matches
from importlib.resources import files
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler

from meshcost.errors import JobError

_CATALOGUE = files("meshcost.clusters") / "catalogue"


class Cluster(BaseModel):
    """Accelerators and nodes.

    ``gpus_per_node`` is the number of ranks that share the fast links of one node. ``source`` says where the numbers
    come from.

    >>> read_cluster("h100-dgx").gpus_per_node
    8
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "unnamed"
    accelerator: str = ""
    gpus_per_node: Annotated[int, Field(strict=True, ge=1, le=2**20)] = 8
    source: str = ""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Allow a name of the catalogue in the schema, too."""
        return {"anyOf": [{"type": "string", "description": "name of a cluster"}, handler(core_schema)]}


def clusters() -> tuple[str, ...]:
    """List the names in the catalogue.

    >>> "h100-dgx" in clusters()
    True
    """
    return tuple(
        sorted(
            entry.name.removesuffix(".yaml") for entry in _CATALOGUE.iterdir() if entry.name.endswith(".yaml")
        )
    )


def read_cluster(spec: Any) -> Cluster:
    """Read a cluster: a name from the catalogue, or fields. Raises JobError for an unknown name.

    >>> read_cluster({"gpus_per_node": 4}).gpus_per_node
    4
    """
    if not isinstance(spec, str):
        return Cluster.model_validate(spec)
    known = clusters()
    if spec not in known:
        near = get_close_matches(spec, known, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise JobError(
            f"{spec!r} is not in the catalogue. Choose {', '.join(known)}, or write gpus_per_node: 8.{hint}"
        )
    return Cluster.model_validate(yaml.safe_load((_CATALOGUE / f"{spec}.yaml").read_text(encoding="utf-8")))
