"""Who calls which operation, when, on what and why; and one line for each trap. Words only: no formula lives here."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Use(NamedTuple):
    """One strategy's use of an operation: which strategy, when in the step, on what, and why this operation."""

    strategy: str
    when: str
    what: str
    why: str


_SEND_RECV = (
    Use(
        "pipeline",
        "forward and backward, every micro-batch",
        "activations to the next stage, their gradients back",
        "only neighbouring stages share a boundary",
    ),
    Use(
        "context (ring)",
        "forward and backward, every block",
        "keys and values go round the ring; in backward their gradients too",
        "each rank needs all keys and values, but only one piece at a time, while it computes on the last",
    ),
)
_BROADCAST = (
    Use(
        "ddp",
        "once, before the first step",
        "the weights of rank 0",
        "all replicas must start alike",
    ),
    Use(
        "tensor",
        "every micro-batch, small (Megatron)",
        "token numbers and masks",
        "one rank of the tensor group reads the data for all",
    ),
    Use(
        "zero1 (torch)",
        "once per step, after the optimizer",
        "each weight, from the rank that updated it",
        "broadcasts from each owner in turn add up to an all-gather",
    ),
)
_REDUCE = (
    Use(
        "zero1, zero2",
        "backward, in one setting of DeepSpeed",
        "a bucket of gradients, to the rank that owns it",
        "a reduce to each owner in turn adds up to a reduce-scatter",
    ),
    Use(
        "logging",
        "once per step, a few bytes",
        "the loss, to the rank that prints it",
        "nobody else needs it",
    ),
)
_ALL_REDUCE = (
    Use(
        "ddp",
        "backward, once per step",
        "all gradients: one call for all weights (textbook), or one for each bucket (torch)",
        "every replica makes the same optimizer step, so it needs the sum over all",
    ),
    Use(
        "fsdp (replicate: HSDP)",
        "backward, after the reduce-scatter",
        "each rank's shard of the gradients, over the replicas",
        "shards are summed inside one replica only; the replicas must still agree",
    ),
    Use(
        "tensor",
        "forward 2 and backward 2 per block",
        "activations, or their gradients, of the whole micro-batch",
        "each rank has multiplied a part of the weights: its result is one term of a sum",
    ),
    Use(
        "pipeline",
        "once per step, if embedding and head are tied",
        "the gradient of the shared table, between first and last stage",
        "two stages hold the same weights",
    ),
    Use(
        "every layout",
        "once per step, a few bytes",
        "gradient norm, loss",
        "every rank must scale by the same number; latency counts, bytes do not",
    ),
)
_REDUCE_SCATTER = (
    Use(
        "zero1, zero2",
        "once per step; under zero2 every micro-batch",
        "all gradients",
        "each rank updates only its shard, so it needs the sum of its shard only",
    ),
    Use(
        "zero3, fsdp",
        "backward, unit by unit",
        "the gradients of one unit",
        "each rank keeps only its shard; the full gradient is freed at once",
    ),
    Use(
        "tensor (sequence_parallel)",
        "forward 2 and backward 2 per block",
        "activations; they stay split along the sequence",
        "it is the first half of the all-reduce it replaces",
    ),
    Use(
        "context (all_gather)",
        "backward, every block",
        "gradients of keys and values",
        "the backward of an all-gather is a reduce-scatter",
    ),
)
_ALL_GATHER = (
    Use(
        "zero1, zero2",
        "once per step, after the optimizer",
        "updated weights",
        "each rank has updated its own shard, and everybody needs all of them",
    ),
    Use(
        "zero3, fsdp",
        "forward, and again in backward, unit by unit",
        "the weights of one unit",
        "weights live in shards; the full ones exist only while they are used",
    ),
    Use(
        "tensor (sequence_parallel)",
        "forward 2 and backward 2 per block (Megatron: 4)",
        "activations, back to the whole sequence",
        "it is the second half of the all-reduce; Megatron gathers inputs again to save memory",
    ),
    Use(
        "context (all_gather)",
        "forward, and again in backward, every block",
        "keys and values of the whole sequence",
        "it is simpler than the ring, and cheap where keys and values have few heads",
    ),
)
_ALL_TO_ALL = (
    Use(
        "expert",
        "tokens to their experts (dispatch), results back (combine); forward and backward",
        "each token to the ranks of its k experts, the results back to its home",
        "which token goes where is only known at run time, and each goes to a few experts only",
    ),
    Use(
        "context (ulysses)",
        "forward on Q, K, V and the output; backward the same",
        "a transpose: a piece of the sequence with all heads becomes all of it with some heads",
        "attention needs the whole sequence, but heads are independent",
    ),
)

