"""How many tokens a round of verifying would have given, had a proposer drafted answers that are recorded.

    python -m shardp2p.lab.replay_drafts record MODEL PROMPTS.json ANSWERS.json
    python -m shardp2p.lab.replay_drafts replay ANSWERS.json

PROMPTS.json lists [kind, text] pairs. Recording needs the model; replaying is pure: a round asks the proposer below the
text, sends the likeliest drafts, and keeps those that the recorded answer has, and one token more.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from shardp2p.coordinator.commands import Proposer
from shardp2p.coordinator.nodes import Node
from shardp2p.coordinator.tree import TokenTree
from shardp2p.runtime.draft import PromptLookup
from shardp2p.vocabulary import Token

DRAFT_ROWS: Final = 15
"""Drafts in a round: a usual chunk, less the token that is committed."""

DRAFT_TOKENS: Final = 8
ASKED_ROUNDS: Final = 4
PATHS_AT_ONCE: Final = 16
RECORDED_TOKENS: Final = 192


@dataclass(frozen=True, slots=True)
class Recorded:
    """An answer of the real model to a prompt of some kind."""

    kind: str
    prompt: tuple[Token, ...]
    answer: tuple[Token, ...]


@dataclass(slots=True)
class Tally:
    """What came of it: tokens, the rounds that they took, and the rows that were verified for them."""

    tokens: int = 0
    rounds: int = 0
    rows: int = 0

    @property
    def tokens_per_round(self) -> float:
        """1.0 without drafts."""
        return self.tokens / self.rounds if self.rounds else 0.0

    def add(self, other: Tally) -> None:
        """Count another's as well."""
        self.tokens, self.rounds, self.rows = (
            self.tokens + other.tokens, self.rounds + other.rounds, self.rows + other.rows
        )  # fmt: skip


def replay(
    recorded: Recorded, proposer: Proposer, *, rows: int = DRAFT_ROWS, asked_rounds: int = ASKED_ROUNDS
) -> Tally:
    """One answer, round by round; the first token comes with the prompt's own round."""
    answer, tally = recorded.answer, Tally(1, 1, 1)
    while tally.tokens < len(answer):
        text = (*recorded.prompt, *answer[: tally.tokens])
        drafts = _draft(text, proposer, rows, asked_rounds)
        tally.rows += 1 + len(drafts)
        right, above = 0, None
        while tally.tokens + right < len(answer):
            above = drafts.get((above, answer[tally.tokens + right]))
            if above is None:
                break
            right += 1
        tally.tokens = min(len(answer), tally.tokens + right + 1)
        tally.rounds += 1
    proposer.finish((*recorded.prompt, *answer))
    return tally


def _draft(
    text: Sequence[Token], proposer: Proposer, rows: int, asked_rounds: int
) -> dict[tuple[Node | None, Token], Node]:
    """The likeliest drafts below `text`, by their parent (None: the text) and token."""
    tree = TokenTree(text)
    for _ in range(asked_rounds):
        leaves = tree.take_leaves(PATHS_AT_ONCE, 0.0)
        if not leaves:
            break
        paths = [tuple(tree.path_tokens(leaf)) for leaf in leaves]
        for leaf, branches in zip(leaves, proposer.propose(text, paths, DRAFT_TOKENS), strict=True):
            tree.graft(leaf, branches)
    return {(None if node.parent is tree.root else node.parent, node.token): node for node in tree.take_unsent(rows)}


def replay_all(answers: Sequence[Recorded], make: Callable[[], Proposer]) -> dict[str, Tally]:
    """Every answer with a proposer of its own; a tally for each kind, and for all of them."""
    tallies: dict[str, Tally] = {}
    for recorded in answers:
        one = replay(recorded, make())
        for name in (recorded.kind, "all"):
            tallies.setdefault(name, Tally()).add(one)
    return tallies


def read_answers(file: Path) -> list[Recorded]:
    """What `record` wrote."""
    return [Recorded(one["kind"], tuple(one["prompt"]), tuple(one["answer"])) for one in json.loads(file.read_text())]


def record(model: Path, prompts: Path, answers: Path, tokens: int = RECORDED_TOKENS) -> None:
    """Have the whole model of the directory answer every prompt greedily, to its own end."""
    from shardp2p.runtime.reference import Reference
    from shardp2p.runtime.tokenizer import Tokenizer

    tokenizer, reference = Tokenizer(model), Reference(model)
    recorded = []
    for kind, text in json.loads(prompts.read_text()):
        prompt = tokenizer.encode_chat([{"role": "user", "content": text}])
        answer = reference.generate(prompt, tokens, tokenizer.stop_tokens).tokens
        recorded.append(asdict(Recorded(kind, prompt, answer)))
    answers.write_text(json.dumps(recorded))


def _main(arguments: Sequence[str]) -> None:
    match arguments:
        case ["record", model, prompts, answers]:
            record(Path(model), Path(prompts), Path(answers))
        case ["replay", answers]:
            for name, tally in sorted(replay_all(read_answers(Path(answers)), PromptLookup).items()):
                rows = tally.rows / tally.tokens
                sys.stdout.write(f"{name:8} {tally.tokens_per_round:5.2f} tokens a round, {rows:5.2f} rows a token\n")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    _main(sys.argv[1:])
