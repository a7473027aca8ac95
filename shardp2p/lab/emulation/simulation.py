"""A ring as discrete events under a virtual clock: the real generation and session machines, everything else emulated.

Links take their one-way time, stages what the profile says for the rows that are alive when they begin, and the
draft one level's time for all paths of a request together. Whoever decides takes no time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf

from shardp2p.coordinator.commands import Emit, Finish, NeedDraft, Proposer, SendChunk, SendCommit
from shardp2p.errors import LocalProtocolError
from shardp2p.lab.emulation.arms import CACHE_ROWS, Arm
from shardp2p.lab.emulation.language import Language
from shardp2p.lab.emulation.layers import DigestRows
from shardp2p.lab.emulation.metered import MeteredGeneration
from shardp2p.lab.emulation.profile import Profile
from shardp2p.stage.session import Session, Work
from shardp2p.vocabulary import SessionId, Token
from shardp2p.wire.messages import Activations, Chunk, Commit, Verdict
from shardp2p.wire.tensor_frame import TensorFrame

SESSION = SessionId("00" * 16)


@dataclass(slots=True)
class Outcome:
    """How a simulated answer went, in virtual seconds; `rows` counts what was sent into the ring.

    `coordinator_s` is real: the CPU time of the generation machine.
    """

    tokens: list[Token] = field(default_factory=list)
    ttft_s: float = 0.0
    first_tokens: int = 0
    total_s: float = 0.0
    laps: int = 0
    chunks: int = 0
    rows: int = 0
    coordinator_s: float = 0.0

    @property
    def tok_s(self) -> float:
        """Tokens a second after the first batch of them."""
        return (len(self.tokens) - self.first_tokens) / max(self.total_s - self.ttft_s, 1e-9)

    @property
    def accepted_per_lap(self) -> float:
        """Tokens of the answer for each verdict."""
        return len(self.tokens) / self.laps


def simulate(
    profile: Profile,
    language: Language,
    arm: Arm,
    *,
    prompt_tokens: Sequence[Token],
    max_tokens: int,
    proposer: Proposer | None = None,
) -> Outcome:
    """One answer by itself; with an instant `proposer` in place of the language's own guesses."""
    return _Simulation(profile, language, arm, prompt_tokens, max_tokens, proposer).run()


