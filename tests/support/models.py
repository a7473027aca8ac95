"""Models for tests: tiny random checkpoints made on the spot, and the real demo model, imported once per machine."""

from __future__ import annotations

import json
from pathlib import Path

import platformdirs
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

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
    dtype: torch.dtype = torch.float32,
    max_shard_bytes: int | None = None,
) -> Path:
    """A random llama checkpoint with a byte-level tokenizer in `directory`, which is made; returns `directory`.

    The vocabulary has 259 tokens: <|endoftext|> 0, <|im_start|> 1, <|im_end|> 2 (end of sequence), then the bytes.
    The weights are large enough for decided argmaxes. `max_shard_bytes` splits the weights into several files.
    """
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
        model = LlamaForCausalLM(config).to(dtype)
    sharding = {} if max_shard_bytes is None else {"max_shard_size": max_shard_bytes}
    model.save_pretrained(directory, **sharding)
    _write_byte_tokenizer(directory, context_tokens)
    return directory


def smollm2_directory() -> Path:
    """The demo model's Hugging Face directory in the default data directory, imported on the first call."""
    return platformdirs.user_data_path("shardp2p") / "models" / "smollm2"


def _write_byte_tokenizer(directory: Path, context_tokens: int) -> None:
    """A tokenizer whose tokens are single bytes, so that any text has a round trip."""
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
