"""Writes the golden vectors of every protocol: `python tests/vectors/regenerate.py [OUTPUT_DIRECTORY]`.

A vector is a frame in hexadecimal with what it means, or with the kind of error (the wire status of errors.py) that a
receiver must raise. Run again, this gives the same bytes; a changed vector is a new version of its protocol.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from google.protobuf.message import Message as ProtobufMessage

from shardp2p.vocabulary import ChunkRef, LayerRange, ModelId, PeerId, SamplingParams, SessionId, Slot, SwarmId
from shardp2p.wire.carrying import Name, Named, Refused, Resume, Resumed
from shardp2p.wire.codec import encode
from shardp2p.wire.dialling_back import AskDialBack, DialBackResult
from shardp2p.wire.driving import Batch, Finished, Generate, LapTime, RingStage, Working
from shardp2p.wire.framing import encode_frame
from shardp2p.wire.messages import (
    Activations,
    AskRecord,
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
    OwnRecord,
    PeerAddress,
    Ping,
    Pong,
    Tokens,
    Verdict,
)
from shardp2p.wire.news import Farewell, Greeting, Heartbeat, News, RecordNews, ShortId, ValueId, ValueNews
from shardp2p.wire.pb import carry_pb2, control_pb2, generate_pb2, gossip_pb2, ring_pb2, swarm_pb2
from shardp2p.wire.prefixes import Prefixes
from shardp2p.wire.protocols import CARRY, CONTROL, GENERATE, GOSSIP, KINDS, RING, SWARM
from shardp2p.wire.seen import AskSeen, Seen
from shardp2p.wire.tensor_frame import TensorFrame

HERE = Path(__file__).resolve().parent
PEER = PeerId("12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo")
SESSION = SessionId("000102030405060708090a0b0c0d0e0f")
DIGEST = "ab" * 32

Change = Callable[[Any], object]
"""Makes a valid protobuf message wrong."""


def ref(first_slot: int, *, epoch: int = 0, seq: int = 0) -> ChunkRef:
    return ChunkRef(SESSION, epoch, seq, Slot(first_slot))


def slots(*numbers: int) -> tuple[Slot, ...]:
    return tuple(map(Slot, numbers))


OPEN = Open(
    session=SESSION,
    model_digest=DIGEST,
    layers=LayerRange(15, 30),
    dtype="bfloat16",
    cache_rows=2048,
    max_chunks=8,
    next=PeerAddress(PEER, ("/ip4/192.0.2.7/tcp/4001", "/dns4/peer.example/tcp/4001")),
    sampling=SamplingParams(
        temperature=0.8,
        top_k=40,
        top_p=0.95,
        min_p=0.05,
        repetition_penalty=1.1,
        frequency_penalty=-0.5,
        presence_penalty=0.25,
        logit_bias=((7, -100.0), (9, 1.5)),
        seed=2**64 - 1,
    ),
    wire_scheme="int8",
    prompt_tokens=17,
)
PREFIXES = Prefixes(64, (bytes(range(16)), bytes(range(16, 32))))
MIDDLE_OPEN = Open(SESSION, DIGEST, LayerRange(0, 1), "float32", 1, 1, PeerAddress(PEER))
PREFILL = Chunk(ref(0), (101, 7, 7), slots(-1, 0, 1), Slot(2), quiet=2)
TREE = Chunk(ref(3, epoch=1, seq=5), (11, 12, 13, 14), slots(2, 3, 3, 1), Slot(3))
RAW = Activations(
    ref(3, seq=1),
    slots(2, 3, 3),
    Slot(3),
    0,
    (1,),
    TensorFrame("raw", "float32", (2, 2), bytes.fromhex("0000803f000000c00000003f00000000")),
    compute_us=1500,
    slowest_us=900,
)
INT8 = dataclasses.replace(
    RAW, hidden=TensorFrame("int8", "bfloat16", (2, 2), bytes.fromhex("7f81ff00"), bytes.fromhex("0000803f0000003f"))
)
INT8_OUTLIERS = dataclasses.replace(
    RAW,
    hidden=TensorFrame(
        "int8", "float32", (2, 128), bytes(range(256)), bytes.fromhex("0000003f0000403f"),
        bytes.fromhex("050000007f000000" + "00c0c2460000c0c7"),
    ),
)  # fmt: skip
FP16 = dataclasses.replace(
    RAW,
    hidden=TensorFrame("fp16", "float32", (2, 2), bytes.fromhex("ff7b00c000380080"), bytes.fromhex("000000400000803f")),
)
ALL_SKIPPED = Activations(ref(6, seq=2), slots(5), Slot(3), 1, (0,), None)
VERDICT = Verdict(ref(3, seq=1), 1, (42, None, 2**31 - 1), compute_us=2500, slowest_us=1000)
MEMBER = MemberInfo(
    peer_id=PEER,
    version="0.1.0",
    pid=4711,
    rss_bytes=400_000_000,
    model="smollm2",
    model_digest=DIGEST,
    model_layers=30,
    layers=LayerRange(0, 15),
    dtype="bfloat16",
    context_tokens=8192,
    layer_bytes=106_000_000,
    load_growth_bytes=110_000_000,
    free_cache_rows=4096,
    device="cpu",
)
GENERATION = Generate(
    model=ModelId("smollm2"),
    model_digest=DIGEST,
    dtype="bfloat16",
    context_tokens=8192,
    stages=(
        RingStage(PEER, ("/ip4/192.0.2.7/tcp/4001",), LayerRange(0, 10)),
        RingStage(PeerId("12D3KooWother"), (), LayerRange(10, 20)),
        RingStage(PEER, ("/ip4/192.0.2.7/tcp/4001",), LayerRange(20, 30)),
    ),
    prompt_tokens=(1, 0, 2**31 - 1),
    max_tokens=256,
    stop_tokens=(2,),
    vocab_size=49152,
    sampling=OPEN.sampling or SamplingParams(),
    budget_s=30.5,
    draft="lookup",
    max_chunks=4,
    chunk_tokens=16,
    prefill_tokens=256,
    draft_tokens=8,
)
SHORT_GENERATION = Generate(
    ModelId(""), DIGEST, "float32", 1, (RingStage(PEER, (), LayerRange(0, 1)),), prompt_tokens=(0,), max_tokens=1
)
FINISHED = Finished("stop", 5, 3, 0.25, 1.5, (LapTime(17, 0.25, 0.125), LapTime(4, 0.5, 0.0625)))

HEARTBEAT = Heartbeat(ShortId(bytes(range(8))), 1_700_000_000_123, 7, bytes(range(16)), 2.5)
NEWS = News(
    heartbeats=(HEARTBEAT, dataclasses.replace(HEARTBEAT, count=1024, age_s=0.0)),
    records=(RecordNews(b"a sealed record", HEARTBEAT), RecordNews(b"another", HEARTBEAT, b"a proof of membership")),
    record_wants=(ShortId(b"peer one"), ShortId(b"peer two")),
    offers=(ValueId(1, bytes(16)),),
    value_wants=(ValueId(2, bytes(range(16))),),
    values=(ValueNews(1, b"a sealed revocation"),),
    proof_wants=(ShortId(b"peer six"),),
)
RESUME = Resume(bytes(range(16)), 3, 4711)

VALID: Mapping[str, Mapping[str, Message]] = {
    CONTROL: {
        "open_last_stage": OPEN,
        "open_middle_stage": MIDDLE_OPEN,
        "open_fp16": dataclasses.replace(MIDDLE_OPEN, wire_scheme="fp16"),
        "open_with_prefixes": dataclasses.replace(MIDDLE_OPEN, prefixes=PREFIXES),
        "opened": Opened(LayerRange(15, 30), 2048),
        "opened_with_shared_rows": Opened(LayerRange(15, 30), 2048, 128, keeps_rows=True),
        "commit": Commit(1, Slot(9), Slot(4)),
        "tokens": Tokens(0, Slot(5), (1, 0, 2**31 - 1)),
        "failure_with_blame": Failure("unavailable", "the next stage is gone: Überraschung", PEER),
        "failure_without_blame": Failure("internal", ""),
        "close": Close(),
        "close_with_prefixes": Close(PREFIXES),
        "closed": Closed(12, 300, 5, 1.25, 0.0625),
    },
    RING: {
        "hello": Hello(SESSION, 15),
        "hello_to_the_first_stage": Hello(SESSION, 0),
        "chunk_prefill": PREFILL,
        "chunk_tree": TREE,
        "activations_raw": RAW,
        "activations_int8": INT8,
        "activations_int8_outliers": INT8_OUTLIERS,
        "activations_fp16": FP16,
        "activations_all_skipped": ALL_SKIPPED,
        "verdict": VERDICT,
        "verdict_of_quiet_chunk": Verdict(ref(0), 3, ()),
        "credit": Credit(8),
        "end": End(),
    },
    GENERATE: {
        "generate": GENERATION,
        "generate_without_options": SHORT_GENERATION,
        "generate_that_shares_rows": dataclasses.replace(SHORT_GENERATION, shares_rows=True),
        "generate_that_waits": dataclasses.replace(SHORT_GENERATION, wait_s=7.5),
        "generate_that_wants_signs": dataclasses.replace(SHORT_GENERATION, wants_signs=True),
        "generate_int8": dataclasses.replace(SHORT_GENERATION, wire_scheme="int8"),
        "batch": Batch((5, 0, 2**31 - 1)),
        "working": Working(),
        "finished": FINISHED,
        "finished_without_laps": Finished("length", 1, 1, 0.0, 0.0),
        "failure": Failure("unavailable", "stage 2 of 3 went away", PEER),
    },
    SWARM: {
        "describe": Describe(),
        "member_serving": MEMBER,
        "member_idle": MemberInfo(PEER, "0.1.0", 1, 0),
        "ask_record": AskRecord(),
        "own_record": OwnRecord(bytes(range(200))),
        "own_record_none": OwnRecord(b""),
        "ping": Ping(bytes(range(16))),
        "ping_with_padding": Ping(bytes(range(16)), b"padding"),
        "pong": Pong(bytes(range(16)), 507_904),
        "pong_without_room": Pong(bytes(range(16))),
        "ask_seen": AskSeen(),
        "seen": Seen("45.45.0.7", 51000),
        "seen_of_ipv6": Seen("2a00:1450::7", 51000),
        "seen_over_a_relay": Seen("", 0),
        "ask_dial_back": AskDialBack(bytes(range(16)), (4001, 443)),
        "dial_back_result": DialBackResult(bytes(range(16)), "45.45.0.7", 51000, ("open", "refused")),
        "dial_back_result_of_ipv6": DialBackResult(bytes(range(16)), "2a00:1450::7", 51000, ("timeout", "other")),
    },
    GOSSIP: {
        "greeting": Greeting(SwarmId(PEER)),
        "news": NEWS,
        "news_of_nothing": News(),
        "farewell": Farewell("no room"),
    },
    CARRY: {
        "name": Name(bytes(range(16))),
        "named": Named(),
        "resume": RESUME,
        "resume_from_the_start": Resume(bytes(16), 1, 0),
        "resumed": Resumed(2**33),
        "refused": Refused("another move came first"),
    },
}

SEEN = Seen("45.45.0.7", 51000)
ASK_DIAL_BACK = AskDialBack(bytes(16), (4001, 443))
DIAL_BACK_RESULT = DialBackResult(bytes(16), "45.45.0.7", 51000, ("open",))

INVALID: Mapping[str, Mapping[str, tuple[type[ProtobufMessage], Message, Change]]] = {
    CONTROL: {
        "open_session_of_15_bytes": (control_pb2.Open, OPEN, lambda m: setattr(m, "session", bytes(15))),
        "open_digest_in_capitals": (control_pb2.Open, OPEN, lambda m: setattr(m, "model_digest", "AB" * 32)),
        "open_without_layers": (control_pb2.Open, OPEN, lambda m: m.ClearField("layers")),
        "open_empty_layers": (control_pb2.Open, OPEN, lambda m: setattr(m.layers, "stop", 15)),
        "open_unknown_dtype": (control_pb2.Open, OPEN, lambda m: setattr(m, "dtype", "float8")),
        "open_unknown_scheme": (control_pb2.Open, OPEN, lambda m: setattr(m, "wire_scheme", 9)),
        "open_without_cache": (control_pb2.Open, OPEN, lambda m: setattr(m, "cache_rows", 0)),
        "open_too_many_chunks": (control_pb2.Open, OPEN, lambda m: setattr(m, "max_chunks", 1025)),
        "open_without_next": (control_pb2.Open, OPEN, lambda m: m.ClearField("next")),
        "open_peer_id_with_space": (control_pb2.Open, OPEN, lambda m: setattr(m.next, "peer_id", "a b")),
        "open_bad_multiaddr": (control_pb2.Open, OPEN, lambda m: m.next.addresses.append("192.0.2.7:4001")),
        "open_33_addresses": (control_pb2.Open, OPEN, lambda m: m.next.addresses.extend(["/ip4/192.0.2.7"] * 31)),
        "open_nan_temperature": (control_pb2.Open, OPEN, lambda m: setattr(m.sampling, "temperature", float("nan"))),
        "open_zero_top_p": (control_pb2.Open, OPEN, lambda m: setattr(m.sampling, "top_p", 0.0)),
        "open_infinite_bias": (control_pb2.Open, OPEN, lambda m: m.sampling.logit_bias.add(token=1, bias=float("inf"))),
        "opened_without_layers": (control_pb2.Opened, VALID[CONTROL]["opened"], lambda m: m.ClearField("layers")),
        "opened_more_shared_rows_than_rows": (
            control_pb2.Opened,
            VALID[CONTROL]["opened"],
            lambda m: setattr(m, "shared_rows", 2049),
        ),
        "open_no_prefixes": (
            control_pb2.Open,
            VALID[CONTROL]["open_with_prefixes"],
            lambda m: m.prefixes.ClearField("digests"),
        ),
        "close_prefix_of_15_bytes": (
            control_pb2.Close,
            VALID[CONTROL]["close_with_prefixes"],
            lambda m: m.prefixes.digests.append(bytes(15)),
        ),
        "close_513_prefixes": (
            control_pb2.Close,
            VALID[CONTROL]["close_with_prefixes"],
            lambda m: m.prefixes.digests.extend([bytes(16)] * 511),
        ),
        "close_prefixes_no_tokens_apart": (
            control_pb2.Close,
            VALID[CONTROL]["close_with_prefixes"],
            lambda m: m.prefixes.ClearField("step_tokens"),
        ),
        "commit_root_is_its_own_parent": (
            control_pb2.Commit,
            VALID[CONTROL]["commit"],
            lambda m: setattr(m, "parent", 9),
        ),
        "tokens_none": (control_pb2.Tokens, VALID[CONTROL]["tokens"], lambda m: m.ClearField("tokens")),
        "tokens_id_of_32_bits": (control_pb2.Tokens, VALID[CONTROL]["tokens"], lambda m: m.tokens.append(2**31)),
        "failure_with_escape_sequence": (
            control_pb2.Failure,
            VALID[CONTROL]["failure_with_blame"],
            lambda m: setattr(m, "message", "\x1b[2J"),
        ),
        "failure_of_2001_characters": (
            control_pb2.Failure,
            VALID[CONTROL]["failure_with_blame"],
            lambda m: setattr(m, "message", "x" * 2001),
        ),
        "closed_negative_seconds": (
            control_pb2.Closed,
            VALID[CONTROL]["closed"],
            lambda m: setattr(m, "compute_s", -1.0),
        ),
    },
    RING: {
        "hello_without_session": (ring_pb2.Hello, VALID[RING]["hello"], lambda m: m.ClearField("session")),
        "chunk_without_ref": (ring_pb2.Chunk, TREE, lambda m: m.ClearField("ref")),
        "chunk_without_rows": (ring_pb2.Chunk, TREE, lambda m: (m.ClearField("tokens"), m.ClearField("parents"))),
        "chunk_more_tokens_than_parents": (ring_pb2.Chunk, TREE, lambda m: m.tokens.append(1)),
        "chunk_parent_is_itself": (ring_pb2.Chunk, TREE, lambda m: m.parents.__setitem__(1, 4)),
        "chunk_no_parent_after_slot_0": (ring_pb2.Chunk, TREE, lambda m: m.parents.__setitem__(0, -1)),
        "chunk_slot_0_is_its_own_parent": (ring_pb2.Chunk, PREFILL, lambda m: m.parents.__setitem__(0, 0)),
        "chunk_root_not_sent": (ring_pb2.Chunk, TREE, lambda m: setattr(m, "root", 7)),
        "chunk_more_quiet_than_rows": (ring_pb2.Chunk, TREE, lambda m: setattr(m, "quiet", 5)),
        "chunk_slots_beyond_the_last": (ring_pb2.Chunk, TREE, lambda m: setattr(m.ref, "first_slot", 2**31 - 2)),
        "activations_skipped_not_ascending": (ring_pb2.Activations, RAW, lambda m: m.skipped.append(1)),
        "activations_skipped_out_of_range": (ring_pb2.Activations, RAW, lambda m: m.skipped.__setitem__(0, 3)),
        "activations_a_row_too_few": (ring_pb2.Activations, RAW, lambda m: m.ClearField("skipped")),
        "activations_hidden_missing": (ring_pb2.Activations, RAW, lambda m: m.ClearField("hidden")),
        "activations_hidden_and_all_skipped": (ring_pb2.Activations, RAW, lambda m: m.skipped.extend((2, 3))),
        "activations_short_data": (ring_pb2.Activations, RAW, lambda m: setattr(m.hidden, "data", bytes(15))),
        "activations_shape_of_one_dimension": (ring_pb2.Activations, RAW, lambda m: m.hidden.shape.pop()),
        "activations_scales_of_raw": (ring_pb2.Activations, RAW, lambda m: setattr(m.hidden, "scales", bytes(8))),
        "activations_scale_missing": (ring_pb2.Activations, INT8, lambda m: setattr(m.hidden, "scales", bytes(4))),
        "activations_outliers_short": (
            ring_pb2.Activations,
            INT8_OUTLIERS,
            lambda m: setattr(m.hidden, "outliers", bytes(8)),
        ),
        "activations_outliers_missing": (
            ring_pb2.Activations,
            INT8_OUTLIERS,
            lambda m: m.hidden.ClearField("outliers"),
        ),
        "activations_outliers_of_int8": (ring_pb2.Activations, INT8_OUTLIERS, lambda m: setattr(m.hidden, "scheme", 2)),
        "activations_fp16_short_data": (ring_pb2.Activations, FP16, lambda m: setattr(m.hidden, "data", bytes(4))),
        "activations_fp16_without_scales": (ring_pb2.Activations, FP16, lambda m: m.hidden.ClearField("scales")),
        "activations_unknown_dtype": (ring_pb2.Activations, RAW, lambda m: setattr(m.hidden, "dtype", 0)),
        "verdict_choice_below_minus_1": (ring_pb2.Verdict, VERDICT, lambda m: m.choices.append(-2)),
        "verdict_on_nothing": (ring_pb2.Verdict, VERDICT, lambda m: (m.ClearField("choices"), m.ClearField("quiet"))),
        "credit_of_nothing": (ring_pb2.Credit, Credit(8), lambda m: m.ClearField("messages")),
        "credit_too_large": (ring_pb2.Credit, Credit(8), lambda m: setattr(m, "messages", 1025)),
    },
    GENERATE: {
        "generate_short_digest": (generate_pb2.Generate, GENERATION, lambda m: setattr(m, "model_digest", "ab")),
        "generate_model_of_two_lines": (generate_pb2.Generate, GENERATION, lambda m: setattr(m, "model", "a\nb")),
        "generate_unknown_dtype": (generate_pb2.Generate, GENERATION, lambda m: setattr(m, "dtype", "")),
        "generate_without_stages": (generate_pb2.Generate, GENERATION, lambda m: m.ClearField("stages")),
        "generate_65_stages": (
            generate_pb2.Generate,
            SHORT_GENERATION,
            lambda m: m.stages.extend([m.stages[0]] * 64),
        ),
        "generate_gap_in_layers": (
            generate_pb2.Generate,
            GENERATION,
            lambda m: setattr(m.stages[1].layers, "start", 11),
        ),
        "generate_stage_without_peer": (
            generate_pb2.Generate,
            GENERATION,
            lambda m: m.stages[1].ClearField("peer"),
        ),
        "generate_without_prompt": (generate_pb2.Generate, GENERATION, lambda m: m.ClearField("prompt_tokens")),
        "generate_id_of_32_bits": (generate_pb2.Generate, GENERATION, lambda m: m.prompt_tokens.append(2**31)),
        "generate_no_tokens": (generate_pb2.Generate, GENERATION, lambda m: setattr(m, "max_tokens", 0)),
        "generate_without_sampling": (generate_pb2.Generate, GENERATION, lambda m: m.ClearField("sampling")),
        "generate_negative_wait": (generate_pb2.Generate, GENERATION, lambda m: setattr(m, "wait_s", -1.0)),
        "generate_endless_wait": (generate_pb2.Generate, GENERATION, lambda m: setattr(m, "wait_s", float("inf"))),
        "generate_wait_that_is_no_number": (
            generate_pb2.Generate,
            GENERATION,
            lambda m: setattr(m, "wait_s", float("nan")),
        ),
        "generate_negative_budget": (generate_pb2.Generate, GENERATION, lambda m: setattr(m, "budget_s", -1.0)),
        "generate_unknown_scheme": (generate_pb2.Generate, GENERATION, lambda m: setattr(m, "wire_scheme", 9)),
        "generate_unknown_draft": (generate_pb2.Generate, GENERATION, lambda m: setattr(m, "draft", "oracle")),
        "generate_no_chunks": (generate_pb2.Generate, GENERATION, lambda m: setattr(m, "max_chunks", 0)),
        "generate_wide_chunks": (generate_pb2.Generate, GENERATION, lambda m: setattr(m, "prefill_tokens", 4097)),
        "batch_of_nothing": (generate_pb2.Batch, VALID[GENERATE]["batch"], lambda m: m.ClearField("tokens")),
        "finished_unknown_reason": (generate_pb2.Finished, FINISHED, lambda m: setattr(m, "reason", "cancelled")),
        "finished_nan_seconds": (generate_pb2.Finished, FINISHED, lambda m: setattr(m, "ttft_s", float("nan"))),
        "finished_uneven_laps": (generate_pb2.Finished, FINISHED, lambda m: m.lap_s.append(1.0)),
    },
    SWARM: {
        "member_without_peer_id": (swarm_pb2.MemberInfo, MEMBER, lambda m: m.ClearField("peer_id")),
        "member_layers_outside_model": (swarm_pb2.MemberInfo, MEMBER, lambda m: setattr(m.layers, "stop", 31)),
        "member_short_digest": (swarm_pb2.MemberInfo, MEMBER, lambda m: setattr(m, "model_digest", "ab")),
        "member_unknown_dtype": (swarm_pb2.MemberInfo, MEMBER, lambda m: setattr(m, "dtype", "")),
        "member_version_of_two_lines": (swarm_pb2.MemberInfo, MEMBER, lambda m: setattr(m, "version", "1\n2")),
        "ping_nonce_of_15_bytes": (swarm_pb2.Ping, Ping(bytes(16)), lambda m: setattr(m, "nonce", bytes(15))),
        "ping_without_nonce": (swarm_pb2.Ping, Ping(bytes(16)), lambda m: m.ClearField("nonce")),
        "pong_nonce_of_17_bytes": (swarm_pb2.Pong, Pong(bytes(16)), lambda m: setattr(m, "nonce", bytes(17))),
        "seen_of_a_name": (swarm_pb2.Seen, SEEN, lambda m: setattr(m, "host", "localhost")),
        "seen_at_port_0": (swarm_pb2.Seen, SEEN, lambda m: m.ClearField("port")),
        "seen_without_host": (swarm_pb2.Seen, SEEN, lambda m: m.ClearField("host")),
        "seen_at_port_65536": (swarm_pb2.Seen, SEEN, lambda m: setattr(m, "port", 2**16)),
        "ask_dial_back_without_ports": (swarm_pb2.AskDialBack, ASK_DIAL_BACK, lambda m: m.ClearField("ports")),
        "ask_dial_back_to_5_ports": (swarm_pb2.AskDialBack, ASK_DIAL_BACK, lambda m: m.ports.extend([1, 2, 3])),
        "ask_dial_back_to_port_0": (swarm_pb2.AskDialBack, ASK_DIAL_BACK, lambda m: m.ports.append(0)),
        "ask_dial_back_to_a_port_twice": (swarm_pb2.AskDialBack, ASK_DIAL_BACK, lambda m: m.ports.append(443)),
        "dial_back_result_of_a_name": (
            swarm_pb2.DialBackResult,
            DIAL_BACK_RESULT,
            lambda m: setattr(m, "host", "localhost"),
        ),
        "dial_back_result_unknown_outcome": (
            swarm_pb2.DialBackResult,
            DIAL_BACK_RESULT,
            lambda m: m.outcomes.append(9),
        ),
        "dial_back_result_without_outcomes": (
            swarm_pb2.DialBackResult,
            DIAL_BACK_RESULT,
            lambda m: m.ClearField("outcomes"),
        ),
        "pong_with_a_gibibyte_of_room": (swarm_pb2.Pong, Pong(bytes(16)), lambda m: setattr(m, "room_bytes", 2**31)),
    },
    GOSSIP: {
        "greeting_without_swarm": (gossip_pb2.Greeting, VALID[GOSSIP]["greeting"], lambda m: m.ClearField("swarm")),
        "news_heartbeat_cut_short": (gossip_pb2.News, NEWS, lambda m: setattr(m, "heartbeats", bytes(33))),
        "news_heartbeat_without_sequence": (gossip_pb2.News, NEWS, lambda m: setattr(m, "heartbeats", bytes(34))),
        "news_want_cut_short": (gossip_pb2.News, NEWS, lambda m: setattr(m, "record_wants", bytes(9))),
        "news_129_wants_with_proofs": (gossip_pb2.News, NEWS, lambda m: setattr(m, "proof_wants", bytes(8 * 127))),
        "news_proof_too_long": (gossip_pb2.News, NEWS, lambda m: setattr(m.records[1], "membership", bytes(1025))),
        "news_129_wants": (gossip_pb2.News, NEWS, lambda m: setattr(m, "record_wants", bytes(8 * 129))),
        "news_offer_cut_short": (gossip_pb2.News, NEWS, lambda m: setattr(m, "offers", bytes(16))),
        "news_record_without_heartbeat": (gossip_pb2.News, NEWS, lambda m: m.records[0].ClearField("heartbeat")),
        "news_record_too_long": (gossip_pb2.News, NEWS, lambda m: setattr(m.records[0], "sealed", bytes(8289))),
        "news_value_of_kind_256": (gossip_pb2.News, NEWS, lambda m: setattr(m.values[0], "kind", 256)),
        "farewell_of_two_lines": (
            gossip_pb2.Farewell,
            VALID[GOSSIP]["farewell"],
            lambda m: setattr(m, "reason", "no\nroom"),
        ),
    },
    CARRY: {
        "name_of_15_bytes": (carry_pb2.Name, VALID[CARRY]["name"], lambda m: setattr(m, "name", bytes(15))),
        "resume_without_name": (carry_pb2.Resume, RESUME, lambda m: m.ClearField("name")),
        "resume_without_turn": (carry_pb2.Resume, RESUME, lambda m: m.ClearField("turn")),
        "refused_with_escape_sequence": (
            carry_pb2.Refused,
            VALID[CARRY]["refused"],
            lambda m: setattr(m, "reason", "\x1b[2J"),
        ),
        "refused_at_length": (carry_pb2.Refused, VALID[CARRY]["refused"], lambda m: setattr(m, "reason", "x" * 49)),
    },
}

BROKEN_FRAMES: Mapping[str, Mapping[str, bytes]] = {
    CONTROL: {
        "frame_unknown_kind": bytes.fromhex("0800000000"),
        "frame_kind_zero": bytes.fromhex("0000000000"),
        "frame_open_too_long": bytes.fromhex("0100010001"),
        "frame_payload_is_no_protobuf": encode_frame(6, b"\xff"),
        "frame_text_is_no_utf8": encode_frame(5, bytes.fromhex("0a01ff")),
    },
    RING: {
        "frame_unknown_kind": bytes.fromhex("0700000000"),
        "frame_activations_too_long": bytes.fromhex("0304000001"),
        "frame_length_cut_short": encode_frame(1, bytes.fromhex("0a10000102")),
    },
    GENERATE: {
        "frame_unknown_kind": bytes.fromhex("0500000000"),
        "frame_generate_too_long": bytes.fromhex("0100200001"),
    },
    SWARM: {
        "frame_unknown_kind": bytes.fromhex("0f00000000"),
        "frame_member_too_long": bytes.fromhex("0200004001"),
        "frame_ping_too_long": bytes.fromhex("1000008001"),
    },
    GOSSIP: {
        "frame_unknown_kind": bytes.fromhex("0400000000"),
        "frame_news_too_long": bytes.fromhex("0200020001"),
    },
    CARRY: {
        "frame_unknown_kind": bytes.fromhex("0600000000"),
        "frame_resume_too_long": bytes.fromhex("0300000101"),
        "frame_turn_of_33_bits": encode_frame(3, bytes.fromhex("0a10") + bytes(16) + bytes.fromhex("10ffffffffffffff")),
    },
}


def meaning(value: object) -> object:
    """A message as JSON: dataclasses as objects that name their type, bytes in hexadecimal, tuples as lists."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: meaning(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [meaning(item) for item in value]
    return value