class _Simulation:
    def __init__(
        self,
        profile: Profile,
        language: Language,
        arm: Arm,
        prompt_tokens: Sequence[Token],
        max_tokens: int,
        proposer: Proposer | None,
    ) -> None:
        self.profile = profile
        self.language = language
        self._arm = arm
        self._proposer = proposer
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._stages = [
            _Stage(self, index, arm.limits.ring_chunks, is_last=index == len(profile.stages) - 1)
            for index in range(len(profile.stages))
        ]
        self._asked: deque[NeedDraft] = deque()
        self._is_guessing = False
        self._finish: Finish | None = None
        self._outcome = Outcome()
        self._generation = MeteredGeneration(
            SESSION, prompt_tokens, max_tokens=max_tokens, limits=arm.limits, waits_for_draft=proposer is not None
        )

    def run(self) -> Outcome:
        self._pump()
        while self._finish is None:
            if not self._events:
                raise LocalProtocolError("the simulated ring stands still")
            self._now, _, event = heappop(self._events)
            event()
        self._outcome.laps, self._outcome.total_s = self._finish.laps, self._now
        self._outcome.coordinator_s = self._generation.cpu_s
        return self._outcome

    def after(self, delay_s: float, event: Callable[[], None]) -> None:
        heappush(self._events, (self._now + delay_s, next(self._order), event))

    def send_on(self, stage: int, message: Activations, digests: Sequence[int]) -> None:
        way = self.profile.stages[stage], self.profile.stages[stage + 1]
        self.after(self.profile.one_way_s[way], partial(self._stages[stage + 1].receive, message, digests))

    def send_verdict(self, verdict: Verdict) -> None:
        way = self.profile.stages[-1], self.profile.driver
        self.after(self.profile.one_way_s[way], partial(self._judge, verdict))

    def _judge(self, verdict: Verdict) -> None:
        self._generation.receive_verdict(verdict, self._now)
        self._pump()

    def _wake(self) -> None:
        if self._now >= self._generation.wake_at:
            self._generation.wake(self._now)
            self._pump()

    def _pump(self) -> None:
        while (command := self._generation.next_command()) is not None:
            match command:
                case SendChunk(chunk):
                    self._send(chunk)
                case SendCommit(commit):
                    for stage, name in zip(self._stages, self.profile.stages, strict=True):
                        self.after(self.profile.one_way_s[self.profile.driver, name], partial(stage.commit, commit))
                case NeedDraft(request, _, paths, depth) if self._proposer is not None:
                    branches = self._proposer.propose(self._generation.text, paths, depth)
                    self._generation.receive_draft(request, branches, self._now)
                case NeedDraft():
                    self._asked.append(command)
                    self._guess()
                case Emit(tokens):
                    if not self._outcome.tokens:
                        self._outcome.ttft_s, self._outcome.first_tokens = self._now, len(tokens)
                    self._outcome.tokens.extend(tokens)
                case Finish():
                    self._finish = command
        if (at := self._generation.wake_at) < inf:
            self.after(max(0.0, at - self._now), self._wake)

    def _send(self, chunk: Chunk) -> None:
        self._outcome.chunks += 1
        self._outcome.rows += len(chunk.tokens)
        way = self.profile.driver, self.profile.stages[0]
        self.after(self.profile.one_way_s[way], partial(self._stages[0].receive, chunk, chunk.tokens))

    def _guess(self) -> None:
        if self._is_guessing or not self._asked:
            return
        self._is_guessing = True
        request = self._asked.popleft()
        text = self.language.digest(self._generation.text[: request.committed_tokens])
        branches = self.language.propose(text, request.paths, self._arm.guesses)

        def answer() -> None:
            self._is_guessing = False
            self._generation.receive_draft(request.request, branches, self._now)
            self._pump()
            self._guess()

        self.after(self.profile.draft_level_s, answer)


class _Stage:
    """One stage; its rows stand beside the messages."""

    def __init__(self, simulation: _Simulation, index: int, max_chunks: int, *, is_last: bool) -> None:
        self._simulation = simulation
        self._index = index
        self._is_last = is_last
        self._session = Session(cache_rows=CACHE_ROWS, max_chunks=max_chunks)
        self._rows = DigestRows(simulation.language, is_first=index == 0)
        self._inputs: dict[int, Sequence[int]] = {}
        self._is_busy = False

    def receive(self, arrival: Chunk | Activations, inputs: Sequence[int]) -> None:
        self._session.receive(arrival)
        self._inputs[arrival.ref.seq] = inputs
        self._begin()

    def commit(self, commit: Commit) -> None:
        self._session.commit(commit)

    def _begin(self) -> None:
        if not self._is_busy and (work := self._session.next_work()) is not None:
            self._is_busy = True
            took_s = self._simulation.profile.stage_s(len(work.rows))
            self._simulation.after(took_s, partial(self._end, work, took_s))

    def _end(self, work: Work, took_s: float) -> None:
        self._is_busy = False
        digests = self._rows.compute(work, self._inputs.pop(work.ref.seq))
        a, own_us = work.arrival, round(took_s * 1e6)
        before_us, slowest_us = (a.compute_us, a.slowest_us) if isinstance(a, Activations) else (0, 0)
        spent_us = before_us + own_us, max(slowest_us, own_us)
        if self._is_last:
            self._simulation.send_verdict(Verdict(a.ref, a.quiet, self._rows.choices(work, digests), *spent_us))
        else:
            frame = TensorFrame("raw", "float32", (len(digests), 1), bytes(4 * len(digests))) if digests else None
            done = Activations(a.ref, a.parents, a.root, a.quiet, work.skipped, frame, *spent_us)
            self._simulation.send_on(self._index, done, digests)
        self._begin()
