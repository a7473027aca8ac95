"""Whatever the bytes, a peer's frame gives a value or RemoteProtocolError; a value that is sent is what arrives."""

from __future__ import annotations

from typing import Any, get_args

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as ProtobufMessage
from hypothesis import given, settings
from hypothesis import strategies as st

from shardp2p.errors import RemoteProtocolError
from shardp2p.vocabulary import ChunkRef, LayerRange, PeerId, SamplingParams, SessionId, Slot, SwarmId
from shardp2p.wire.carrying import Name, Named, Refused, Resume, Resumed
from shardp2p.wire.codec import decode, encode
from shardp2p.wire.dialling_back import AskDialBack, DialBackResult, DialOutcome
from shardp2p.wire.driving import Batch, Finished, Generate, LapTime, RingStage, Working
from shardp2p.wire.framing import HEADER_BYTES, FrameDecoder
from shardp2p.wire.messages import (
    Activations,
    Chunk,
    Close,
    Closed,
    Commit,
    Credit,
    Describe,
    End,
    Failure,
    Hello,
    MemberInfo,
    Message,
    Open,
    Opened,
    PeerAddress,
    Ping,
    Pong,
    Tokens,
    Verdict,
)
from shardp2p.wire.news import Farewell, Greeting, Heartbeat, News, RecordNews, ShortId, ValueId, ValueNews
from shardp2p.wire.pb import carry_pb2, control_pb2, generate_pb2, gossip_pb2, ring_pb2, swarm_pb2
from shardp2p.wire.prefixes import MAX_PREFIXES, Prefixes
from shardp2p.wire.protocols import CARRY, CONTROL, GENERATE, GOSSIP, KINDS, MAX_SLOT, RING, SWARM, limits_of
from shardp2p.wire.seen import AskSeen, Seen
from shardp2p.wire.tensor_frame import TensorFrame

UINT32, UINT64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
TOKENS = st.integers(0, MAX_SLOT)
ROWS = st.integers(1, MAX_SLOT)
SESSIONS = st.binary(min_size=16, max_size=16).map(lambda raw: SessionId(raw.hex()))
DIGESTS = st.binary(min_size=32, max_size=32).map(bytes.hex)
PEERS = st.from_regex(r"[0-9A-Za-z._-]{1,60}", fullmatch=True).map(PeerId)
ADDRESSES = st.builds(
    PeerAddress, PEERS, st.lists(st.from_regex(r"/[!-~]{1,40}", fullmatch=True), max_size=4).map(tuple)
)
DTYPES: st.SearchStrategy[Any] = st.sampled_from(["float32", "float16", "bfloat16"])
SCHEMES: st.SearchStrategy[Any] = st.sampled_from(["raw", "fp16", "int8"])
SECONDS = st.floats(0, 1e300)
TEXTS = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=30)


@st.composite
def layer_ranges(draw: st.DrawFn, stop: int = 1000) -> LayerRange:
    start = draw(st.integers(0, stop - 1))
    return LayerRange(start, draw(st.integers(start + 1, stop)))


@st.composite
def rows(draw: st.DrawFn) -> tuple[ChunkRef, tuple[Slot, ...], Slot, int]:
    """Reference, parents, root and quiet of a valid chunk."""
    count = draw(st.integers(1, 12))
    first = draw(st.one_of(st.just(0), st.integers(0, MAX_SLOT + 1 - count)))
    ref = ChunkRef(draw(SESSIONS), draw(UINT32), draw(UINT64), Slot(first))
    parents = [draw(st.integers(-1 if slot == 0 else 0, max(slot - 1, -1))) for slot in range(first, first + count)]
    root = draw(st.integers(0, first + count - 1))
    return ref, tuple(map(Slot, parents)), Slot(root), draw(st.integers(0, count))


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    ref, parents, root, quiet = draw(rows())
    tokens = draw(st.lists(TOKENS, min_size=len(parents), max_size=len(parents)))
    return Chunk(ref, tuple(tokens), parents, root, quiet)


