"""One request's tries: which ring failed and whose fault it was, whether to try another, and what to say at the end.

Pure. Nothing of the answer may have been shown yet: another ring begins from the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shardp2p.errors import LocalProtocolError, OverloadedError, PeerUnavailableError, ShardError
from shardp2p.scheduler.plan import Plan
from shardp2p.vocabulary import PeerId

MAX_TRIES: Final = 8
"""Rings that are tried for one request: more failures at once are a failing network, which its user should hear of."""
MAX_ACCUSATIONS: Final = 2
"""Other peers that a driver may blame before it is left out itself: it may be the one that lies."""
MAX_TOLD: Final = 3
"""Failures of which the error at the end tells."""
MAX_REASON_CHARACTERS: Final = 160


@dataclass(frozen=True, slots=True)
class Fault:
    """A peer that a ring failed by. `is_seen` says that we saw it ourselves and were not told by another peer."""

    peer: PeerId
    reason: str
    is_seen: bool


@dataclass(frozen=True, slots=True)
class _Failure:
    """A try that failed: the error, which place of the ring is to blame, and why in short."""

    error: ShardError
    place: str
    reason: str


class Attempts:
    """The tries of one request. `failed` after each one that failed; `gave_up` when there is no ring left."""

    def __init__(self, own: PeerId, *, max_tries: int = MAX_TRIES) -> None:
        """`own` is who asks: where it runs layers itself, no other ring helps against its own failures."""
        self._own = own
        self._max_tries = max_tries
        self._failures: list[_Failure] = []
        self._avoid: dict[PeerId, str] = {}
        self._accusations: dict[PeerId, int] = {}

    @property
    def avoid(self) -> Mapping[PeerId, str]:
        """The peers that failed this request, each with the reason."""
        return self._avoid

    @property
    def count(self) -> int:
        """How many tries have failed."""
        return len(self._failures)

    def failed(self, plan: Plan, error: ShardError, driver: PeerId) -> Fault:
        """The ring of `plan` failed, which `driver` drove.

        Gives the peer that is left out of the next try. Raises: the error that ends the request, when no other ring
        would do better, or enough were tried.
        """
        blamed = next((stage.peer_id for stage in plan.stages if stage.peer_id == error.peer), None)
        if blamed is None or blamed == self._own or isinstance(error, LocalProtocolError):
            raise self._final(error)
        fault = Fault(blamed, _reason(plan, blamed, error), driver in (self._own, blamed))
        self._failures.append(_Failure(error, plan.describe(blamed), fault.reason))
        self._avoid[blamed] = fault.reason
        if not fault.is_seen:
            self._accusations[driver] = self._accusations.get(driver, 0) + 1
            if self._accusations[driver] >= MAX_ACCUSATIONS:
                self._avoid[driver] = "drove this request in vain more than once"
        if len(self._failures) >= self._max_tries:
            raise self._final(self._failures.pop().error)
        return fault

    def gave_up(self, error: PeerUnavailableError | OverloadedError) -> ShardError:
        """The error that ends the request, where `error` says that there is no other ring."""
        if self._failures and all(isinstance(one.error, OverloadedError) for one in self._failures):
            return self._final(self._failures.pop().error)
        # The reasons of those whose layers are missing stand in `error` already.
        self._failures = [one for one in self._failures if one.reason not in error.message]
        return self._final(error)

    def _final(self, error: ShardError) -> ShardError:
        if not self._failures:
            return error
        count = len(self._failures)
        reasons = list(dict.fromkeys(f"{one.place}: {one.reason}" for one in self._failures))
        if len(reasons) > MAX_TOLD:
            reasons[MAX_TOLD:] = [f"and {len(reasons) - MAX_TOLD} more"]
        earlier = "; ".join(reasons)
        tries = "another ring was tried" if count == 1 else f"{count} other rings were tried"
        return type(error)(f"{error.message} (before that {tries}: {earlier})", error.peer)


def _reason(plan: Plan, peer: PeerId, error: ShardError) -> str:
    """What happened, without the peer's place in the ring, and without the advice for one who chose it by hand."""
    text = error.message.partition("; ")[0]
    if text.startswith(plan.describe(peer)):
        text = text.removeprefix(plan.describe(peer)).partition(": ")[2]
    return text if len(text) <= MAX_REASON_CHARACTERS else f"{text[: MAX_REASON_CHARACTERS - 1]}…"
