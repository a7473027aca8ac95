"""What kind of model a directory holds, and whether its layers can be divided among peers; reads no weights.

A model can be split if it is a plain decoder: embedding, a list of attention layers that share nothing, one norm, one
head. What does not fit is refused here with the reason, before anything large is read.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from shardp2p.errors import ConfigError
from shardp2p.vocabulary import LayerRange

FULL_ATTENTION = "full_attention"
SLIDING_ATTENTION = "sliding_attention"
INDEXED_ATTENTION = "indexed_attention"
"""Full attention that an index narrows to the best rows (DeepSeek V3.2); the index keeps a row of its own."""
SPLITTABLE_ATTENTION = frozenset({FULL_ATTENTION, SLIDING_ATTENTION, INDEXED_ATTENTION})

MISFITS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    StrictDataclassError,
    TypeError,
    ValueError,
)
"""What transformers and torch raise for a configuration, or for tensors, that they cannot make a model of."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """The configuration and the class of a model, and what attention each of its layers has."""

    config: PreTrainedConfig
    model_class: type[PreTrainedModel]
    layer_count: int
    attention: tuple[str, ...]
    window_tokens: int

    @property
    def mixes_attention(self) -> bool:
        """Whether the model's own forward wants one mask per kind of attention."""
        return len(set(self.attention)) > 1


def read_architecture(directory: Path) -> Architecture:
    """The architecture of the model in `directory`.

    Raises:
        ConfigError: no model there, or one that cannot be split; the message says why.
    """
    raw = _read_config(directory)
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        raise ConfigError(f"{directory} holds a model of the unknown architecture {model_type!r}")
    if raw.get("quantization_config"):
        raise ConfigError(f"{directory} holds a quantised checkpoint; use the plain one (float32, float16 or bfloat16)")
    with blaming_configuration(directory, model_type):
        config = AutoConfig.from_pretrained(directory, local_files_only=True)
    if config.is_encoder_decoder:
        raise ConfigError(f"{model_type} has an encoder; only decoder models can be split by layers")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ConfigError(f"{model_type} is no causal language model")
    model_class = cast(type[PreTrainedModel], MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])
    with blaming_configuration(directory, model_type):
        attention = _attention_kinds(config, model_class)
    return Architecture(config, model_class, len(attention), attention, getattr(config, "sliding_window", None) or 0)


@contextmanager
def blaming_configuration(directory: Path, model_type: str) -> Iterator[None]:
    """For what transformers does with a configuration. Raises ConfigError for whatever it meets there."""
    try:
        yield
    except MISFITS as error:
        # A bare key or nothing at all is what some of these say.
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"{directory / 'config.json'} is no valid configuration of {model_type}: {reason}") from error


def _read_config(directory: Path) -> dict[str, Any]:
    file = directory / "config.json"
    try:
        raw = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{directory} holds no model: config.json cannot be read") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is no JSON; import the model again") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{file} is no JSON object; import the model again")
    return raw


def _attention_kinds(config: PreTrainedConfig, model_class: type[PreTrainedModel]) -> tuple[str, ...]:
    """The attention of each layer. Raises ConfigError for a kind that row caches and token trees cannot serve."""
    name = config.model_type
    layer_count = getattr(config, "num_hidden_layers", None)
    if not isinstance(layer_count, int) or not isinstance(getattr(config, "vocab_size", None), int):
        raise ConfigError(f"{name} is built from several models; only plain language models can be split")
    kinds = tuple(getattr(config, "layer_types", None) or ())
    unsplittable = sorted(set(kinds) - SPLITTABLE_ATTENTION)
    if unsplittable:
        raise ConfigError(
            f"{name} has layers of {', '.join(unsplittable)}; only full and sliding attention can be split"
        )
    if model_class._is_stateful:
        raise ConfigError(f"{name} keeps a running state instead of cache rows; its layers cannot be split")
    if getattr(config, "num_kv_shared_layers", 0):
        raise ConfigError(f"the layers of {name} share keys and values; they cannot be split")
    if getattr(config, "attention_chunk_size", None) and not kinds:
        raise ConfigError(f"{name} has chunked attention; only full and sliding attention can be split")
    if not kinds:
        kind = SLIDING_ATTENTION if getattr(config, "sliding_window", None) else FULL_ATTENTION
        kinds = (kind,) * layer_count
    return kinds


def check_structure(model: PreTrainedModel, architecture: Architecture) -> nn.Module:
    """The inner model of `model`: embedding, layers, norm. Raises ConfigError where it is built otherwise."""
    inner, name = model.base_model, architecture.config.model_type
    layers = getattr(inner, "layers", None)
    if inner is model or not isinstance(layers, nn.ModuleList) or len(layers) != architecture.layer_count:
        raise ConfigError(f"{name} has no plain list of layers; this architecture cannot be split")
    for part in ("embed_tokens", "norm"):
        if not isinstance(getattr(inner, part, None), nn.Module):
            raise ConfigError(f"{name} has no {part}; this architecture cannot be split")
    known = ("layers.", "embed_tokens.", "norm.")
    others = [key for key, _ in inner.named_parameters() if not key.startswith(known)]
    outside = [key for key, _ in model.named_parameters() if not key.startswith((model.base_model_prefix, "lm_head."))]
    if others or outside:
        raise ConfigError(f"{name} has tensors outside its layers ({(others + outside)[0]}); it cannot be split")
    if not isinstance(cast(Any, model).get_output_embeddings(), nn.Module):
        raise ConfigError(f"{name} has no language model head; this architecture cannot be split")
    return inner


def check_layers(architecture: Architecture, layers: LayerRange) -> None:
    """Raises ConfigError where the model does not have these layers."""
    if layers.stop > architecture.layer_count:
        raise ConfigError(f"layers {layers} do not exist: the model has {architecture.layer_count} layers")


def check_hand_through(
    inner: Any, architecture: Architecture, *, is_first: bool, device: torch.device | None = None
) -> None:
    """Makes sure that hidden states enter and leave the layers as they are, and that the norm is the last step.

    The model's own forward, emptied of layers and with a norm that only counts, must give back what it got; needs no
    weights. A model that scales or norms its inputs, as some do after the embedding, would do so in every block.

    Raises:
        ConfigError: the model does more than that.
    """
    norm, kept = _CountedNorm(), (inner.layers, inner.norm, inner.config)
    inner.layers, inner.norm, inner.config = nn.ModuleList(), norm, copy.deepcopy(inner.config)
    inner.config.num_hidden_layers = 0
    hidden = torch.linspace(-2, 2, inner.config.hidden_size, device=device)[None, None]
    mask = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device)
    masks = dict.fromkeys(architecture.attention, mask) if architecture.mixes_attention else mask
    with torch.inference_mode():
        positions = torch.zeros((1, 1), dtype=torch.int64, device=device)
        output = inner(inputs_embeds=hidden, position_ids=positions, attention_mask=masks, use_cache=False)
    inner.layers, inner.norm, inner.config = kept
    if norm.calls != 1 or not (is_first or torch.equal(output.last_hidden_state, hidden)):
        name = architecture.config.model_type
        raise ConfigError(f"{name} changes hidden states outside its layers; this architecture cannot be split")


class _CountedNorm(nn.Module):
    """Hands through what it gets, and counts how often."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return hidden
