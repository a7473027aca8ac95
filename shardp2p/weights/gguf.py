"""A llama-family GGUF file as a Hugging Face directory, tensor by tensor and without torch.

What llama.cpp's convert_hf_to_gguf.py did is undone: names, the order of the rows of q and k, the float32 epsilon.
The same file gives the same bytes every time, so everyone who imports it holds the same model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardp2p.errors import ConfigError, IntegrityError
from shardp2p.weights.gguf_tokenizer import check_tokenizer, tokenizer_config, tokenizer_json
from shardp2p.weights.source import SINGLE_FILE, Progress, no_progress
from shardp2p.weights.tensor_file import write_tensors

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

_TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_PIECE_ELEMENTS = 4 * 2**20


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """The dimensions of a llama model, and the scalars its config needs."""

    layers: int
    context_tokens: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    rms_eps: float
    rope_theta: float

    def tensor_shapes(self, *, is_tied: bool) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor by its GGUF name, in the order in which they are written."""
        q_rows, kv_rows = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (self.vocabulary, self.hidden)}
        for layer in range(self.layers):
            for name, shape in (
                ("attn_norm", (self.hidden,)),
                ("attn_q", (q_rows, self.hidden)),
                ("attn_k", (kv_rows, self.hidden)),
                ("attn_v", (kv_rows, self.hidden)),
                ("attn_output", (self.hidden, q_rows)),
                ("ffn_norm", (self.hidden,)),
                ("ffn_gate", (self.intermediate, self.hidden)),
                ("ffn_up", (self.intermediate, self.hidden)),
                ("ffn_down", (self.hidden, self.intermediate)),
            ):
                shapes[f"blk.{layer}.{name}.weight"] = shape
        shapes["output_norm.weight"] = (self.hidden,)
        if not is_tied:
            shapes["output.weight"] = (self.vocabulary, self.hidden)
        return shapes


def convert_gguf(path: Path, directory: Path, progress: Progress = no_progress) -> None:
    """Write the model in the GGUF file `path` to `directory`, which exists, as bfloat16 safetensors with its tokenizer.

    Raises: ConfigError if the gguf package is missing, the file cannot be read or holds a model that cannot be
    converted, with the reason; IntegrityError if the file is damaged.
    """
    reader = _open(path)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    _refuse_unsupported(metadata, tensors)
    shape = _llama_shape(metadata)
    check_tokenizer(metadata)
    if len(metadata["tokenizer.ggml.tokens"]) != shape.vocabulary:
        raise IntegrityError(f"{path} is damaged: its vocabulary does not have {shape.vocabulary} tokens")
    if shape.layers > len(tensors):
        raise IntegrityError(f"{path} is damaged: its {len(tensors)} tensors cannot be those of {shape.layers} layers")
    is_tied = "output.weight" not in tensors
    shapes = shape.tensor_shapes(is_tied=is_tied)
    _check_tensors(path, tensors, shapes)
    specs = [(_hugging_face_name(name), "BF16", dims) for name, dims in shapes.items()]
    write_tensors(directory / SINGLE_FILE, specs, _pieces(path, tensors, shapes, shape, progress))
    config = _config(metadata, shape, is_tied=is_tied)
    special = {key: value for key, value in config.items() if key.endswith("_token_id")}
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", special)
    _write_json(directory / "tokenizer.json", tokenizer_json(metadata))
    _write_json(directory / "tokenizer_config.json", tokenizer_config(metadata, shape.context_tokens))


def to_bfloat16(values: Floats) -> npt.NDArray[np.uint16]:
    """float32 values rounded to the nearest bfloat16, ties to even, as their bits; NaN becomes the quiet NaN 0x7fc0."""
    import numpy as np

    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    rounded: npt.NDArray[np.uint16] = ((bits + (0x7FFF + ((bits >> 16) & 1)).astype("<u4")) >> 16).astype("<u2")
    rounded[np.isnan(values)] = 0x7FC0
    return rounded


