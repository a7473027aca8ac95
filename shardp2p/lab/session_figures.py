"""What the times of tokens say about sessions that share a ring. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from shardp2p.wire.messages import Closed


def jain(rates: Sequence[float]) -> float:
    """Jain's index of fairness: 1 where all are equal, 1 / n where one of n has everything."""
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 0.0


@dataclass(frozen=True, slots=True)
class Together:
    """Sessions one after the other, and the same at once. Rates are of tokens after each session's first."""

    alone_tok_s: float
    together_tok_s: float
    fairness: float
    is_identical: bool

    @property
    def ratio(self) -> float:
        """How much more comes of all at once than of one."""
        return self.together_tok_s / self.alone_tok_s


def together(alone: Sequence[Sequence[float]], at_once: Sequence[Sequence[float]], *, is_identical: bool) -> Together:
    """The figures of token times, of at least two tokens for each session."""
    later = sum(len(times) - 1 for times in at_once)
    span_s = max(times[-1] for times in at_once) - min(times[0] for times in at_once)
    return Together(
        alone_tok_s=median(_rate(times) for times in alone),
        together_tok_s=later / span_s,
        fairness=jain([_rate(times) for times in at_once]),
        is_identical=is_identical,
    )


def _rate(times: Sequence[float]) -> float:
    return (len(times) - 1) / (times[-1] - times[0])


@dataclass(frozen=True, slots=True)
class Queue:
    """What each of many clients had when the first had all it asked for, and how long a first token took at most."""

    tokens: tuple[int, ...]
    longest_wait_s: float
    span_s: float

    def report(self) -> dict[str, float]:
        """The figures of the queue."""
        return {
            "queue_fairness": round(jain(self.tokens), 4),
            "queue_least_tokens": min(self.tokens),
            "queue_longest_wait_s": round(self.longest_wait_s, 2),
            "queue_tok_s": round(sum(self.tokens) / self.span_s, 2),
        }


@dataclass(frozen=True, slots=True)
class Prefill:
    """A long prompt alone, and beside a session that decodes.

    bound_s   the slowest stage's own work on the prompt, one lap, and one chunk of every other stage: what remains when
              all stages work at once
    """

    usual_gap_s: float
    median_gap_s: float
    longest_gap_s: float
    ttft_s: float
    ttft_beside_s: float
    bound_s: float

    @property
    def gap_ratio(self) -> float:
        """The longest gap between tokens beside the prompt, by the usual one."""
        return self.longest_gap_s / self.usual_gap_s

    @property
    def ttft_ratio(self) -> float:
        """The time to the first token by its bound."""
        return self.ttft_s / self.bound_s

    @classmethod
    def of(
        cls,
        times: Sequence[float],
        *,
        began: float,
        ended: float,
        ttft_s: float,
        ttft_beside_s: float,
        accounts: Sequence[Closed],
        lap_s: float,
    ) -> Prefill:
        """The figures; `times` are those of the tokens of the session that decodes, `accounts` the prompt's alone."""
        gaps = [(after, after - before) for before, after in pairwise(times)]
        usual = [gap for at, gap in gaps[2:] if at < began]
        beside = [gap for at, gap in gaps if began <= at and at - gap <= ended]
        work_s = [account.compute_s for account in accounts]
        slowest = max(range(len(accounts)), key=work_s.__getitem__)
        others_s = sum(
            account.compute_s / max(1, account.chunks) for at, account in enumerate(accounts) if at != slowest
        )
        return cls(
            usual_gap_s=median(usual),
            median_gap_s=median(beside),
            longest_gap_s=max(beside),
            ttft_s=ttft_s,
            ttft_beside_s=ttft_beside_s,
            bound_s=work_s[slowest] + lap_s + others_s,
        )
