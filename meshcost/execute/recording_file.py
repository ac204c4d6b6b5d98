"""What a file of recordings may hold. Such files come from anywhere: each field is checked before anything looks at it."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from meshcost import document
from meshcost.errors import LedgerError

LARGEST_WORLD = 2**20
MOST_CALLS = 2**22
_MOST_PROBLEMS = 10

RecordedPhase = Literal["setup", "forward", "backward", "clip", "optimizer", ""]
RecordedOp = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "send",
    "recv", "barrier", "unknown",
]  # fmt: skip

#: As meshcost and as torch write them; "" where a call moves nothing.
RecordedDtype = Literal[
    "fp64", "fp32", "fp16", "bf16", "fp8", "float64", "float32", "float16", "bfloat16",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
    "complex32", "complex64", "complex128", "bool", "bits16", "bits1x8", "bits2x4", "bits4x2", "bits8",
    "int1", "int2", "int3", "int4", "int5", "int6", "int7", "int8", "int16", "int32", "int64",
    "uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7", "uint8", "uint16", "uint32", "uint64",
    "qint8", "qint32", "quint8", "quint2x4", "quint4x2", "",
]  # fmt: skip

_Number = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
_Ranks = Annotated[list[Annotated[int, Field(strict=True, ge=-1, lt=LARGEST_WORLD)]], Field(strict=True)]
_World = Annotated[int, Field(strict=True, ge=1, le=LARGEST_WORLD)]
_Text = Annotated[str, Field(strict=True, max_length=2000)]

_File = TypeVar("_File", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class CallInFile(_Strict):
    """One call as ``Recording.to_dict`` writes it: fields that hold nothing are left out."""

    op: RecordedOp
    ranks: _Ranks
    in_bytes: _Number
    out_bytes: _Number
    dtype: RecordedDtype
    phase: RecordedPhase
    module: _Text = ""
    reduce_op: _Text = ""
    raw: _Text = ""
    axes: Annotated[list[_Text], Field(strict=True, max_length=64)] = []
    step: _Number = 0
    micro_batch: _Number | None = None
    root: _Number | None = None


class RecordingInFile(_Strict):
    """The calls of one rank as ``Recording.to_dict`` writes them."""

    meshcost_recording: Literal[1]
    rank: _Number
    world_size: _World
    about: dict[_Text, Any]
    calls: Annotated[list[CallInFile], Field(strict=True, max_length=MOST_CALLS)]


class RecordingsInFile(_Strict):
    """The calls of several ranks."""

    recordings: Annotated[list[RecordingInFile], Field(strict=True, min_length=1)]


class OthersCall(BaseModel):
    """One call in a recording that others made; shapes and whatever else they noted are not looked at."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    op: RecordedOp
    raw: _Text
    ranks: _Ranks
    in_bytes: _Number
    out_bytes: _Number
    dtype: RecordedDtype
    phase: _Text
    fqn: _Text = ""
    reduce_op: _Text = ""
    root_rank: _Number | None = None
    dst: _Number | None = None
    src: _Number | None = None


class _OthersWorld(BaseModel):
    world: _World


class OthersRecording(BaseModel):
    """A recording that others made, of all ranks they looked at."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    config: _OthersWorld
    ranks: dict[
        Annotated[str, Field(pattern=r"^[0-9]{1,7}$")],
        Annotated[list[OthersCall], Field(strict=True, max_length=MOST_CALLS)],
    ]


def checked(kind: type[_File], data: Any, text: str = "") -> _File:
    """Read a part of a file. ``text`` is the file, so that a problem can name its line. Raises LedgerError."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise refused(document.sentences(error, text=text)) from None


def refused(problems: Iterable[str]) -> LedgerError:
    """Say what is wrong with a file: the first few problems, and how many more there are."""
    found = list(problems)
    more = len(found) - _MOST_PROBLEMS
    return LedgerError(
        [*found[:_MOST_PROBLEMS], f"{more} more problems of this kind."] if more > 0 else found
    )


def strangers(recording: RecordingInFile) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Find ranks that the world of a recording has not: where they stand, and what is wrong."""
    world = recording.world_size
    legal = f"is no rank of a world of {world}; ranks are 0 to {world - 1}."
    if recording.rank >= world:
        yield ("rank",), f"{recording.rank} {legal}"
    for at, call in enumerate(recording.calls):
        # A message may be received from any rank at all, which torch writes as -1.
        low = -1 if call.op == "recv" else 0
        if wrong := [member for member in call.ranks if not low <= member < world]:
            yield ("calls", at, "ranks"), f"{wrong[0]} {legal}"
        if call.root is not None and call.root >= world:
            yield ("calls", at, "root"), f"{call.root} {legal}"
