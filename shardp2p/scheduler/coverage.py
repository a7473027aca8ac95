"""Which layers of a model are there now, and on whom: what `shardp2p coverage` shows. Pure.

Made of records that were gossiped or found in the directory; the latter may be of a peer that is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from shardp2p.errors import ConfigError, PeerUnavailableError
from shardp2p.scheduler.holders import HolderState, as_ranges, counts, state_of
from shardp2p.vocabulary import LayerRange, ModelId
from shardp2p.wire.records import CoverageRecord, HeldLayers

LEAST_DIGEST_CHARACTERS: Final = 6
"""What counts as the beginning of a digest; fewer characters could be anything."""
MAX_NAMED: Final = 8
"""Models that an error names: one line."""

T = TypeVar("T", bound=Any)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a peer says of itself. `is_live`: it was heard just now, by gossip or when it was asked."""

    record: CoverageRecord
    is_live: bool = True


@dataclass(frozen=True, slots=True)
class SeenModel:
    """A model that somebody holds layers of; `names` are what its holders call it, the commonest first."""

    digest: str
    layers: int
    names: tuple[ModelId, ...]

    @property
    def name(self) -> ModelId:
        """What most of its holders call it."""
        return self.names[0]


@dataclass(frozen=True, slots=True)
class HeldPart:
    """A layer range on one peer, and whether that peer answers."""

    seen: Seen
    held: HeldLayers

    @property
    def state(self) -> HolderState:
        """What the peer does with it."""
        return state_of(self.seen.record, self.held.state)

    @property
    def is_serving(self) -> bool:
        """Whether it takes requests now."""
        return self.seen.is_live and self.state == "serving"


@dataclass(frozen=True, slots=True)
class ModelCoverage:
    """Who holds a model, by layers and peer id; and by how many peers each layer is served, loaded and given up."""

    model: SeenModel
    parts: tuple[HeldPart, ...]
    serving: tuple[int, ...]
    loading: tuple[int, ...]
    draining: tuple[int, ...]

    @property
    def min_holders(self) -> int:
        """On how many peers the scarcest layer is served."""
        return min(self.serving)

    @property
    def is_complete(self) -> bool:
        """Whether every layer is served by someone now."""
        return self.min_holders > 0

    @property
    def missing(self) -> tuple[LayerRange, ...]:
        """The layers that nobody serves now."""
        return as_ranges(layer for layer, count in enumerate(self.serving) if count == 0)


def models_of(records: Iterable[CoverageRecord]) -> tuple[SeenModel, ...]:
    """The models that `records` name, by name and digest; of what they disagree on, what most of them say."""
    names: dict[str, Counter[ModelId]] = {}
    layers: dict[str, Counter[int]] = {}
    for record in records:
        for held in record.held:
            names.setdefault(held.model_digest, Counter())[held.model] += 1
            layers.setdefault(held.model_digest, Counter())[held.model_layers] += 1
    found = [SeenModel(digest, _commonest(layers[digest])[0], _commonest(called)) for digest, called in names.items()]
    return tuple(sorted(found, key=lambda model: (model.name, model.digest)))


def find_model(asked: str, models: Sequence[SeenModel]) -> SeenModel:
    """The model of that name, or whose digest begins like that.

    Raises: PeerUnavailableError with the names of those that are served; ConfigError when several are meant.
    """
    found = [model for model in models if asked in model.names]
    if not found and len(asked) >= LEAST_DIGEST_CHARACTERS:
        found = [model for model in models if model.digest.startswith(asked.lower())]
    if len(found) > 1:
        digests = ", ".join(model.digest[:12] for model in found[:MAX_NAMED])
        raise ConfigError(
            f"{len(found)} models are called {asked[:64]!r}; say which by the start of a digest: {digests}"
        )
    if found:
        return found[0]
    named = ", ".join(model.name for model in models[:MAX_NAMED])
    more = f" and {len(models) - MAX_NAMED} more" if len(models) > MAX_NAMED else ""
    raise PeerUnavailableError(
        f"nobody serves a model called {asked[:64]!r}; served are: {named}{more}"
        if models
        else f"nobody serves {asked[:64]!r}, or any other model: start a peer that has it with `shardp2p up`"
    )


def coverage_of(model: SeenModel, seen: Iterable[Seen]) -> ModelCoverage:
    """Who holds which layers of `model`. What speaks of another number of layers than most do is left out."""
    parts = tuple(
        sorted(
            (
                HeldPart(one, held)
                for one in seen
                if not one.record.is_departure
                for held in one.record.held
                if held.model_digest == model.digest and held.model_layers == model.layers
            ),
            key=lambda part: (part.held.layers, part.seen.record.peer_id),
        )
    )

    def count(*states: HolderState) -> tuple[int, ...]:
        ranges = [part.held.layers for part in parts if part.seen.is_live and part.state in states]
        return tuple(counts(model.layers, ranges))

    return ModelCoverage(model, parts, count("serving"), count("placing", "loading"), count("draining"))


def chosen_parts(coverage: ModelCoverage, most: int) -> tuple[HeldPart, ...]:
    """At most `most` parts that show the most: first such as add a layer to those before, then the fastest."""
    if len(coverage.parts) <= most:
        return coverage.parts
    ranked = sorted(
        range(len(coverage.parts)),
        key=lambda at: (not coverage.parts[at].is_serving, coverage.parts[at].held.decode_layer_s, at),
    )
    chosen: dict[int, None] = {}
    shown: set[int] = set()
    for at in ranked:
        layers = coverage.parts[at].held.layers
        if (
            len(chosen) < most
            and len(shown) < coverage.model.layers
            and not shown.issuperset(range(layers.start, layers.stop))
        ):
            chosen[at] = None
            shown.update(range(layers.start, layers.stop))
    for at in ranked:
        if len(chosen) >= most:
            break
        chosen[at] = None
    return tuple(coverage.parts[at] for at in sorted(chosen))


def _commonest(counter: Counter[T]) -> tuple[T, ...]:
    """What was counted, the most frequent first, equal ones in their own order."""
    return tuple(sorted(counter, key=lambda one: (-counter[one], one)))