@st.composite
def activations(draw: st.DrawFn) -> Activations:
    ref, parents, root, quiet = draw(rows())
    skipped = tuple(row for row in range(len(parents)) if draw(st.booleans()))
    hidden = None
    if computed := len(parents) - len(skipped):
        scheme, dtype, width = draw(SCHEMES), draw(DTYPES), draw(st.sampled_from([1, 2, 5, 128, 260]))
        item = {"fp16": 2, "int8": 1}.get(scheme) or (4 if dtype == "float32" else 2)
        data = draw(st.binary(min_size=computed * width * item, max_size=computed * width * item))
        scales = b"" if scheme == "raw" else draw(st.binary(min_size=4 * computed, max_size=4 * computed))
        outliers = b""
        if scheme == "int8" and width >= 128 and draw(st.booleans()):
            outliers = draw(st.binary(min_size=8, max_size=8)) * (computed * (width // 128))
        hidden = TensorFrame(scheme, dtype, (computed, width), data, scales, outliers)
    return Activations(ref, parents, root, quiet, skipped, hidden, draw(UINT64))


@st.composite
def verdicts(draw: st.DrawFn) -> Verdict:
    ref, parents, _, quiet = draw(rows())
    count = len(parents) - quiet
    choices = draw(st.lists(st.one_of(st.none(), TOKENS), min_size=count, max_size=count))
    return Verdict(ref, quiet, tuple(choices), draw(UINT64))


SAMPLING = st.builds(
    SamplingParams,
    temperature=st.floats(0, 100),
    top_k=st.integers(0, MAX_SLOT),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.01, 100),
    frequency_penalty=st.floats(-100, 100),
    presence_penalty=st.floats(-100, 100),
    logit_bias=st.lists(st.tuples(TOKENS, st.floats(-1000, 1000)), max_size=5).map(tuple),
    seed=UINT64,
)
PREFIXES = st.one_of(
    st.none(),
    st.builds(
        Prefixes,
        st.integers(1, MAX_SLOT // MAX_PREFIXES),
        st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=4).map(tuple),
    ),
)
OPENS = st.builds(
    Open,
    session=SESSIONS,
    model_digest=DIGESTS,
    layers=layer_ranges(),
    dtype=DTYPES,
    cache_rows=ROWS,
    max_chunks=st.integers(1, 1024),
    next=ADDRESSES,
    sampling=st.one_of(st.none(), SAMPLING),
    wire_scheme=SCHEMES,
    prompt_tokens=st.integers(0, MAX_SLOT),
    prefixes=PREFIXES,
)
MEMBERS = st.builds(
    MemberInfo,
    peer_id=PEERS,
    version=TEXTS,
    pid=UINT32,
    rss_bytes=UINT64,
    model=TEXTS,
    model_digest=st.one_of(st.just(""), DIGESTS),
    model_layers=st.integers(100, 2**32 - 1),
    layers=st.one_of(st.none(), layer_ranges(100)),
    dtype=DTYPES,
    context_tokens=UINT32,
    layer_bytes=UINT64,
    load_growth_bytes=UINT64,
    free_cache_rows=UINT32,
    device=TEXTS,
)
PORTS = st.integers(1, 2**16 - 1)
HOSTS = st.ip_addresses().map(str).filter(lambda host: "%" not in host)
OUTCOMES = st.sampled_from(get_args(DialOutcome))
NONCES = st.binary(min_size=16, max_size=16)
COMMITS = st.tuples(UINT32, st.integers(0, MAX_SLOT - 1)).flatmap(
    lambda pair: st.builds(Commit, st.just(pair[0]), st.integers(pair[1] + 1, MAX_SLOT), st.just(pair[1]))
)
FAILURES = st.builds(Failure, st.text("abc", max_size=32), TEXTS, st.one_of(st.none(), PEERS))
IDS = st.lists(TOKENS, min_size=1, max_size=20).map(tuple)


@st.composite
def rings(draw: st.DrawFn) -> tuple[RingStage, ...]:
    cuts = [0, *sorted(draw(st.sets(st.integers(1, 100), min_size=1, max_size=5)))]
    peers = [draw(ADDRESSES) for _ in cuts[1:]]
    return tuple(
        RingStage(p.peer_id, p.addresses, LayerRange(a, b)) for p, a, b in zip(peers, cuts[:-1], cuts[1:], strict=True)
    )


GENERATES = st.builds(
    Generate,
    model=TEXTS,
    model_digest=DIGESTS,
    dtype=DTYPES,
    context_tokens=st.integers(1, MAX_SLOT),
    stages=rings(),
    prompt_tokens=IDS,
    max_tokens=st.integers(1, MAX_SLOT),
    stop_tokens=st.lists(TOKENS, max_size=4).map(tuple),
    vocab_size=st.integers(0, MAX_SLOT),
    sampling=SAMPLING,
    budget_s=st.one_of(st.none(), st.floats(0.001, 1e9)),
    draft=st.sampled_from(["none", "lookup"]),
    shares_rows=st.booleans(),
    max_chunks=st.integers(1, 1024),
    chunk_tokens=st.integers(1, 4096),
    prefill_tokens=st.integers(1, 4096),
    draft_tokens=st.integers(0, 4096),
)
HEARTBEATS = st.builds(
    Heartbeat,
    st.binary(min_size=8, max_size=8).map(ShortId),
    st.integers(1, 2**48 - 1),
    st.integers(0, 1024),
    NONCES,
    st.integers(0, 2**16 - 1).map(lambda eighths: eighths / 8),
)
VALUE_IDS = st.builds(ValueId, st.integers(0, 255), NONCES)
NEWS = st.builds(
    News,
    st.lists(HEARTBEATS, max_size=4).map(tuple),
    st.lists(st.builds(RecordNews, st.binary(max_size=30), HEARTBEATS), max_size=3).map(tuple),
    st.lists(st.binary(min_size=8, max_size=8).map(ShortId), max_size=4).map(tuple),
    st.lists(VALUE_IDS, max_size=4).map(tuple),
    st.lists(VALUE_IDS, max_size=4).map(tuple),
    st.lists(st.builds(ValueNews, st.integers(0, 255), st.binary(max_size=30)), max_size=3).map(tuple),
)
MESSAGES: dict[str, st.SearchStrategy[Message]] = {
    CONTROL: st.one_of(
        OPENS,
        st.builds(Opened, layer_ranges(), st.integers(100, MAX_SLOT), st.integers(0, 100), st.booleans()),
        COMMITS,
        st.builds(Tokens, UINT32, st.integers(0, MAX_SLOT - 20), st.lists(TOKENS, min_size=1, max_size=20).map(tuple)),
        FAILURES,
        st.builds(Close, PREFIXES),
        st.builds(Closed, UINT64, UINT64, UINT64, SECONDS, SECONDS),
    ),
    RING: st.one_of(
        st.builds(Hello, SESSIONS, UINT32),
        chunks(),
        activations(),
        verdicts(),
        st.builds(Credit, st.integers(1, 1024)),
        st.builds(End),
    ),
    GENERATE: st.one_of(
        GENERATES,
        st.builds(Batch, IDS),
        st.builds(Working),
        st.builds(
            Finished,
            st.sampled_from(["stop", "length"]),
            UINT32,
            UINT32,
            SECONDS,
            SECONDS,
            st.lists(st.builds(LapTime, UINT32, SECONDS, SECONDS), max_size=4).map(tuple),
        ),
        FAILURES,
    ),
    SWARM: st.one_of(
        st.builds(Describe),
        MEMBERS,
        st.builds(Ping, NONCES, st.binary(max_size=100)),
        st.builds(Pong, NONCES, st.integers(0, 2**30)),
        st.builds(AskSeen),
        st.one_of(st.just(Seen("", 0)), st.builds(Seen, HOSTS, PORTS)),
        st.builds(AskDialBack, NONCES, st.lists(PORTS, min_size=1, max_size=4, unique=True).map(tuple)),
        st.builds(DialBackResult, NONCES, HOSTS, PORTS, st.lists(OUTCOMES, min_size=1, max_size=4).map(tuple)),
    ),
    GOSSIP: st.one_of(st.builds(Greeting, PEERS.map(SwarmId)), NEWS, st.builds(Farewell, TEXTS)),
    CARRY: st.one_of(
        st.builds(Name, NONCES),
        st.just(Named()),
        st.builds(Resume, NONCES, st.integers(1, 2**32 - 1), UINT64),
        st.builds(Resumed, UINT64),
        st.builds(Refused, TEXTS),
    ),
}
TRAFFIC = st.sampled_from(list(MESSAGES)).flatmap(lambda protocol: st.tuples(st.just(protocol), MESSAGES[protocol]))
SCHEMAS: dict[tuple[str, int], type[ProtobufMessage]] = {
    (protocol, kind.number): getattr(control_pb2 if kind.message is Failure else module, kind.message.__name__)
    for protocol, module in (
        (CONTROL, control_pb2),
        (RING, ring_pb2),
        (SWARM, swarm_pb2),
        (GENERATE, generate_pb2),
        (GOSSIP, gossip_pb2),
        (CARRY, carry_pb2),
    )
    for kind in KINDS[protocol]
}
KIND = st.sampled_from([(protocol, kind.number) for protocol, kinds in KINDS.items() for kind in kinds])


def value_or_remote_error(protocol: str, kind: int, payload: bytes | memoryview) -> None:
    """Any other exception fails the test; a value must also be one that may be sent and arrives unchanged."""
    try:
        message = decode(protocol, kind, payload)
    except RemoteProtocolError:
        return
    frame = encode(protocol, message)
    assert decode(protocol, frame[0], frame[HEADER_BYTES:]) == message


@given(TRAFFIC)
def test_what_is_sent_is_what_arrives(traffic: tuple[str, Message]) -> None:
    protocol, message = traffic
    decoder = FrameDecoder(limits_of(protocol))
    decoder.feed(encode(protocol, message))
    frame = decoder.next_frame()
    assert frame is not None
    assert decoder.buffered_bytes == 0
    assert decode(protocol, *frame) == message


@settings(max_examples=500)
@given(KIND, st.binary(max_size=200))
def test_random_payloads_give_a_value_or_the_peers_fault(kind: tuple[str, int], payload: bytes) -> None:
    value_or_remote_error(*kind, payload)


@settings(max_examples=400)
@given(TRAFFIC, st.data())
def test_mutated_messages_give_a_value_or_the_peers_fault(traffic: tuple[str, Message], data: st.DataObject) -> None:
    protocol, message = traffic
    frame = encode(protocol, message)
    payload = bytearray(frame[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(payload)))
        match data.draw(st.sampled_from(["flip", "insert", "delete", "repeat"])):
            case "flip" if at < len(payload):
                payload[at] ^= 1 << data.draw(st.integers(0, 7))
            case "insert":
                payload[at:at] = data.draw(st.binary(min_size=1, max_size=6))
            case "delete":
                del payload[at : at + data.draw(st.integers(1, 6))]
            case _:
                payload += payload[at:]
    value_or_remote_error(protocol, frame[0], bytes(payload[: limits_of(protocol)[frame[0]]]))


def scalars(field: Any) -> st.SearchStrategy[Any]:
    """Values that protobuf accepts for `field`, near the edges of our rules more often than far from them."""
    match field.type:
        case FieldDescriptor.TYPE_UINT32 | FieldDescriptor.TYPE_UINT64:
            return st.one_of(st.integers(0, 6), UINT32)
        case FieldDescriptor.TYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.TYPE_SINT32 | FieldDescriptor.TYPE_ENUM:
            return st.one_of(st.integers(-2, 6), st.integers(-(2**31), MAX_SLOT))
        case FieldDescriptor.TYPE_DOUBLE:
            return st.one_of(st.floats(), st.floats(0, 1))
        case FieldDescriptor.TYPE_BYTES:
            return st.one_of(st.just(bytes(16)), st.binary(max_size=24))
        case FieldDescriptor.TYPE_STRING:
            return st.one_of(st.sampled_from(["ab" * 32, "float32", "peer", "/a", ""]), st.text(max_size=8))
    raise AssertionError(f"{field.full_name} has a type that the fuzz does not know")


def fill(data: st.DataObject, message: ProtobufMessage) -> None:
    """Set any fields of `message` to any values."""
    for field in message.DESCRIPTOR.fields:
        count = data.draw(st.integers(0, 4)) if field.is_repeated else 1
        if field.message_type is not None:
            for _ in range(count if field.is_repeated else data.draw(st.integers(0, 1))):
                part = getattr(message, field.name)
                fill(data, part.add() if field.is_repeated else part)
        elif field.is_repeated:
            getattr(message, field.name).extend(data.draw(st.lists(scalars(field), min_size=count, max_size=count)))
        else:
            setattr(message, field.name, data.draw(scalars(field)))


@settings(max_examples=400)
@given(KIND, st.data())
def test_any_values_in_valid_protobuf_give_a_value_or_the_peers_fault(
    kind: tuple[str, int], data: st.DataObject
) -> None:
    wire = SCHEMAS[kind]()
    fill(data, wire)
    payload = wire.SerializeToString()
    value_or_remote_error(*kind, payload[: limits_of(kind[0])[kind[1]]])


@given(KIND, st.integers(1, 2000))
def test_deeply_nested_groups_give_a_value_or_the_peers_fault(kind: tuple[str, int], depth: int) -> None:
    start_group = b"\xfb\x01"
    value_or_remote_error(*kind, (start_group * depth)[: limits_of(kind[0])[kind[1]]])


@given(st.sampled_from(list(KINDS)), st.lists(st.binary(max_size=40), max_size=10))
def test_random_streams_give_frames_or_the_peers_fault(protocol: str, pieces: list[bytes]) -> None:
    decoder = FrameDecoder(limits_of(protocol))
    try:
        for piece in pieces:
            decoder.feed(piece)
            while (frame := decoder.next_frame()) is not None:
                value_or_remote_error(protocol, *frame)
    except RemoteProtocolError:
        return
