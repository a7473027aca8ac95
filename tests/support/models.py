"""Models for tests: tiny random checkpoints made on the spot, and the real demo model, imported once per machine."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from shardp2p.errors import ShardError
from shardp2p.weights.store import ModelStore

if TYPE_CHECKING:
    import torch

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_llama(
    directory: Path,
    *,
    layers: int = 6,
    seed: int = 0,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    context_tokens: int = 512,
    tied: bool = True,
    dtype: torch.dtype | None = None,
    max_shard_bytes: int | None = None,
) -> Path:
    """A random llama checkpoint with a byte-level tokenizer in `directory`, which is made; returns `directory`.

    The vocabulary has 259 tokens: <|endoftext|> 0, <|im_start|> 1, <|im_end|> 2 (end of sequence), then the bytes.
    The weights are large enough for decided argmaxes. `max_shard_bytes` splits the weights into several files.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=259,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=context_tokens,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        initializer_range=0.2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    torch.nn.Module.to(model, dtype=dtype or torch.float32)
    model.save_pretrained(directory, max_shard_size=max_shard_bytes or 2**40)
    _write_byte_tokenizer(directory, context_tokens)
    return directory


def tiny_gguf(path: Path, checkpoint: Path, *, quantisation: str = "F32", **metadata: Any) -> Path:
    """The tiny llama in `checkpoint` as llama.cpp's converter would write it to `path`; returns `path`.

    Matrices are quantised as `quantisation` says (F32, Q8_0, Q4_1, …), norms stay float32. `metadata` adds fields or
    replaces them, with "__" for each dot in their names; None leaves a field out.
    """
    import gguf
    from gguf.quants import quantize
    from safetensors.numpy import load_file

    config = json.loads((checkpoint / "config.json").read_text())
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    fields = _gguf_fields(config, json.loads((checkpoint / "tokenizer.json").read_text()))
    fields.update({name.replace("__", "."): value for name, value in metadata.items()})
    writer = gguf.GGUFWriter(path, str(fields.pop("general.architecture")))
    for name, value in fields.items():
        _add_field(writer, name, value)
    for name, loaded in load_file(checkpoint / "model.safetensors").items():
        part, tensor = name.split(".")[-2], loaded
        if part in heads:
            tensor = loaded.reshape(heads[part], 2, -1, loaded.shape[-1]).swapaxes(1, 2).reshape(loaded.shape)
        kind = gguf.GGMLQuantizationType[quantisation if tensor.ndim == 2 else "F32"]
        writer.add_tensor(_gguf_name(name), quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@functools.cache
def smollm2_directory() -> Path:
    """The demo model's Hugging Face directory in the default data directory, imported once per machine."""
    store = ModelStore(platformdirs.user_data_path("shardp2p") / "models")
    try:
        return store.resolve("smollm2").directory
    except ShardError:
        return store.import_model("smollm2").directory


def _gguf_name(name: str) -> str:
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    parts = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    stem = name.removesuffix(".weight")
    if stem in top:
        return f"{top[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{parts[part]}.weight"


def _gguf_fields(config: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    # One merge needs one more token; it takes the place of a byte that no UTF-8 text has.
    vocabulary = tokenizer["model"]["vocab"]
    tokens = ["12" if token == "À" else token for token in sorted(vocabulary, key=vocabulary.get)]
    return {
        "general.architecture": "llama",
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": config["rope_parameters"]["rope_theta"],
        "llama.rope.dimension_count": config["head_dim"],
        "llama.vocab_size": config["vocab_size"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": ["1 2"],
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.ggml.padding_token_id": config["pad_token_id"],
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _add_field(writer: Any, name: str, value: Any) -> None:
    match value:
        case None:
            return
        case bool():
            writer.add_bool(name, value)
        case int():
            writer.add_uint32(name, value)
        case float():
            writer.add_float32(name, value)
        case str():
            writer.add_string(name, value)
        case _:
            writer.add_array(name, value)


def _write_byte_tokenizer(directory: Path, context_tokens: int) -> None:
    """A tokenizer whose tokens are single bytes, so that any text has a round trip."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(specials + alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": specials[1],
        "eos_token": specials[2],
        "pad_token": specials[2],
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": context_tokens,
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
