"""Table of contents: the `model_type` of a configuration, and who builds it. A new family is one file and a line."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from meshcost.models.families.bert import bert
from meshcost.models.families.bloom import bloom
from meshcost.models.families.cohere import cohere
from meshcost.models.families.dbrx import dbrx
from meshcost.models.families.deepseek import deepseek_v2, deepseek_v3
from meshcost.models.families.falcon import falcon
from meshcost.models.families.gemma import gemma, gemma2, gemma3
from meshcost.models.families.glm import glm4_moe
from meshcost.models.families.gpt2 import gpt2
from meshcost.models.families.gpt_neox import gpt_neox
from meshcost.models.families.gpt_oss import gpt_oss
from meshcost.models.families.gptj import gptj
from meshcost.models.families.llama import llama, mistral, qwen2, qwen3, smollm3
from meshcost.models.families.llama4 import llama4
from meshcost.models.families.mixtral import mixtral
from meshcost.models.families.mpt import mpt
from meshcost.models.families.olmo import olmo2, olmoe
from meshcost.models.families.opt import opt
from meshcost.models.families.phi import phi
from meshcost.models.families.phi3 import phi3
from meshcost.models.families.qwen_moe import qwen2_moe, qwen3_moe
from meshcost.models.fields import Fields
from meshcost.models.model import Model

FAMILIES: Mapping[str, Callable[[Fields], Model]] = MappingProxyType(
    {
        "bert": bert,
        "bloom": bloom,
        "cohere": cohere,
        "dbrx": dbrx,
        "deepseek_v2": deepseek_v2,
        "deepseek_v3": deepseek_v3,
        "falcon": falcon,
        "gemma": gemma,
        "gemma2": gemma2,
        "gemma3_text": gemma3,
        "glm4_moe": glm4_moe,
        "gpt2": gpt2,
        "gpt_neox": gpt_neox,
        "gpt_oss": gpt_oss,
        "gptj": gptj,
        "llama": llama,
        "llama4_text": llama4,
        "mistral": mistral,
        "mixtral": mixtral,
        "mpt": mpt,
        "olmo2": olmo2,
        "olmoe": olmoe,
        "opt": opt,
        "phi": phi,
        "phi3": phi3,
        "qwen2": qwen2,
        "qwen2_moe": qwen2_moe,
        "qwen3": qwen3,
        "qwen3_moe": qwen3_moe,
        "smollm3": smollm3,
    }
)

# Configurations of models with more than text: their text tower, under "text_config", is one of ours.
TEXT_TOWERS: Mapping[str, str] = MappingProxyType({"gemma3": "gemma3_text", "llama4": "llama4_text"})
