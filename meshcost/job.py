"""A job: the YAML document that names a model, a layout and a batch, and the ledger that follows from it.

job.yaml -> Job -> Setting (what was asked) -> View (what each rank holds) -> Ledger -> prices
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError
from sympy import Expr, Integer

from meshcost import document, files, plain_yaml
from meshcost import symbols as sym
from meshcost.clusters import Cluster, read_cluster
from meshcost.collectives import DEFAULTS, choose
from meshcost.errors import JobError, MeshcostError
from meshcost.event import Event
from meshcost.formula import Values
from meshcost.layout import Parallel
from meshcost.ledger import Ledger
from meshcost.mesh import Mesh
from meshcost.models import Model, freeze, lora, read_model, unfused
from meshcost.price import Pricer
from meshcost.program import Program
from meshcost.schedule import Schedule
from meshcost.strategies import (
    Batch,
    Options,
    Precision,
    Recompute,
    Scalars,
    Setting,
    View,
    events,
)
from meshcost.strategies.expert.options import routed_experts
from meshcost.strategies.numbers import numbers
from meshcost.strategies.setting import Size
from meshcost.strategies.torch_options import TorchOptions

Framework = Literal["textbook", "torch"]

#: No file may ask for more micro-batches than this.
MOST_MICRO_BATCHES = 2**20


#: How fields could be written, for those who left one out or wrote something of another kind.
_EXAMPLES = {
    "parallel": "parallel: {data: 8, tensor: 2}",
    "parallel.order": "order: [tensor, context, data, pipeline]",
    "parallel.pipeline.layers_per_stage": "layers_per_stage: [7, 9, 9, 7]",
    "precision": "precision: {weights: bf16, reduce: fp32}",
    "freeze": 'freeze: ["model.layers.[0-9].*"]',
    "lora": "lora: {rank: 16, targets: [q_proj, v_proj]}",
    "lora.targets": "targets: [q_proj, v_proj]",
    "algorithms": "algorithms: {all_reduce: tree}",
    "scalars": "scalars: {gradient_norm: true, loss: true}",
    "torch": "torch: {bucket_cap_mb: 25}",
    "cluster": "cluster: h100-dgx, or as cluster: {gpus_per_node: 8}",
    "model": "model: llama-3.1-8b",
    "batch": "batch: {sequence: 8192, micro_batch: 1, global_batch: 64}",
    "batch.sequence": "sequence: 8192",
    "batch.global_batch": "global_batch: 64",
}


def _refuse(error: MeshcostError) -> PydanticCustomError:
    return PydanticCustomError(
        "problems", "{first}", {"first": error.problems[0], "problems": list(error.problems)}
    )


def _read_model(spec: Any, info: ValidationInfo) -> Model:
    if isinstance(spec, Model):
        return spec
    try:
        return read_model(spec, base=(info.context or {}).get("base"))
    except MeshcostError as error:
        raise _refuse(error) from None


def _read_cluster(spec: Any) -> Any:
    try:
        return read_cluster(spec) if isinstance(spec, str) else spec
    except MeshcostError as error:
        raise _refuse(error) from None


def _check_algorithms(chosen: Mapping[str, str]) -> Mapping[str, str]:
    problems: list[str] = []
    for op, name in chosen.items():
        try:
            choose(op, name)
        except MeshcostError as error:
            problems.extend(error.problems)
    if problems:
        raise _refuse(JobError(problems))
    return chosen


class Lora(Options):
    """Low-rank adapters: all weights of the model are frozen, pairs of thin matrices beside the targets are trained."""

    rank: Size
    targets: tuple[str, ...]


class Job(Options):
    """What a person writes: model, layout, batch, data types, and optionally a cluster.

    >>> job = Job(model="llama-3-8b", parallel={"data": 8}, batch={"sequence": 8192, "global_batch": 8})
    >>> job.world_size
    8
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, defer_build=True)

    model: Annotated[
        Any,
        PlainValidator(_read_model),
        WithJsonSchema(
            {
                "description": "catalogue name, path to a Hugging Face config.json, or its fields",
                "anyOf": [{"type": "string"}, {"type": "object"}],
            }
        ),
    ]
    framework: Framework = "textbook"
    parallel: Parallel = Parallel()
    batch: Batch
    precision: Precision = Precision()
    recompute: Recompute = "none"
    freeze: Annotated[
        tuple[str, ...],
        Field(
            description="patterns of names of weights without gradients, as of a shell: * for anything, ?, [0-9]"
        ),
    ] = ()
    lora: Lora | None = None
    algorithms: Annotated[
        Mapping[Literal[tuple(DEFAULTS)], str],  # type: ignore[valid-type]
        AfterValidator(_check_algorithms),
    ] = Field(default_factory=dict)
    scalars: Scalars = Scalars()
    torch: TorchOptions = TorchOptions()
    cluster: Annotated[Cluster, BeforeValidator(_read_cluster)] = Cluster()

    def __init__(self, /, **fields: Any) -> None:
        """Check all fields; raises JobError with every problem at once."""
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise JobError(document.sentences(error, Job, _EXAMPLES)) from None
        problems = list(self._problems())
        if problems:
            raise JobError(problems)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.mesh.world_size

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> "Job":
        """Build the job anew with other fields, checked as if it were written so.

        What Pydantic would do keeps the mesh and the program of the old job, and with them its bill. Everything in a job is
        frozen, so that there is nothing to copy deeply. Raises JobError with every problem.

        >>> job = Job(model="llama-3-8b", parallel={"data": 8}, batch={"sequence": 8192, "global_batch": 8})
        >>> job.model_copy(update={"parallel": {"data": 4}}).world_size
        4
        """
        return Job(**{name: getattr(self, name) for name in self.model_fields_set} | dict(update or {}))

    @cached_property
    def setting(self) -> Setting:
        """What was asked for, with the model as it will be trained."""
        return Setting(
            model=self._trained_model,
            parallel=self.parallel.strategies,
            order=self.parallel.axes,
            batch=self.batch,
            precision=self.precision,
            recompute=self.recompute,
            torch=self.torch,
            framework=self.framework,
        )

    @cached_property
    def _trained_model(self) -> Model:
        model: Model = self.model
        if self.freeze:
            model = freeze(model, self.freeze)
        if self.lora is not None:
            model = lora(model, self.lora.rank, self.lora.targets)
        if self.framework == "torch" and not self.torch.fused_experts:
            model = unfused(model)
        multiple = self.parallel.pad_vocabulary
        if multiple is not None and sym.V in model.dims:
            step = multiple * self.parallel.tensor.size
            model = replace(model, dims={**model.dims, sym.V: -(-model.dims[sym.V] // step) * step})
        return model

    def _problems(self) -> Iterator[str]:
        try:
            setting = self.setting
        except MeshcostError as error:
            yield from (f"model: {problem}" for problem in error.problems)
            return
        found = list(self.parallel.problems())
        for strategy in setting.parallel.values():
            found.extend(strategy.problems(setting))
        if self.framework == "torch":
            from meshcost.strategies.data.flat_rules import trained_problems
            from meshcost.strategies.torch_rules import torch_problems

            found.extend(torch_problems(setting))
            if not found:
                found.extend(trained_problems(setting, self.program.units))
        yield from found
        if not found and self.micro_batches > MOST_MICRO_BATCHES:
            yield f"batch: {self.micro_batches} micro-batches are more than {MOST_MICRO_BATCHES}, the most computed here."

    @property
    def warnings(self) -> tuple[str, ...]:
        """What can be done, but is hardly meant."""
        from meshcost.strategies.warnings import warnings

        return tuple(warnings(View(self.setting, self.mesh, self.program, self.values)))

    def in_one_dtype(self) -> "Job":
        """The same job with everything in the data type of its weights, as formulas in papers count elements."""
        return self.model_copy(update={"precision": Precision(weights=self.precision.weights)})

    @property
    def micro_batches(self) -> int:
        """Micro-batches that one rank computes in a step."""
        return self.batch.global_batch // (self.batch.micro_batch * self.setting.batch_ranks)

    @cached_property
    def mesh(self) -> Mesh:
        """Ranks along the axes of this layout."""
        strategies, data = self.parallel.strategies, self.parallel.data
        axes: dict[str, int] = {}
        for axis in self.parallel.axes:
            axes[axis] = strategies[axis].size
            if axis == "data":
                axes |= {"data": data.size // data.replicate, "replicate": data.replicate}
        return Mesh(axes, self._expert_axes, self.cluster.gpus_per_node)

    @property
    def _expert_axes(self) -> dict[str, int] | None:
        setting = self.setting
        if not setting.experts_apart or not routed_experts(setting.model):
            return None
        taken, replicas = setting.size("expert") * setting.expert_tensor, self.parallel.data.replicate
        return {
            "expert_tensor": setting.expert_tensor,
            "expert": setting.size("expert"),
            "expert_data": setting.ranks_in_stage // taken // replicas,
            "expert_replicate": replicas,
        }

    @cached_property
    def program(self) -> Program:
        """What each stage computes, in order."""
        pipeline, model = self.parallel.pipeline, self.setting.model
        schedule = Schedule(pipeline.schedule, pipeline.size, pipeline.chunk_count, self.micro_batches)
        units, first = [], 0
        for number in pipeline.layers(model.layers):
            units.append(model.runs(first, first + number))
            first += number
        units[0] = (("embedding", 1), *units[0])
        units[-1] = (*units[-1], ("head", 1))
        plain = Program(schedule, tuple(units))
        if self.framework == "torch":
            from meshcost.strategies.data.torch_steps import torch_program

            return torch_program(View(self.setting, self.mesh, plain, self.values))
        return plain

    @cached_property
    def values(self) -> Values:
        """The number of every symbol that holds for the whole job."""
        return numbers(self.setting, self.mesh, self.parallel.pipeline.chunk_count, self.micro_batches)


def load(path: str | Path, **changes: Any) -> Job:
    """Read a job file. ``changes`` replace top-level fields, as ``framework="textbook"``.

    A path to a config.json in it is relative to the file; ``-`` reads standard input, where paths are relative to the
    working directory. Raises JobError or ModelError with every problem, each beginning with the name of the file.
    """
    path = Path(path)
    where = "standard input" if str(path) == "-" else str(path)
    text = (
        files.read_stream(where)
        if str(path) == "-"
        else files.read_text(path, where_from="meshcost init writes one to start from.")
    )
    try:
        return read_job(plain_yaml.parse(text), base=path.parent, **changes)
    except MeshcostError as error:
        raise error.located(where) from None


def read_job(data: Any, *, base: Path | None = None, **changes: Any) -> Job:
    """Check a job that is already plain data; ``base`` is the folder that paths in it start from.

    Raises JobError with every problem.
    """
    if data is None:
        raise JobError(
            "empty: a job is a mapping of fields (model, parallel, batch ...). meshcost init writes one."
        )
    if not isinstance(data, dict):
        raise JobError("a job is a mapping of fields (model, parallel, batch ...). meshcost init writes one.")
    if {"meshcost", "events"} <= data.keys():
        raise JobError(
            "a saved bill, not a job: analyze, explain, calls and compare read it where its name ends in .json, and in "
            "Python Ledger.from_json does."
        )
    fields = {**data, **changes}
    if base is not None and isinstance(fields.get("model"), str):
        fields["model"] = _from_base(fields["model"], base, ".json")
    if base is not None and isinstance(fields.get("cluster"), str) and "cluster" not in changes:
        fields["cluster"] = _from_base(fields["cluster"], base, ".yaml", ".yml")
    return Job(**{str(key): value for key, value in fields.items()})


def _from_base(spec: str, base: Path, *endings: str) -> str:
    return str(base / spec) if spec.endswith(endings) else spec


def analyze(job: Job | str | Path) -> Ledger:
    """Write the bill of one training step: of a job, or of the job file at a path.

    >>> job = Job(model="llama-3-8b", parallel={"data": 8}, batch={"sequence": 8192, "global_batch": 8})
    >>> ledger = analyze(job)
    >>> ledger.events[0].op, ledger.events[0].payload_bytes, ledger.events[0].priced.sent_bytes
    ('all_reduce', 16060522496, 28105914368)
    """
    job = job if isinstance(job, Job) else load(job)
    view = View(job.setting, job.mesh, job.program, job.values)
    pricer = Pricer(job.mesh, job.algorithms)
    strategies = (*job.setting.parallel.values(), job.scalars)
    written = (event for strategy in strategies for event in events(strategy, view, job.framework))
    priced = tuple(pricer.price(event, _ranks(event, view)) for event in written)
    return Ledger(priced, job.mesh, job.program, about=_about(job))


def _ranks(event: Event, view: View) -> Expr:
    return Integer(event.group_size) if event.pairs or event.split else view.axis(*event.axes)


def _about(job: Job) -> dict[str, Any]:
    model = job.setting.model
    return {
        "model": model.name,
        "weights": model.weights_total,
        "framework": job.framework,
        "sequence": job.batch.sequence,
        "micro_batch": job.batch.micro_batch,
        "global_batch": job.batch.global_batch,
        "micro_batches": job.micro_batches,
        "cluster": job.cluster.name if "cluster" in job.model_fields_set else None,
    }
