"""Every message of the protocols as a frozen value.

These are what the machines see; `wire.codec` turns them into bytes and back. The meaning of each field is written
in proto/shardp2p/v1 and docs/protocols/. A value that was decoded has passed the checks of its protocol page.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardp2p.vocabulary import (
    ChunkRef,
    DType,
    LayerRange,
    PeerId,
    SamplingParams,
    SessionId,
    Slot,
    Token,
    WireScheme,
)
from shardp2p.wire.carrying import CarryMessage
from shardp2p.wire.dialling_back import DialBackMessage
from shardp2p.wire.driving import GenerateMessage
from shardp2p.wire.news import GossipMessage
from shardp2p.wire.prefixes import Prefixes
from shardp2p.wire.seen import SightMessage
from shardp2p.wire.tensor_frame import TensorFrame


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """A peer and the multiaddrs at which it can be dialled, best first."""

    peer_id: PeerId
    addresses: tuple[str, ...] = ()


# /shardp2p/control/1


@dataclass(frozen=True, slots=True)
class Open:
    """Coordinator to stage: keep a session for me."""

    session: SessionId
    model_digest: str
    layers: LayerRange
    dtype: DType
    cache_rows: int
    max_chunks: int
    next: PeerAddress
    sampling: SamplingParams | None = None
    wire_scheme: WireScheme = "raw"
    prompt_tokens: int = 0
    prefixes: Prefixes | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """Stage to coordinator: the session stands, and has the rows of the first `shared_rows` tokens of its text."""

    layers: LayerRange
    cache_rows: int
    shared_rows: int = 0
    keeps_rows: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """Coordinator to stage: the committed leaf is `root`, a child of `parent`, whose verdict is known.

    `root` may be a slot that the stage has not seen yet; every other child of `parent` is dead.
    """

    epoch: int
    root: Slot
    parent: Slot


@dataclass(frozen=True, slots=True)
class Tokens:
    """Coordinator to last stage: the ids of the slots from `first_slot` on."""

    epoch: int
    first_slot: Slot
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """Stage to coordinator: the session is over. `peer_id` is the peer to blame, or None."""

    status: str
    message: str
    peer_id: PeerId | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """Coordinator to stage: no more chunks will come; and how the text begins, for later sessions."""

    prefixes: Prefixes | None = None


@dataclass(frozen=True, slots=True)
class Closed:
    """Stage to coordinator: the session is gone; what it cost."""

    chunks: int
    rows: int
    skipped_rows: int
    compute_s: float
    overhead_s: float


# /shardp2p/ring/1


@dataclass(frozen=True, slots=True)
class Hello:
    """Sender to receiver, first on a ring stream: which session it belongs to, and which place in its ring.

    `layer` is the next layer to run: the receiving stage's first one, or the model's number of layers where the
    receiver is the coordinator. So one peer may be several stages of a session, and its coordinator.
    """

    session: SessionId
    layer: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Coordinator to first stage: tokens [T] with the slot of each one's parent [T].

    Slots are `ref.first_slot`, +1, …; a parent is a smaller slot, or NO_PARENT for slot 0 alone.
    `root` is the latest committed slot that is sent, this chunk included. The first `quiet` rows need no verdict.
    """

    ref: ChunkRef
    tokens: tuple[Token, ...]
    parents: tuple[Slot, ...]
    root: Slot
    quiet: int = 0


@dataclass(frozen=True, slots=True)
class Activations:
    """Stage to next stage: a chunk's hidden rows without those skipped as dead (`skipped`: ascending row numbers).

    `hidden` has T - len(skipped) rows and is None when that is 0. `compute_us` sums what the stages so far took.
    """

    ref: ChunkRef
    parents: tuple[Slot, ...]
    root: Slot
    quiet: int
    skipped: tuple[int, ...]
    hidden: TensorFrame | None
    compute_us: int = 0
    slowest_us: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Last stage to coordinator: the target's choice after each row from `quiet` on; None for a skipped row."""

    ref: ChunkRef
    quiet: int
    choices: tuple[Token | None, ...]
    compute_us: int = 0
    slowest_us: int = 0


@dataclass(frozen=True, slots=True)
class Credit:
    """Receiver to sender: this many more messages may be sent."""

    messages: int


@dataclass(frozen=True, slots=True)
class End:
    """Sender to receiver: the stream ends here on purpose."""


# /shardp2p/swarm/1


@dataclass(frozen=True, slots=True)
class Describe:
    """Anyone to a peer: say what you are."""


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A peer's own account of itself. `model` is "" and `layers` None while it serves nothing."""

    peer_id: PeerId
    version: str
    pid: int
    rss_bytes: int
    model: str = ""
    model_digest: str = ""
    model_layers: int = 0
    layers: LayerRange | None = None
    dtype: DType = "float32"
    context_tokens: int = 0
    layer_bytes: int = 0
    load_growth_bytes: int = 0
    free_cache_rows: int = 0
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Ping:
    """Prober to peer: answer at once. `nonce` is random, so no answer can come before this arrived whole.

    `padding` makes it large, to measure bandwidth; the answer stays small.
    """

    nonce: bytes
    padding: bytes = b""


@dataclass(frozen=True, slots=True)
class Pong:
    """Peer to prober: the answer to the Ping of that nonce. So much padding may be sent from now on."""

    nonce: bytes
    room_bytes: int = 0


@dataclass(frozen=True, slots=True)
class AskRecord:
    """Anyone to a peer: send your newest coverage record."""


@dataclass(frozen=True, slots=True)
class OwnRecord:
    """The answer: the record as the peer sealed it; empty while it has none."""

    sealed: bytes


ControlMessage = Open | Opened | Commit | Tokens | Failure | Close | Closed
RingMessage = Hello | Chunk | Activations | Verdict | Credit | End
SwarmMessage = Describe | MemberInfo | AskRecord | OwnRecord | Ping | Pong | DialBackMessage | SightMessage
Message = ControlMessage | RingMessage | SwarmMessage | GenerateMessage | GossipMessage | CarryMessage
