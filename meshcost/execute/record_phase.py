"""Where a step is: phase, step, micro-batch and module, told by hooks while someone else's code runs.

Nothing of that code is changed: global hooks of torch.optim, and a few functions of torch that are wrapped while a
recording lasts and put back after it. A wrap whose function does not exist in this version of torch is left out.
"""

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer

from meshcost.execute import recording as rec

_CLIP = "torch.nn.utils.clip_grad"
_STAGE = ("torch.distributed.pipelining.stage", "_PipelineStageBase")
_SCHEDULES = "torch.distributed.pipelining.schedules"
_UNIT = ("torch.distributed.fsdp._fully_shard._fsdp_param_group", "FSDPParamGroup")
_FLAT = ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel")

_MARK = "meshcost"


class Where:
    """The place in the step, kept up to date by hooks between ``watch`` and its end."""

    def __init__(self) -> None:
        """Begin before the first forward pass."""
        self.phase = rec.SETUP
        self.step = 0
        self.micro_batch = 0
        self.messages: dict[int, tuple[str, int]] = {}
        self._modules: list[str] = []
        self._names: weakref.WeakKeyDictionary[nn.Module, dict[int, str]] = weakref.WeakKeyDictionary()
        self._roots: dict[int, str] = {}
        self._backwards = 0
        self._in_backward = ""
        self._had_backward = False
        self._steps_open = 0
        self._stepped = False
        self._has_modules = self._has_backwards = False
        #: Whether an optimizer has stepped, so that there is more than one step, or could be.
        self.saw_step = False
        self._chunks: list[int] = []
        self._schedules = 0
        self.on_root: Callable[[nn.Module], None] | None = None

    @property
    def module(self) -> str:
        """Full name of the module that runs, forward or backward; "" for the root, or outside of all."""
        if self.phase in (rec.CLIP, rec.OPTIMIZER):
            return ""
        return self._modules[-1] if self._modules else self._in_backward if self._backwards else ""

    @property
    def current_micro_batch(self) -> int | None:
        """Micro-batch that is computed: told by a pipeline stage, or counted; None outside of the passes."""
        if self._chunks:
            return self._chunks[-1]
        return self.micro_batch if self.phase in (rec.FORWARD, rec.BACKWARD) else None

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Install all hooks, and take them away again whatever happens."""
        undo: list[Callable[[], object]] = []
        try:
            undo += [
                torch_optimizer.register_optimizer_step_pre_hook(self._step_begins).remove,
                torch_optimizer.register_optimizer_step_post_hook(self._step_ends).remove,
            ]
            undo += self._wraps()
            yield
        finally:
            for restore in reversed(undo):
                restore()

    # -- forward -----------------------------------------------------------------------------------------------------

    def _call(self, original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Run a module with all its hooks, which are where DTensor and fully_shard communicate."""
        if not self._backwards and not self._modules:
            self._new_pass()
            self._has_modules = True
            if self.on_root is not None:
                self.on_root(module)
            self._roots = self._names_of(module)
        name = self._roots.get(id(module), type(module).__name__)
        self._modules.append(name)
        try:
            result = original(module, *args, **kwargs)
        finally:
            self._modules.pop()
        for tensor in _tensors(result):
            node: Any = tensor.grad_fn
            # A module that hands on what another inside it made has no node of its own.
            if node is not None and _MARK not in node.metadata:
                node.metadata[_MARK] = name
                node.register_prehook(functools.partial(self._reached, name))
        return result

    def _new_pass(self) -> None:
        """A forward pass of the root: of the next step after the optimizer, of the next micro-batch after a backward."""
        if self._stepped:
            self.step, self.micro_batch, self._stepped, self._had_backward = self.step + 1, 0, False, False
        elif self._had_backward and not self._schedules:
            self.micro_batch, self._had_backward = self.micro_batch + 1, False
        self.phase = rec.FORWARD

    def _names_of(self, root: nn.Module) -> dict[int, str]:
        if root not in self._names:
            self._names[root] = {id(module): _clean(name) for name, module in root.named_modules()}
        return self._names[root]

    def _reached(self, name: str, _gradients: Any) -> None:
        self._in_backward = name

    # -- backward, clipping, optimizer -------------------------------------------------------------------------------

    def _backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._backwards += 1
        self._had_backward = self._has_backwards = True
        outer, self.phase = self.phase, rec.BACKWARD
        try:
            return original(*args, **kwargs)
        finally:
            self._backwards -= 1
            if self._backwards:
                self.phase = outer

    def _clip(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._steps_open:
            self.phase = rec.CLIP
        return original(*args, **kwargs)

    def _step_begins(self, *_: Any) -> None:
        self._steps_open += 1
        self.phase = rec.OPTIMIZER

    def _step_ends(self, *_: Any) -> None:
        self._steps_open -= 1
        if not self._steps_open:
            self._stepped = self.saw_step = True
            self.messages.clear()
            # Without any module, nothing tells when the next forward pass begins: it is taken to begin here. Of several
            # optimizers after one backward, the first ends the step.
            if not self._has_modules and (self._had_backward or not self._has_backwards):
                self._new_pass()

    # -- pipeline stages and units of fully_shard --------------------------------------------------------------------

    def _schedule(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A schedule begins a step: before any forward pass, stages may agree on shapes and receive."""
        self._new_pass()
        self._schedules += 1
        try:
            return original(*args, **kwargs)
        finally:
            self._schedules -= 1

    def _chunk(self, original: Callable[..., Any], stage: Any, number: int, *args: Any, **kwargs: Any) -> Any:
        self._chunks.append(number)
        try:
            return original(stage, number, *args, **kwargs)
        finally:
            self._chunks.pop()

    def _message(
        self, phase: str, original: Callable[..., Any], stage: Any, number: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Remember which tensors a stage is about to send or receive, and in which direction of the model."""
        made = original(stage, number, *args, **kwargs)
        self.messages.update({id(message.tensor): (phase, number) for message in made})
        return made

    def _unit(self, original: Callable[..., Any], unit: Any, *args: Any, **kwargs: Any) -> Any:
        self._modules.append(_clean(getattr(unit, "_module_fqn", None) or ""))
        try:
            return original(unit, *args, **kwargs)
        finally:
            self._modules.pop()

    def _wraps(self) -> list[Callable[[], object]]:
        table: list[tuple[str, str, str, Callable[..., Any]]] = [
            ("torch.nn.modules.module", "Module", "__call__", self._call),
            ("torch.autograd", "", "_engine_run_backward", self._backward),
            *((_CLIP, "", name, self._clip) for name in ("_get_total_norm", "_clip_grads_with_norm_")),
            (*_FLAT, "clip_grad_norm_", self._clip),
            *((_SCHEDULES, f"PipelineSchedule{kind}", "step", self._schedule) for kind in ("Single", "Multi")),
            *((*_STAGE, name, self._chunk) for name in (
                "forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk",
            )),
            *((*_STAGE, f"get_fwd_{way}_ops", functools.partial(self._message, rec.FORWARD)) for way in ("send", "recv")),
            *((*_STAGE, f"get_bwd_{way}_ops", functools.partial(self._message, rec.BACKWARD)) for way in ("send", "recv")),
            *((*_UNIT, name, self._unit) for name in ("unshard", "post_backward")),
        ]  # fmt: skip
        return [undo for row in table if (undo := _wrap(*row)) is not None]


def _wrap(home: str, owner: str, name: str, around: Callable[..., Any]) -> Callable[[], object] | None:
    """Put ``around(original, ...)`` in place of a function; returns how to put the original back."""
    try:
        place: Any = import_module(home)
        place = getattr(place, owner) if owner else place
        original = place.__dict__[name]
    except (ImportError, AttributeError, KeyError):
        return None

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(place, name, wrapped)
    return functools.partial(setattr, place, name, original)


def _clean(name: str) -> str:
    """Drop what wrappers put into a name.

    >>> _clean("module._checkpoint_wrapped_module.layers.0")
    'layers.0'
    """
    dropped = {"module", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_orig_mod"}
    return ".".join(part for part in name.split(".") if part not in dropped)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
