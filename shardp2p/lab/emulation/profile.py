"""A profile of the benchmarks: who is in the ring, how far apart, and how long its layers and its draft take. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from shardp2p.errors import ConfigError
from shardp2p.lab.network.fields import NAME_CHARACTERS, Fields
from shardp2p.lab.network.reading import parse_description

LEAST_LAP_MS = 0.01
"""Of a plain lap, about."""

MAX_ROW_BYTES = 1 << 17
"""Of one hidden row: the largest models there are have a quarter of it."""


@dataclass(frozen=True, slots=True)
class Ways:
    """The first of `peers` is the driver, the others are the stages in ring order; `one_way_s[a, b]` is from a to b."""

    name: str
    peers: tuple[str, ...]
    one_way_s: Mapping[tuple[str, str], float]

    @property
    def driver(self) -> str:
        """Who drives."""
        return self.peers[0]

    @property
    def stages(self) -> tuple[str, ...]:
        """Who holds the layers, the first ones first."""
        return self.peers[1:]

    @property
    def hops_s(self) -> float:
        """The way of one lap."""
        return sum(self.one_way_s[pair] for pair in pairwise((*self.peers, self.peers[0])))


@dataclass(frozen=True, slots=True)
class Profile(Ways):
    """Ways, and what is computed at their ends.

    A stage takes `stage_base_s` for a chunk and `stage_row_s` more for each live row, the draft `draft_level_s` for one
    more token on every path that it is asked about. A hidden row has `row_bytes`.
    """

    row_bytes: int
    stage_base_s: float
    stage_row_s: float
    draft_level_s: float

    def stage_s(self, rows: int) -> float:
        """What a stage takes for a chunk of so many live rows; one whose rows are all dead is passed on."""
        return self.stage_base_s + self.stage_row_s * rows if rows else 0.0

    def slowed(self, hop_s: float) -> Profile:
        """The same with ways that take so much longer, each: what encoding, encryption and event loops add."""
        return replace(self, one_way_s={pair: way_s + hop_s for pair, way_s in self.one_way_s.items()})

    @property
    def plain_lap_s(self) -> float:
        """A lap of one row."""
        return self.hops_s + len(self.stages) * self.stage_s(1)


def parse_ways(name: str, text: str | bytes) -> Ways:
    """Who is how far apart, by a JSON text. Raises: ConfigError, where it names no driver and stage."""
    try:
        description = parse_description(text)
    except ConfigError as error:
        raise ConfigError(f"profile {name}: {error.message}") from None
    fields = Fields(f"profile {name}", json.loads(text))
    peers = tuple(fields.names("peers"))
    if len(peers) < 2:
        fields.fail("it names fewer than two peers: the driver and a stage")
    default_ms = description.default_rtt_ms / 2
    one_way_ms = {
        (a, b): 0.0 if a == b else description.one_way_ms.get((a, b), default_ms) for a in peers for b in peers
    }
    return Ways(name, peers, {pair: way_ms / 1e3 for pair, way_ms in one_way_ms.items()})


def parse_profile(name: str, text: str | bytes) -> Profile:
    """The profile that a JSON text describes. Raises: ConfigError, where it says nothing of stages, or wrongly."""
    ways = parse_ways(name, text)
    fields = Fields(f"profile {name}", json.loads(text))
    for work in ("stage_ms", "draft_ms_per_level", "hidden_size"):
        if not fields.has(work):
            fields.fail(f"{work} is missing, so layers and drafts cannot be emulated; add it, or use glm52 or gpt-oss")
    stage = Fields(f"stage_ms of profile {name}", fields.take("stage_ms"))
    if not (stage.has("base") and stage.has("per_token")):
        stage.fail("it needs base, the milliseconds of a chunk, and per_token, those of each of its rows")
    base_ms, row_ms = stage.number("base", 0.0, 0.0, 1e4), stage.number("per_token", 0.0, 0.0, 1e3)
    if stray := stage.rest():
        stage.fail(f"{stray[0][:NAME_CHARACTERS]!r} is not known here; it has base and per_token")
    if 1e3 * ways.hops_s + base_ms + row_ms < LEAST_LAP_MS:
        fields.fail("a lap takes no time, so nothing can be compared; give stage_ms, rtt_ms or default_rtt_ms")
    layers = fields.take("layers")
    if layers is not None and not (isinstance(layers, list) and len(layers) == len(ways.stages)):
        fields.fail(f"layers is not a list of {len(ways.stages)} ranges, one for each peer but the first")
    return Profile(
        ways.name,
        ways.peers,
        ways.one_way_s,
        row_bytes=int(
            fields.number("hidden_size", 0, 8, MAX_ROW_BYTES / 4) * fields.number("activation_bytes", 2, 1, 4)
        ),
        stage_base_s=base_ms / 1e3,
        stage_row_s=row_ms / 1e3,
        draft_level_s=fields.number("draft_ms_per_level", 0.0, 0.0, 1e4) / 1e3,
    )
