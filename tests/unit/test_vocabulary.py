"""The shared values refuse what cannot be meant, with the name of what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from shardp2p.errors import ConfigError
from shardp2p.vocabulary import MAX_LOGIT_BIASES, LayerRange, SamplingParams, parse_bytes, parse_region


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


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 * 2**30),
        ("8GB", 8_000_000_000),
        ("500MiB", 500 * 2**20),
        ("1.5 GiB", 3 * 2**29),
        ("512kib", 512 * 1024),
        ("0.1TB", 100_000_000_000),
        ("1024TiB", 2**50),
    ],
)
def test_sizes_of_memory_are_read_exactly(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "8", "8G", "8Gib ", "-1GiB", "1e3MiB", "8 PiB", "GiB", "１GiB", "8,5GiB", "x" * 99]
)
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is no size; write a number with .* for example 8GiB") as caught:
        parse_bytes(text)
    assert len(caught.value.message) < 150


@pytest.mark.parametrize("text", ["0MiB", "1025TiB", "0.0001KB"])
def test_sizes_that_no_machine_has_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not between one byte and 1024 TiB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["", "eu", "eu-west", "us-east-1", "x" * 32])
def test_a_region_is_taken_as_it_is(text: str) -> None:
    assert parse_region(text) == text


@pytest.mark.parametrize("text", ["EU", "eu west", "-eu", "eu--west", "eu-", "x" * 33, "zürich", "eu\n"])
def test_what_is_no_region_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is no region; .* for example eu-west"):
        parse_region(text)
