from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardp2p.runtime import noise
from shardp2p.vocabulary import Position
from tests.vectors import regenerate_noise

WORD = 2**64
SEEDS = st.integers(0, WORD - 1)
POSITIONS = st.integers(0, 2**32).map(Position)
PI = (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89, 0x452821E638D01377)


def philox4x64(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Philox4x64-10 as the paper writes it, in plain integers."""
    a, b, c, d = counter
    left, right = key
    for _ in range(10):
        high, low = divmod(a * 0xD2E7470EE14C6C93, WORD)
        other_high, other_low = divmod(c * 0xCA5A826395121157, WORD)
        a, b, c, d = other_high ^ b ^ left, other_low, high ^ d ^ right, low
        left, right = (left + 0x9E3779B97F4A7C15) % WORD, (right + 0xBB67AE8584CAA73B) % WORD
    return a, b, c, d


def test_golden_vectors_are_current() -> None:
    assert regenerate_noise.VECTORS.read_text() == regenerate_noise.render()


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b"),
        ((WORD - 1,) * 4, (WORD - 1,) * 2, "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0"),
        (PI[:4], (PI[4], 0xBE5466CF34E90C6C), "a528f45403e61d95 38c72dbd566e9788 a5a1610e72fd18b5 57bd43b5e52b7fe6"),
    ],
)
def test_the_generator_gives_the_known_answers_of_random123(
    counter: tuple[int, ...], key: tuple[int, ...], expected: str
) -> None:
    words = [int(word, 16) for word in expected.split()]
    assert list(philox4x64(counter, key)) == words
    before = (sum(word << 64 * i for i, word in enumerate(counter)) - 1) % 2**256
    generator = np.random.Philox(counter=before, key=np.array(key, dtype=np.uint64))
    assert generator.random_raw(4).tolist() == words


@given(SEEDS, POSITIONS, st.integers(0, 300_000))
def test_a_token_is_a_word_of_its_block(seed: int, position: Position, token: int) -> None:
    block = philox4x64((token // 4 + 1, 0, 0, 0), (seed, position))
    assert int(noise.bits(seed, position, np.array([token]))[0]) == block[token % 4]


@given(SEEDS, POSITIONS, st.sets(st.integers(0, 60_000), max_size=40))
def test_a_subset_of_tokens_has_the_noise_of_the_whole_vocabulary(
    seed: int, position: Position, tokens: set[int]
) -> None:
    chosen = np.array(sorted(tokens), dtype=np.int64)
    whole = noise.bits(seed, position, np.arange(60_001))
    assert noise.bits(seed, position, chosen).tolist() == whole[chosen].tolist()


def test_a_dense_subset_has_the_noise_of_the_whole_vocabulary() -> None:
    tokens = np.arange(1, 4000, 3)
    whole = noise.bits(9, Position(4), np.arange(4000))
    assert noise.bits(9, Position(4), tokens).tolist() == whole[tokens].tolist()


@pytest.mark.parametrize("word", [0, 1, 2**12 - 1, 2**12, 2**63, WORD - 2**12, WORD - 1])
def test_extreme_bits_give_finite_noise(word: int) -> None:
    bits = np.array([word], dtype=np.uint64)
    assert 0.0 < noise.uniform(bits)[0] < 1.0
    assert math.isfinite(noise.exact_gumbel(word))
    assert noise.gumbel(bits)[0] == pytest.approx(noise.exact_gumbel(word), rel=1e-15, abs=1e-15)


def test_fast_noise_is_within_its_stated_error() -> None:
    bits = noise.bits(3, Position(17), np.arange(4000))
    exact = np.array([noise.exact_gumbel(word) for word in bits.tolist()])
    assert np.abs(noise.gumbel(bits) - exact).max() < noise.FAST_GUMBEL_ERROR / 100


def test_noise_has_the_gumbel_distribution() -> None:
    samples = np.sort(noise.gumbel(noise.bits(11, Position(5), np.arange(200_000))))
    model = np.exp(-np.exp(-samples))
    steps = np.arange(1, len(samples) + 1) / len(samples)
    assert np.abs(model - steps).max() < 1.95 / math.sqrt(len(samples))  # Kolmogorov-Smirnov, p = 0.001
    assert samples.mean() == pytest.approx(np.euler_gamma, abs=0.01)
    assert samples.var() == pytest.approx(math.pi**2 / 6, abs=0.03)


def test_neighbouring_seeds_positions_and_tokens_are_independent() -> None:
    tokens = np.arange(20_000)
    rows = {
        (seed, position): noise.uniform(noise.bits(seed, Position(position), tokens)) - 0.5
        for seed in (0, 1, 2, 2**32, 2**63)
        for position in (0, 1, 2, 2**31)
    }
    limit = 4.5 / math.sqrt(len(tokens))
    correlations = np.corrcoef(np.array(list(rows.values())))
    assert np.abs(correlations - np.eye(len(rows))).max() < limit
    for row in rows.values():
        for lag in (1, 2, 3, 4, 8):
            assert abs(np.corrcoef(row[:-lag], row[lag:])[0, 1]) < limit


def test_seed_and_position_are_not_interchangeable() -> None:
    pairs = [(1, 2), (2, 1), (0, 3), (3, 0)]
    heads = [noise.bits(seed, Position(position), np.arange(4)).tolist() for seed, position in pairs]
    assert all(first != second for first, second in pairwise(heads))
    assert len({tuple(head) for head in heads}) == len(pairs)


def test_golden_vectors_cover_what_they_should() -> None:
    rows = json.loads(regenerate_noise.VECTORS.read_text())
    assert len(rows) == 128
    assert len({row["bits"] for row in rows}) == 128
    assert all(float.fromhex(row["gumbel"]) == noise.exact_gumbel(int(row["bits"], 16)) for row in rows)
