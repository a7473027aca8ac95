"""A model of transformers cut down to some of its layers, in place: what the others would need is left out."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from shardp2p.vocabulary import LayerRange

PER_LAYER_SETTINGS = ("layer_types", "mlp_layer_types", "no_rope_layers")
"""Lists of the configuration that the model's own forward reads by the number of a layer in its list."""


def begin_later(inner: Any) -> None:
    """Let an inner model begin at another layer than the first of all: no embedding, nor what goes with it."""
    inner.embed_tokens = nn.Identity()
    if hasattr(inner, "embedding_multiplier"):
        # Granite scales whatever enters its forward; the first block has scaled the hidden states.
        inner.embedding_multiplier = 1.0


def copy_of(inner: Any) -> Any:
    """The same modules under another name, so that some can be left out there."""
    other = copy.copy(inner)
    other._modules = dict(inner._modules)
    return other


def slice_layers(inner: Any, held: LayerRange, layers: LayerRange) -> Any:
    """The inner model, which has the layers `held`, with its list of layers, and the settings that go with it, cut."""
    cut = slice(layers.start - held.start, layers.stop - held.start)
    inner.layers = nn.ModuleList(list(inner.layers)[cut])
    config = copy.deepcopy(inner.config)
    config.num_hidden_layers = len(layers)
    for name in PER_LAYER_SETTINGS:
        values = getattr(config, name, None)
        if isinstance(values, (list, tuple)) and len(values) == len(held):
            setattr(config, name, list(values)[cut])
    inner.config = config
    return inner


def head_of(model: PreTrainedModel) -> PreTrainedModel:
    """The model's own head code, around an inner model that hands through what it gets."""
    setattr(model, model.base_model_prefix, _HandThrough())
    return model


class _HandThrough(nn.Module):
    def forward(self, inputs_embeds: Tensor, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(
            last_hidden_state=inputs_embeds, cache=None, past_key_values=None, hidden_states=None, attentions=None,
            router_logits=None,
        )  # fmt: skip
