"""A cluster: what accelerators it has and how they are wired together."""

from collections.abc import Mapping
from difflib import get_close_matches
from importlib.resources import files as package_files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, ValidationError

from meshcost import document, files, plain_yaml
from meshcost.clusters.link import Link, LinkClass
from meshcost.errors import JobError, MeshcostError

_CATALOGUE = package_files("meshcost.clusters") / "catalogue"


class Cluster(BaseModel):
    """Accelerators and nodes.

    ``gpus_per_node`` is the number of ranks that share the fast links of one node, ``links`` the speed of those links
    and of the ones between nodes. ``library`` is what communicates, ``source`` says where the rest comes from.

    >>> read_cluster("h100-dgx").gpus_per_node
    8
    >>> read_cluster("h100-dgx").link("inter_node").bandwidth.bytes_per_second
    50000000000.0
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    name: str = "unnamed"
    accelerator: str = ""
    gpus_per_node: Annotated[int, Field(strict=True, ge=1, le=2**20)] = 8
    library: Literal["nccl", "gloo"] = "nccl"
    source: str = ""
    links: Mapping[LinkClass, Link] = Field(default_factory=dict)

    def link(self, kind: LinkClass) -> Link:
        """The links of one class. Raises JobError if the cluster does not say how fast they are."""
        if kind not in self.links:
            known = ", ".join(name for name in clusters() if kind in read_cluster(name).links)
            raise JobError(
                f"cluster {self.name} has no links.{kind}, so nothing can be said in seconds. Add it with latency, "
                f"bandwidth and their sources, measure it with meshcost verify --save, or choose {known}."
            )
        return self.links[kind]

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


def read_cluster(spec: Any, *, base: Path | None = None) -> Cluster:
    """Read a cluster: a name from the catalogue, the path of a YAML file, or fields.

    A path is relative to ``base``, if that is given. Raises JobError for an unknown name, and with every problem of a
    file.

    >>> read_cluster({"gpus_per_node": 4}).gpus_per_node
    4
    """
    if not isinstance(spec, str):
        return Cluster.model_validate(spec)
    if spec.endswith((".yaml", ".yml")):
        return _read_file(Path(base or ".") / spec)
    known = clusters()
    if spec not in known:
        near = get_close_matches(spec, known, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise JobError(
            f"{spec!r} is not in the catalogue. Choose {', '.join(known)}, or name a file that ends in .yaml.{hint}"
        )
    return Cluster.model_validate(plain_yaml.parse((_CATALOGUE / f"{spec}.yaml").read_text(encoding="utf-8")))


def _read_file(path: Path) -> Cluster:
    text = files.read_text(
        path, where_from=f"meshcost verify --save writes one, or choose {', '.join(clusters())}."
    )
    try:
        data = plain_yaml.parse(text)
        if not isinstance(data, dict):
            raise JobError("a cluster is a mapping of fields (name, gpus_per_node, links ...).")
        return Cluster.model_validate({"name": path.stem, **data})
    except ValidationError as error:
        raise JobError(document.sentences(error)).located(str(path)) from None
    except MeshcostError as error:
        raise error.located(str(path)) from None