def _open(path: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ConfigError("reading GGUF files needs the gguf package: pip install 'shardp2p[demo]'") from error
    try:
        return GGUFReader(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError) as error:
        raise IntegrityError(f"{path} is truncated, damaged or no GGUF file; get the file again") from error


def _refuse_unsupported(metadata: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    architecture = metadata.get("general.architecture")
    refusals = (
        (architecture != "llama", f"it holds a model of kind {architecture!r}; only the llama family can be converted"),
        (metadata.get("split.count", 1) > 1, "it is one part of several; merge them with llama-gguf-split --merge"),
        (metadata.get("llama.expert_count", 0) > 0, "its layers are mixtures of experts"),
        (metadata.get("llama.rope.scaling.type", "none") != "none", "its rotary embedding is scaled"),
        ("rope_freqs.weight" in tensors, "its rotary embedding has frequency factors"),
    )
    for is_refused, reason in refusals:
        if is_refused:
            raise ConfigError(
                f"this GGUF file cannot be converted: {reason}. Import its Hugging Face directory instead"
            )


def _llama_shape(metadata: Mapping[str, Any]) -> LlamaShape:
    def number(key: str, default: int | None = None) -> int:
        value = metadata.get(f"llama.{key}", default)
        if type(value) is not int or not 0 < value < 2**31:
            raise IntegrityError(f"the GGUF file is damaged or unusual: llama.{key} is {str(value)[:40]}")
        return value

    hidden, heads = number("embedding_length"), number("attention.head_count")
    head_dim = number("rope.dimension_count", hidden // heads)
    if {number("attention.key_length", head_dim), number("attention.value_length", head_dim)} != {head_dim}:
        raise ConfigError("this GGUF file cannot be converted: only a part of each attention head is rotated")
    if head_dim % 2:
        raise IntegrityError(f"the GGUF file is damaged: attention heads of {head_dim} values cannot be rotated")
    rms_eps = float(metadata.get("llama.attention.layer_norm_rms_epsilon", math.nan))
    rope_theta = float(metadata.get("llama.rope.freq_base", 10000.0))
    if not (0 < rms_eps < 1 and 1 <= rope_theta < 1e12):
        raise IntegrityError("the GGUF file is damaged: its norm epsilon or rope base is missing or impossible")
    return LlamaShape(
        layers=number("block_count"),
        context_tokens=number("context_length"),
        hidden=hidden,
        intermediate=number("feed_forward_length"),
        heads=heads,
        kv_heads=number("attention.head_count_kv", heads),
        head_dim=head_dim,
        vocabulary=number("vocab_size", len(metadata.get("tokenizer.ggml.tokens") or ())),
        rms_eps=round(rms_eps, 10),  # the file has the nearest float32 of the decimal number that was meant
        rope_theta=rope_theta,
    )


def _check_tensors(path: Path, tensors: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name in tensors:
        if name not in shapes:
            raise ConfigError(f"{path} cannot be converted: {name[:100]!r} has no place in a llama model")
    for name, shape in shapes.items():
        if name not in tensors:
            raise IntegrityError(f"{path} is damaged: the tensor {name} is missing")
        found = tuple(int(length) for length in reversed(tensors[name].shape))
        if found != shape:
            raise IntegrityError(f"{path} is damaged: the tensor {name} has the shape {found}, not {shape}")


def _hugging_face_name(name: str) -> str:
    if name in _TOP_LEVEL:
        return _TOP_LEVEL[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{_IN_LAYER[part]}.weight"


def _pieces(
    path: Path,
    tensors: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    shape: LlamaShape,
    progress: Progress,
) -> Iterator[bytes]:
    """The bfloat16 bytes of every tensor in order, in pieces of bounded size."""
    import numpy as np
    from gguf.quants import dequantize

    done, total = 0, sum(math.prod(dims) for dims in shapes.values()) * 2
    for name, dims in shapes.items():
        tensor = tensors[name]
        heads = {"attn_q": shape.heads, "attn_k": shape.kv_heads}.get(name.split(".")[-2], 0)
        # Rows are quantised one by one, so a piece is a few rows; rows to be reordered stay within their head.
        rows = max(1, _PIECE_ELEMENTS // dims[-1]) if len(dims) == 2 else dims[0]
        rows = rows if not heads else max(1, rows // shape.head_dim) * shape.head_dim
        for start in range(0, dims[0], rows):
            try:
                values = dequantize(tensor.data[start : start + rows], tensor.tensor_type)
            except NotImplementedError as error:
                raise ConfigError(f"{path} cannot be converted: {tensor.tensor_type.name} is not supported") from error
            if not np.isfinite(values).all():
                raise IntegrityError(f"{path} is damaged: the tensor {name} has values that are no numbers")
            bits = to_bfloat16(_undo_rotation_order(values, shape.head_dim) if heads else values)
            done += bits.nbytes
            progress("converting the model", done, total)
            yield bits.tobytes()


def _undo_rotation_order(rows: Floats, head_dim: int) -> Floats:
    """Rows of q or k, whole heads [H * D, hidden], ordered by halves (Hugging Face) instead of pairs (llama.cpp)."""
    pairs = rows.reshape(-1, head_dim // 2, 2, rows.shape[-1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _config(metadata: Mapping[str, Any], shape: LlamaShape, *, is_tied: bool) -> dict[str, Any]:
    eos = metadata.get("tokenizer.ggml.eos_token_id")
    end_of_turn = metadata.get("tokenizer.ggml.eot_token_id")
    tokens = {
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": eos if end_of_turn in (None, eos) else [eos, end_of_turn],
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context_tokens,
        "rms_norm_eps": shape.rms_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": is_tied,
        "dtype": "bfloat16",
        **{name: token for name, token in tokens.items() if token is not None},
    }


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