def spoil(protocol: str, wire: type[ProtobufMessage], message: Message, change: Change) -> bytes:
    """The frame of `message` after `change`."""
    kind = next(kind.number for kind in KINDS[protocol] if kind.message is type(message))
    payload = wire.FromString(encode(protocol, message)[5:])
    change(payload)
    return encode_frame(kind, payload.SerializeToString(deterministic=True))


def vectors(protocol: str) -> dict[str, dict[str, object]]:
    """Each vector of `protocol` by its name."""
    found: dict[str, dict[str, object]] = {}
    for name, message in VALID[protocol].items():
        found[name] = {"frame": encode(protocol, message).hex(), "message": meaning(message)}
    for name, (wire, message, change) in INVALID[protocol].items():
        found[name] = {"frame": spoil(protocol, wire, message, change).hex(), "error": "protocol"}
    for name, frame in BROKEN_FRAMES[protocol].items():
        found[name] = {"frame": frame.hex(), "error": "protocol"}
    return {name: {"protocol": protocol, **vector} for name, vector in found.items()}


def regenerate(output: Path) -> None:
    """Write every vector below `output`, a folder for each protocol, and remove those that are no more."""
    for protocol in KINDS:
        folder = output / protocol.split("/")[2]
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob("*.json"):
            stale.unlink()
        for name, vector in vectors(protocol).items():
            text = json.dumps(vector, indent=2, ensure_ascii=True, allow_nan=False)
            (folder / f"{name}.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    regenerate(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
