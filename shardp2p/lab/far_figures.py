"""What drafting gained on a real ring that is far apart, from the answers it gave. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class FarAnswer:
    """One answer of one arm to a prompt. `tok_s` is the rate after the first tokens, `lap_s` that of a usual lap."""

    round: int
    prompt: int
    arm: str
    tokens: int
    tok_s: float
    lap_s: float
    is_exact: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt's kind, and how many tokens its whole answer has."""

    kind: str
    tokens: int


class FarFigures:
    """The answers of one way of choosing tokens, greedy or sampled.

    The rate over several prompts is that of saying all of their whole answers, whatever each arm said of them.
    """

    def __init__(self, prompts: Sequence[Asked], answers: Iterable[FarAnswer]) -> None:
        self._prompts = prompts
        self._answers = tuple(answers)

    def arms(self) -> dict[str, dict[str, Any]]:
        """Each arm's rates over all prompts, medians over the rounds."""
        told: dict[str, dict[str, Any]] = {}
        for arm in dict.fromkeys(one.arm for one in self._answers):
            rates = self._rates(arm, range(len(self._prompts)))
            told[arm] = {
                "tok_s": round(median(rates), 2),
                "tok_s_min": round(min(rates), 2),
                "tok_s_max": round(max(rates), 2),
                "accepted_per_lap": round(median(rates) * self.lap_s("plain"), 2),
                "exact": all(one.is_exact for one in self._answers if one.arm == arm),
            }
        return told

    def kinds(self) -> dict[str, dict[str, float]]:
        """Each arm's rate over the prompts of each kind."""
        arms = dict.fromkeys(one.arm for one in self._answers)
        told = {}
        for kind in dict.fromkeys(asked.kind for asked in self._prompts):
            meant = [at for at, asked in enumerate(self._prompts) if asked.kind == kind]
            told[kind] = {arm: round(median(self._rates(arm, meant)), 2) for arm in arms}
        return told

    def gain(self, arm: str) -> float:
        """How many times as fast as plain an arm is over all prompts; the median of the rounds' own ratios."""
        return self._gain(arm, range(len(self._prompts)))

    def prompt_gains(self, arm: str) -> list[float]:
        """The same for each prompt alone."""
        return [self._gain(arm, [prompt]) for prompt in range(len(self._prompts))]

    def lap_s(self, arm: str) -> float:
        """What a usual lap of an arm takes."""
        return median(one.lap_s for one in self._answers if one.arm == arm)

    def _gain(self, arm: str, meant: Collection[int]) -> float:
        return median(
            one / plain for one, plain in zip(self._rates(arm, meant), self._rates("plain", meant), strict=True)
        )

    def _rates(self, arm: str, meant: Collection[int]) -> list[float]:
        """Tokens a second over the meant prompts, in each round."""
        rates = []
        for number in sorted({one.round for one in self._answers}):
            mine = [one for one in self._answers if (one.arm, one.round) == (arm, number) and one.prompt in meant]
            tokens = [self._prompts[one.prompt].tokens for one in mine]
            rates.append(sum(tokens) / sum(length / one.tok_s for length, one in zip(tokens, mine, strict=True)))
        return rates
