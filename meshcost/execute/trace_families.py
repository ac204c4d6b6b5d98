"""Families of which trace has a PyTorch model. Knows no torch."""

BUILT_FAMILIES = (
    "deepseek_v2", "deepseek_v3", "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3",
)  # fmt: skip
