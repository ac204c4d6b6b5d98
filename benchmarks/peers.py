"""Time another tool, in a fresh process: ``python peers.py NAME [REPEATS]`` prints one JSON object.

Each is called as its own documentation says, on what it can express of Llama 3.1 405B on 16,384 GPUs: tensor 8,
pipeline 16, data 128. Needs no meshcost: it runs in whatever interpreter has the tool.
"""

import json
import logging
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any

TENSOR, PIPELINE, DATA, BATCH, SEQUENCE = 8, 16, 128, 2048, 8192


def llm_analysis() -> Callable[[], Any]:
    """Import llm-analysis; return one evaluation of a training step."""
    from llm_analysis import analysis, config  # the import is what is timed

    analysis.logger.setLevel("ERROR")
    model = config.ModelConfig(
        name="llama-3.1-405b",
        num_layers=126,
        n_head=128,
        num_key_value_heads=8,
        hidden_dim=16384,
        ffn_embed_dim=53248,
        expansion_ratio=3.25,
        vocab_size=128256,
        max_seq_len=131072,
    )

    def evaluate() -> Any:
        gpu = config.get_gpu_config_by_name("h100-sxm-80gb")
        dtype = config.get_dtype_config_by_name("w16a16e16")
        layout = config.ParallelismConfig(tp_size=TENSOR, pp_size=PIPELINE, dp_size=DATA)
        return analysis.LLMAnalysis(model, gpu, dtype, layout, achieved_tflops=400).training(
            batch_size_per_gpu=1,
            gradient_accumulation_steps=BATCH // DATA,
            global_batch_size=BATCH,
            seq_len=SEQUENCE,
            total_num_tokens=10**12,
            ds_zero=analysis.DSZeRO(3),
            mlp_gated_linear_units=True,
        )

    return evaluate


def calculon() -> Callable[[], Any]:
    """Import calculon from a checkout of its repository; return one evaluation of a training step."""
    import calculon  # the import is what is timed
    from calculon.llm import Llm

    # Blocks of two matrices, without gate and grouped heads: what calculon can say of this model.
    model = {"hidden": 16384, "feedforward": 53248, "seq_size": SEQUENCE, "attn_heads": 128}
    model |= {"attn_size": 128, "num_blocks": 126}
    layout = {"tensor_par": TENSOR, "pipeline_par": PIPELINE, "data_par": DATA, "batch_size": BATCH}
    checkout = Path(calculon.__file__).parents[1]
    options = json.loads((checkout / "validation/seqsel/fig7/megatron-1T_seqsel.json").read_text())
    options |= layout | {"num_procs": TENSOR * PIPELINE * DATA, "optimizer_sharding": True}
    machine = json.loads((checkout / "systems/h100_80g_nvl8.json").read_text())
    machine["mem1"]["GiB"] = 96  # it refuses this layout by half a gibibyte; memory is not the question here

    def evaluate() -> Any:
        system, llm = calculon.System(machine), Llm(Llm.Application(model), logging.getLogger())
        llm.compile(system, Llm.Execution.from_json(options))
        llm.run(system)
        return llm.get_stats_json(False)

    return evaluate


TOOLS = {"llm-analysis": llm_analysis, "calculon": calculon}


def main(name: str, repeats: int = 7) -> None:
    """Print seconds of the import, of the first evaluation and of later ones, or ``missing`` and why."""
    marks = [process_time()]
    try:
        evaluate = TOOLS[name]()
    except (ImportError, OSError) as error:
        print(json.dumps({"missing": str(error)}))
        return
    marks.append(process_time())
    for _ in range(1 + repeats):
        evaluate()
        marks.append(process_time())
    imported, first, *warm = (after - before for before, after in pairwise(marks))
    print(json.dumps({"import": imported, "first": first, "warm": warm}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
