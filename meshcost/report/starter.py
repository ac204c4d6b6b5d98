"""The job file that ``meshcost init`` writes: small enough to run, with every option beside it in one line."""

#: A job that can be analyzed as it stands. A test holds it against the options that strategies have.
JOB = """\
# A job: what is trained, how it is split, and on what. Read the bill with: meshcost analyze {path}
# Editors complete this file from the output of: meshcost schema

model: llama-3.1-8b            # a name from `meshcost models`, or the path to a Hugging Face config.json
# model: {{model_type: llama, hidden_size: 256, ...}}   # or the fields of such a file, written here

# framework: torch             # whose calls: textbook (what the papers say, the default) or torch (what PyTorch calls)
# torch: {{bucket_cap_mb: 25}}   # under framework: torch, what PyTorch's wrappers are told; docs/torch.md lists all of it

parallel:                      # an axis that is left out has size 1; `tensor: 8` is short for `tensor: {{size: 8}}`

  data:                        # every rank trains on its own part of the batch
    strategy: fsdp             # ddp | zero1 | zero2 | zero3 | fsdp: what is sharded
    size: 4                    # data ranks in all, copies included
    # replicate: 2             # HSDP: so many whole copies, each sharded over size / replicate ranks: here 4 / 2
    # gradient_sync: last_micro_batch   # or every_micro_batch: when gradients are reduced
    # reshard_after_forward: false      # zero3, fsdp: keep gathered weights until their backward pass
    # gather: once             # zero3, fsdp: keep gathered weights for the whole step (or every_micro_batch)

  tensor:                      # every weight matrix is split
    size: 2
    sequence_parallel: true    # activations between matrices are split along the sequence
    # vocabulary_parallel: true         # false: embedding and head are whole on every rank
    # loss_parallel: true      # false: logits are collected before the loss

  # pipeline:                  # every stage holds some of the blocks
  #   size: 4
  #   schedule: 1f1b           # or gpipe | interleaved_1f1b | zb_h1 | zb_h2 | interleaved_zb | zbv | dualpipev | dualpipe
  #   chunks: 2                # model chunks on each rank, with an interleaved schedule
  #   layers_per_stage: [7, 9, 9, 7]    # uneven stages: blocks of each, in model order
  #   scatter_gather: true     # send 1/t of what all tensor ranks hold, and collect it on the other side

  # context:                   # every rank holds a part of each sequence
  #   size: 2
  #   method: ring             # ring | all_gather | ulysses
  #   replicate_kv_heads: true # ulysses: copy key and value heads where there are fewer of them than ranks

  # expert:                    # routed experts live on different ranks, carved out of tensor x context x data
  #   size: 8
  #   expert_tensor: 1         # ranks that split one expert; by default as many as tensor
  #   capacity_factor: 1.25    # every expert takes equally many tokens, padded; without it nothing is dropped
  #   imbalance: 1.1           # how many times the mean the busiest rank sends; 1 is perfectly even

  # order: [tensor, context, data, pipeline]   # axes in the rank number, innermost first: who shares a node
  # pad_vocabulary: 128        # pad the vocabulary to a multiple of this times tensor (Megatron)

batch:
  sequence: 8192               # tokens of one sequence
  micro_batch: 1               # sequences that one data rank computes at a time
  global_batch: 32             # sequences of one step, over all ranks

precision:                     # bf16 | fp16 | fp32 | tf32 | fp64 | fp8 | fp8_block128 | int8
  weights: bf16
  # gradients: fp32            # as they are kept; by default as weights
  # reduce: fp32               # as they travel; by default as gradients
  # activations: bf16          # by default as weights
  # dispatch: fp8_block128     # what experts are sent; by default as activations
  # combine: bf16              # what they return; by default as activations

# recompute: full              # none | selective | full: activations computed again in backward
# freeze: ["model.layers.[0-9].*"]      # weights without gradients: patterns of names, as of a shell (* ? [0-9])
# lora: {{rank: 16, targets: [q_proj, v_proj]}}   # train low-rank adapters only
# algorithms: {{all_reduce: tree}}       # by default all_reduce, all_gather, reduce_scatter: ring; all_to_all: pairwise
# scalars: {{gradient_norm: true, loss: true, at_start: [int64], at_end: [fp32]}}    # the small sums of every step

cluster: h100-dgx              # a name from the catalogue, or: {{gpus_per_node: 8}}
"""


def job_text(path: str) -> str:
    """The commented job file, with its own name in it."""
    return JOB.format(path=path)
