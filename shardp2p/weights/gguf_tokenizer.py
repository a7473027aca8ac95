"""The tokenizer of a GGUF file as tokenizer.json and tokenizer_config.json.

The JSON is written here rather than by the tokenizers package, so that every version of it gives the same bytes and
two peers that import the same file hold the same model. Format: https://huggingface.co/docs/tokenizers; which split
belongs to which `tokenizer.ggml.pre`: llama.cpp, src/llama-vocab.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardp2p.errors import ConfigError, IntegrityError

_CONTROL, _USER_DEFINED = 3, 4
_LLAMA3_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3_SPLIT = _LLAMA3_WORDS + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _byte_level(*, split_words: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": split_words}


_PRE_TOKENIZERS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "smollm": ({"type": "Digits", "individual_digits": True}, _byte_level(split_words=True)),
    "gpt-2": (_byte_level(split_words=True),),
    "llama-bpe": (
        {"type": "Split", "pattern": {"Regex": _LLAMA3_SPLIT}, "behavior": "Isolated", "invert": False},
        _byte_level(split_words=False),
    ),
}
"""How text is cut before merging, by the name in `tokenizer.ggml.pre`. A wrong cut gives wrong tokens silently."""

Metadata = Mapping[str, Any]
"""The key-value fields of a GGUF file."""


def check_tokenizer(metadata: Metadata) -> None:
    """Raise ConfigError with the reason if the tokenizer cannot be converted, IntegrityError if it is damaged."""
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2":
        raise ConfigError(f"the GGUF file has a tokenizer of kind {kind!r}; only gpt2 can be converted")
    if pre not in _PRE_TOKENIZERS:
        known = ", ".join(sorted(_PRE_TOKENIZERS))
        raise ConfigError(f"the GGUF file splits text by {pre!r}, which is not known here (known: {known})")
    tokens, types = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    merges = metadata.get("tokenizer.ggml.merges")
    if not (isinstance(tokens, list) and isinstance(types, list) and isinstance(merges, list)):
        raise IntegrityError("the GGUF file lacks the tokens, token types or merges of its tokenizer")
    known_tokens = set(tokens)
    if len(tokens) != len(types) or len(known_tokens) != len(tokens):
        raise IntegrityError("the GGUF file's tokens are repeated or do not fit their types")
    for merge in merges:
        left, _, right = str(merge).partition(" ")
        if not (left in known_tokens and right in known_tokens and left + right in known_tokens):
            raise IntegrityError(f"the GGUF file merges {str(merge)[:40]!r}, which are no tokens of its vocabulary")
    for role in ("bos", "eos", "padding", "unknown"):
        token_id = metadata.get(f"tokenizer.ggml.{role}_token_id")
        if token_id is not None and not 0 <= token_id < len(tokens):
            raise IntegrityError(f"the GGUF file's {role} token {token_id} is outside its vocabulary")


def tokenizer_json(metadata: Metadata) -> dict[str, Any]:
    """The content of tokenizer.json, for metadata that `check_tokenizer` accepts."""
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    pre = metadata["tokenizer.ggml.pre"]
    steps = [dict(step) for step in _PRE_TOKENIZERS[pre]]
    added = [
        _added_token(token_id, text, is_special=kind == _CONTROL)
        for token_id, (text, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": _post_processor(metadata),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre == "llama-bpe",
            "vocab": {text: token_id for token_id, text in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in metadata["tokenizer.ggml.merges"]],
        },
    }


def tokenizer_config(metadata: Metadata, context_tokens: int) -> dict[str, Any]:
    """The content of tokenizer_config.json, the chat template included where there is one."""
    tokens = metadata["tokenizer.ggml.tokens"]
    named = {
        f"{name}_token": tokens[metadata[key]]
        for name, key in (
            ("bos", "tokenizer.ggml.bos_token_id"),
            ("eos", "tokenizer.ggml.eos_token_id"),
            ("pad", "tokenizer.ggml.padding_token_id"),
            ("unk", "tokenizer.ggml.unknown_token_id"),
        )
        if metadata.get(key) is not None
    }
    template = metadata.get("tokenizer.chat_template")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        **({} if template is None else {"chat_template": template}),
        "model_max_length": context_tokens,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
    }


def _added_token(token_id: int, text: str, *, is_special: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token_id, "content": text, **flags, "special": is_special}


def _post_processor(metadata: Metadata) -> dict[str, Any] | None:
    """Puts the begin token before a text, where the file says so or its kind of tokenizer does so by default."""
    adds_begin = metadata.get("tokenizer.ggml.add_bos_token", metadata["tokenizer.ggml.pre"] == "llama-bpe")
    begin_id = metadata.get("tokenizer.ggml.bos_token_id")
    if not adds_begin or begin_id is None:
        return None
    begin = metadata["tokenizer.ggml.tokens"][begin_id]
    special = {"SpecialToken": {"id": begin, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [special, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [special, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {begin: {"id": begin, "ids": [begin_id], "tokens": [begin]}},
    }
