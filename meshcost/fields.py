"""Which fields a file may have, and where, as its Pydantic model says."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel


def known_fields(root: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """Names of the fields that may stand at a path of a file.

    >>> from meshcost.job import Job
    >>> known_fields(Job, ("batch",))
    ['sequence', 'micro_batch', 'global_batch']
    """
    model: Any = root
    for part in location:
        field = (
            model.model_fields.get(part) if isinstance(model, type) and issubclass(model, BaseModel) else None
        )
        if field is None:
            return []
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
        model = next((x for x in kinds if isinstance(x, type) and issubclass(x, BaseModel)), None)
    return list(model.model_fields) if model is not None else []


def homes(root: type[BaseModel], name: str) -> list[str]:
    """Paths at which a file has a field of this name, for whoever wrote it elsewhere.

    >>> from meshcost.job import Job
    >>> homes(Job, "order"), homes(Job, "sequence"), homes(Job, "nowhere")
    (['parallel.order'], ['batch.sequence'], [])
    """

    def below(path: tuple[str, ...]) -> Iterator[str]:
        for field in known_fields(root, path):
            if field == name:
                yield ".".join((*path, field))
            yield from below((*path, field))

    return list(below(()))
