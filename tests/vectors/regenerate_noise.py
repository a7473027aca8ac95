"""Regenerates tests/vectors/noise/gumbel.json byte for byte: `python -m tests.vectors.regenerate_noise`.

Bits are hexadecimal; uniform and gumbel are float64 in C99 hexadecimal notation. The vectors define what a sampled
answer is: a changed one is a new protocol version.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np

from shardp2p.runtime import noise
from shardp2p.vocabulary import Position

VECTORS = Path(__file__).parent / "noise" / "gumbel.json"
SEEDS = (0, 1, 0x0123456789ABCDEF, 2**64 - 1)
POSITIONS = (0, 1, 4095, 2**32)
TOKENS = (0, 1, 2, 3, 4, 7, 49151, 262143)


def render() -> str:
    """The text of the vector file."""
    rows = []
    for seed, position in product(SEEDS, POSITIONS):
        noise_bits = noise.bits(seed, Position(position), np.array(TOKENS))
        numbers = noise.uniform(noise_bits).tolist()
        for token, word, number in zip(TOKENS, noise_bits.tolist(), numbers, strict=True):
            row = {
                "seed": seed,
                "position": position,
                "token": token,
                "bits": f"{word:016x}",
                "uniform": number.hex(),
                "gumbel": noise.exact_gumbel(word).hex(),
            }
            rows.append(json.dumps(row))
    return "[\n" + ",\n".join(rows) + "\n]\n"


if __name__ == "__main__":
    VECTORS.write_text(render())
