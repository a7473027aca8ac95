"""Options that several commands share, each declared once: a command takes a frozen value in place of all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, get_type_hints

from shardp2p.cli import options
from shardp2p.cli.asking import (
    DEFAULTS,
    Wish,
    check_peer_ids,
    check_peers,
    parse_biases,
    parse_drafting,
    parse_wait,
    parse_wire,
)
from shardp2p.cli.texts import to_text
from shardp2p.config import load_settings
from shardp2p.errors import ConfigError
from shardp2p.telemetry import configure_logging
from shardp2p.vocabulary import SamplingParams

if TYPE_CHECKING:
    from shardp2p.cli.seeing import Where

T = TypeVar("T", "AskOptions", "SeeOptions")
P = ParamSpec("P")


def taking(kind: type[T], **defaults: object) -> Callable[[Callable[Concatenate[T, P], None]], Callable[..., None]]:
    """Let a command have an option for each field of `kind`, and get the value of all as its first argument.

    `defaults` take the place of those of the fields. The command's own parameters come first in its help.
    """

    def decorate(command: Callable[Concatenate[T, P], None]) -> Callable[..., None]:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        kinds, shared = get_type_hints(kind, include_extras=True), [field.name for field in fields(kind)]

        def run(**given: Any) -> None:
            value = kind(**{name: given.pop(name) for name in shared})
            command(value, **given)  # type: ignore[call-arg]

        parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        for field in fields(kind):
            default = defaults.get(field.name, field.default)
            parameters.append(
                inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kinds[field.name]
                )
            )
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


@dataclass(frozen=True, slots=True)
class AskOptions:
    """How `generate` and `chat` are to be answered, and by whom."""

    join: options.Join = None
    peer: options.Peers = None
    only: options.Only = None
    block: options.Block = None
    max_tokens: options.MaxTokens = None
    stop: options.Stop = None
    temperature: options.Temperature = DEFAULTS.temperature
    top_k: options.TopK = DEFAULTS.top_k
    top_p: options.TopP = DEFAULTS.top_p
    min_p: options.MinP = DEFAULTS.min_p
    repetition_penalty: options.RepetitionPenalty = DEFAULTS.repetition_penalty
    frequency_penalty: options.FrequencyPenalty = DEFAULTS.frequency_penalty
    presence_penalty: options.PresencePenalty = DEFAULTS.presence_penalty
    logit_bias: options.LogitBias = None
    seed: options.Seed = DEFAULTS.seed
    draft: options.Draft = "none"
    draft_model: options.DraftModel = None
    no_memory: options.NoMemory = False
    depth: options.Depth = 4
    wire: options.Wire = "raw"
    wait: options.Wait = 0.0
    local_driver: options.LocalDriver = False
    local_layers: options.LocalLayers = 0
    data_dir: options.DataDir = None
    log_level: options.LogLevel = None

    def wish(self) -> Wish:
        """What they say, checked; logs are set up first. Raises: ConfigError."""
        configure_logging(self.log_level or "warning")
        if self.draft_model is not None and not (self.local_driver or self.local_layers):
            raise ConfigError(
                "--draft-model drafts for what is driven here: add --local-driver; another driver is given one by "
                "`shardp2p up --draft-model`, and asked for it with --draft model"
            )
        kind, limits = parse_drafting(
            self.draft, self.depth, has_model=self.draft_model is not None, remembers=not self.no_memory
        )
        return Wish(
            peers=check_peers(self.peer or ()),
            max_tokens=self.max_tokens,
            sampling=SamplingParams(
                self.temperature,
                self.top_k,
                self.top_p,
                self.min_p,
                self.repetition_penalty,
                self.frequency_penalty,
                self.presence_penalty,
                parse_biases(self.logit_bias or ()),
                self.seed,
            ),
            stop_strings=tuple(to_text(text, "a --stop text") for text in self.stop or ()),
            draft=kind,
            limits=limits,
            wire_scheme=parse_wire(self.wire),
            wait_s=parse_wait(self.wait),
            shares_rows=not self.no_memory,
            is_local=self.local_driver,
            local_layers=self.local_layers,
            blocked=check_peer_ids(self.block or (), "--block"),
            only=check_peer_ids(self.only or (), "--only"),
            draft_model=self.draft_model,
        )


@dataclass(frozen=True, slots=True)
class SeeOptions:
    """Which swarm `coverage`, `peers` and `plan` are to look at, and how."""

    join: options.Join = None
    peer: options.SeenPeers = None
    from_dht: options.FromDht = False
    data_dir: options.DataDir = None
    as_json: options.AsJson = False
    log_level: options.LogLevel = None

    def where(self, model: str | None = None, *, needs_links: bool = False) -> Where:
        """Where to look for `model`, or for everybody; logs are set up first. Raises: ConfigError."""
        if model == "":
            raise ConfigError("the name of the model is empty; `shardp2p peers` tells what is served")
        configure_logging(self.log_level or "error")
        paths = load_settings(data_dir=self.data_dir).paths
        from shardp2p.cli.seeing import Where, digest_in

        digest = None if model is None else digest_in(model)
        return Where(paths, self.join, tuple(self.peer or ()), self.from_dht, digest, needs_links=needs_links)
