"""Tiny random checkpoints of every architecture that the project claims to split, and of some that it must refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY = 320
WINDOW = 8
"""The sliding window where there is one: short, so that a test text exceeds it."""

_MOE = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
_DEEPSEEK = _MOE | {
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_ALTERNATING = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}

SETTINGS: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {"use_sliding_window": False},
    "qwen3": {"head_dim": 16, "tie_word_embeddings": True},
    "qwen3_moe": _MOE | {"head_dim": 16, "num_experts": 8, "decoder_sparse_step": 1},
    "gemma2": _ALTERNATING | {"head_dim": 16, "query_pre_attn_scalar": 16},
    "gemma3_text": _ALTERNATING | {"head_dim": 16, "query_pre_attn_scalar": 16},
    "gpt_oss": _ALTERNATING | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "mistral": {"sliding_window": WINDOW},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "glm4_moe": _MOE | {"head_dim": 16, "n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK | {"index_n_heads": 32, "index_head_dim": 16, "index_topk": 8},
    "minimax_m2": {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 8},
    "smollm3": {"use_sliding_window": False, "no_rope_layer_interval": 3},
    "olmo3": _ALTERNATING,
    "phi3": {"sliding_window": WINDOW},
    "granitemoe": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "embedding_multiplier": 6.0,
        "logits_scaling": 4.0,
    },
    "cohere2": _ALTERNATING | {"logit_scale": 0.25},
}
ARCHITECTURES = tuple(SETTINGS)

UNSPLITTABLE: dict[str, dict[str, Any]] = {
    "qwen3_next": {"head_dim": 16, "layer_types": ["linear_attention", "full_attention"]},
    "mamba": {},
    "gpt2": {},
    "t5": {},
    "nanochat": {"head_dim": 16},
}


def make_config(architecture: str, layers: int = 6) -> Any:
    """The configuration of a tiny model of `architecture`."""
    settings = (SETTINGS | UNSPLITTABLE)[architecture]
    shared = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "initializer_range": 0.1,
    }
    merged = shared | settings
    if "layer_types" in merged:
        kinds = merged["layer_types"]
        merged["layer_types"] = [kinds[layer % len(kinds)] for layer in range(layers)]
    return AutoConfig.for_model(architecture, **merged)


def make_checkpoint(
    architecture: str, directory: Path, layers: int = 6, seed: int = 0, max_shard_bytes: int | None = None
) -> Path:
    """A random float32 checkpoint of `architecture` in `directory`, which is made; returns `directory`."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(make_config(architecture, layers), dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                # Norms, biases and sinks start as constants that would hide a mix-up.
                if parameter.ndim == 1:
                    parameter.add_(torch.randn_like(parameter), alpha=0.1)
    sharding = {} if max_shard_bytes is None else {"max_shard_size": max_shard_bytes}
    model.save_pretrained(directory, **sharding)
    return directory