_GATHER = (
    Use(
        "checkpoints, logging",
        "now and then, in no step of a bill",
        "each rank's part, to the one that writes",
        "only one rank opens the file",
    ),
)
_SCATTER = (
    Use(
        "loading",
        "once, before the first step",
        "each rank's part of what one rank has read",
        "only one rank opens the file",
    ),
)
_BARRIER = (
    Use(
        "checkpoints, measurements",
        "now and then, in no step of a bill",
        "nothing",
        "nobody may go on before all are ready",
    ),
)

#: By operation; the order is that of a page.
USES: Mapping[str, tuple[Use, ...]] = MappingProxyType(
    {
        "send_recv": _SEND_RECV,
        "broadcast": _BROADCAST,
        "reduce": _REDUCE,
        "all_reduce": _ALL_REDUCE,
        "reduce_scatter": _REDUCE_SCATTER,
        "all_gather": _ALL_GATHER,
        "all_to_all": _ALL_TO_ALL,
        "gather": _GATHER,
        "scatter": _SCATTER,
        "barrier": _BARRIER,
    }
)

_BUSBW = (
    "busbw is not the speed of a link: it is S / time, scaled as if each rank had sent the least possible."
)
TRAPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "send_recv": (
            "One message is counted once: sent by the sender, received by the receiver. Do not add the two.",
            "Without sequence parallelism all ranks of a tensor group send the same activations.",
        ),
        "broadcast": (
            "The payload S is sent n - 1 times in all, and the ranks do not share that work evenly.",
            "The least bytes and the least rounds are two algorithms: the ring has one, the tree the other.",
        ),
        "reduce": (
            "Only the root has the sum. What the other ranks' buffers hold afterwards is not promised.",
            "The busiest rank may be the one that receives: look at both columns.",
        ),
        "all_reduce": (
            "Payload is not what is sent: on a ring a rank sends nearly 2 S, not S.",
            _BUSBW + " Switches that add (NVLink SHARP) let it exceed the link.",
            "S counts what is reduced: gradients reduced in fp32 are twice the bytes of bf16.",
        ),
        "reduce_scatter": (
            "S is the input, the whole buffer. torch's output tensor is S / n.",
            "A rank ends with S / n but receives S (n - 1) / n on a ring: textbooks mix the two.",
            _BUSBW,
        ),
        "all_gather": (
            "S is the output, the gathered buffer. torch's input tensor is S / n: some logs print that.",
            "Frameworks pad a tensor that does not divide by n: then S is more than the weights.",
            _BUSBW,
        ),
        "all_to_all": (
            "S is one rank's whole input, and 1/n of it never leaves that rank.",
            "The numbers hold for equal chunks. Where routing is uneven, the fullest rank sets the time.",
            "Several nodes: busbw exceeds the network card, because part of the traffic stays in the node.",
        ),
        "gather": (
            "The root holds all of S: where it does not fit there, an all-gather does not help, either.",
        ),
        "scatter": ("torch takes a list of n tensors on the root, each of S / n.",),
        "barrier": (
            "It makes processes wait, not GPUs: what was started on a GPU before may still run.",
            "Its cost is latency alone: rounds count, bytes do not.",
        ),
    }
)
