"""The shared values refuse what cannot be meant, with the name of what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from shardp2p.errors import ConfigError
from shardp2p.vocabulary import MAX_LOGIT_BIASES, LayerRange, SamplingParams


@pytest.mark.parametrize("text", ["", "3", "3:", ":3", "a:b", "3:3", "5:2", "-1:2", "0:" + "9" * 5000, "٣:٤", "1:2:3"])
def test_what_is_no_layer_range_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="layer range"):
        LayerRange.parse(text)


def test_a_layer_range_is_half_open() -> None:
    layers = LayerRange.parse("3:10")
    assert (layers.start, layers.stop, len(layers), str(layers)) == (3, 10, 7, "3:10")


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"min_p": -0.1},
        {"top_k": -1},
        {"repetition_penalty": 1e-310},
        {"frequency_penalty": float("inf")},
        {"presence_penalty": -101.0},
        {"logit_bias": tuple((token, 1.0) for token in range(MAX_LOGIT_BIASES + 1))},
        {"logit_bias": ((2**31, 1.0),)},
        {"logit_bias": ((1, float("nan")),)},
        {"seed": -1},
    ],
)
def test_a_sampling_parameter_out_of_bounds_is_named(params: dict[str, Any]) -> None:
    (name,) = params
    with pytest.raises(ConfigError, match=f"^{name} is .* it must be ") as refused:
        SamplingParams(**params)
    assert len(refused.value.message) < 200
