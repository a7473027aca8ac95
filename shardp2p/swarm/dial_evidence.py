"""What several observers say of one address of ours, and what follows. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from shardp2p.wire.dialling_back import DialOutcome

MAX_OBSERVERS: Final = 8
"""Reports on one address; three are asked at a time."""
CONVINCING: Final = 2
"""So many failures of one observer in a row count, and so many observers prove an address."""


@dataclass(slots=True)
class Report:
    """What one observer said last."""

    outcome: DialOutcome
    streak: int
    """How often in a row it was open, or was not."""
    at: float

    @property
    def is_open(self) -> bool:
        """Whether it reached us."""
        return self.outcome == "open"


@dataclass(slots=True)
class Evidence:
    """What the observers say of one address, by the home of each: two peers of one place are one voice."""

    reports: dict[str, Report] = field(default_factory=dict)  # the oldest first
    is_open: bool | None = None

    def add(self, observer: str, outcome: DialOutcome, now: float) -> None:
        """An observer tried."""
        before = self.reports.pop(observer, None)
        is_same = before is not None and before.is_open == (outcome == "open")
        streak = before.streak + 1 if before is not None and is_same else 1
        self.reports[observer] = Report(outcome, streak, now)
        while len(self.reports) > MAX_OBSERVERS:
            del self.reports[next(iter(self.reports))]
        self._judge()

    def forget(self, before: float) -> None:
        """Drop what was said before then."""
        self.reports = {host: report for host, report in self.reports.items() if report.at >= before}

    @property
    def is_disputed(self) -> bool:
        """Whether the last reports do not all bear out the judgement."""
        return any(report.is_open != self.is_open for report in self.reports.values())

    def _judge(self) -> None:
        opened = sum(report.is_open for report in self.reports.values())
        if self.is_open:
            failed = sum(not report.is_open and report.streak >= CONVINCING for report in self.reports.values())
            self.is_open = not (failed > opened or (failed and not opened))
        elif opened >= CONVINCING or (opened > 0 and opened == len(self.reports)):
            self.is_open = True
        elif not opened and sum(report.streak for report in self.reports.values()) >= CONVINCING:
            self.is_open = False
