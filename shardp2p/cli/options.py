"""The options of `up`, `generate` and `chat`: their types, names and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from shardp2p.cli.hints import note_data_dir, parse_data_dir

# Of both
DataDir = Annotated[
    Path | None,
    Option(
        "--data-dir",
        help="Keep everything there, not in the user's own place.",
        metavar="DIRECTORY",
        parser=parse_data_dir,
        callback=note_data_dir,
    ),
]
AsJson = Annotated[bool, Option("--json", help="Print one JSON object.")]
LogLevel = Annotated[str | None, Option("--log-level", help="debug, info, warning or error; logs go to stderr.")]

# Of a swarm
Join = Annotated[
    str | None,
    Option(
        "--join",
        metavar="NAME|TOKEN|FILE|-",
        help="A token, a file with one, or the name of a swarm of yours or one that was joined here.",
    ),
]

# coverage, peers and plan
SeenModel = Annotated[
    str, Argument(help="A model as its holders call it, or the start of its digest.", show_default=False)
]
SeenPeers = Annotated[
    list[str] | None, Option("--peer", metavar="MULTIADDR", help="A peer of the swarm to ask; repeat for more.")
]
FromDht = Annotated[bool, Option("--from-dht", help="Ask the DHT alone, and leave gossip aside.")]
Watch = Annotated[bool, Option("--watch", help="Show it again every second, until Ctrl-C.")]

# up
Model = Annotated[str | None, Option("--model", help="A model in the store, or a directory.")]
Layers = Annotated[str | None, Option("--layers", metavar="A:B", help="Layers to serve, B excluded.")]
Listen = Annotated[
    list[str] | None,
    Option(
        "--listen",
        metavar="MULTIADDR",
        help="Where to listen. Default: any port, on all interfaces in a swarm, else for this machine only.",
    ),
]
Announce = Annotated[
    list[str] | None,
    Option(
        "--announce",
        metavar="MULTIADDR",
        help="Where others reach this machine, as a port that its router forwards; repeat for more.",
    ),
]
Relay = Annotated[
    str | None,
    Option(
        "--relay", metavar="auto|on|off", help="Pass on the bytes of peers that cannot be dialled; auto: if we can."
    ),
]
DTypeName = Annotated[
    str | None, Option("--dtype", help="float32 (the default), bfloat16 or float16; all stages alike.")
]
Device = Annotated[str | None, Option("--device", help="cpu (the default), cuda or cuda:N.")]
Threads = Annotated[int | None, Option("--threads", help="Compute threads; 0: torch decides.")]
FastLayout = Annotated[
    bool, Option("--fast-layout", help="Lay weights out as this CPU is faster with; last bits of float32 may change.")
]
CacheRows = Annotated[int | None, Option("--cache-rows", help="Token positions to keep for all requests together.")]
Memory = Annotated[
    str | None,
    Option("--memory", metavar="SIZE", help="For layers and caches, as 8GiB. Default: what is free."),
]
Region = Annotated[str | None, Option("--region", help="Where this machine is, as eu-west; shown to others.")]
UpPeers = Annotated[
    list[str] | None, Option("--peer", metavar="MULTIADDR", help="A peer of the swarm to dial first; repeat for more.")
]
Once = Annotated[
    bool, Option("--once", help="Give up, with exit code 3, when no peer answers at the start, or no layer fits.")
]
KeyFile = Annotated[Path | None, Option("--identity", help="The key file; made if there is none.")]
Config = Annotated[Path | None, Option("--config", help="A settings file.")]
ExitOnStdinClose = Annotated[
    bool, Option("--exit-on-stdin-close", help="End when standard input ends, so as not to outlive a parent.")
]

# generate and chat
AskedModel = Annotated[str, Argument(help="A model in the store, or a directory.", show_default=False)]
Prompt = Annotated[str, Argument(help="What to ask or continue; - reads it from stdin.", show_default=False)]
Peers = Annotated[
    list[str] | None,
    Option(
        "--peer",
        metavar="MULTIADDR",
        help="A peer of the ring to ask, whatever swarm was joined; repeat for each. With --join: one to dial first.",
    ),
]
Only = Annotated[
    list[str] | None, Option("--only", metavar="PEER_ID", help="Use this peer of the swarm, and others named so.")
]
Block = Annotated[
    list[str] | None, Option("--block", metavar="PEER_ID", help="Never use this peer of the swarm; repeat for more.")
]
MaxTokens = Annotated[
    int | None, Option("--max-tokens", min=1, help="How long the answer may be. Default: 256, if there is room.")
]
Raw = Annotated[bool, Option("--raw", help="Continue the prompt as it is, without the chat template.")]
Stop = Annotated[list[str] | None, Option("--stop", metavar="TEXT", help="End before this text.")]
Temperature = Annotated[float, Option("--temperature", help="0: always the likeliest token.")]
TopK = Annotated[int, Option("--top-k", help="Choose among so many tokens; 0: all.")]
TopP = Annotated[float, Option("--top-p", help="Choose among the likeliest with this share.")]
MinP = Annotated[float, Option("--min-p", help="Drop what is less likely than this share of the best.")]
RepetitionPenalty = Annotated[float, Option("--repetition-penalty", help="Above 1: avoid what the text has.")]
FrequencyPenalty = Annotated[float, Option("--frequency-penalty", help="Above 0: avoid what the answer has, by count.")]
PresencePenalty = Annotated[float, Option("--presence-penalty", help="Above 0: avoid what the answer has.")]
LogitBias = Annotated[
    list[str] | None, Option("--logit-bias", metavar="TOKEN:BIAS", help="Favour a token id, or ban it.")
]
Seed = Annotated[int, Option("--seed", help="Another seed, another answer; matters above temperature 0.")]
Draft = Annotated[
    str,
    Option(
        "--draft",
        metavar="lookup|none|model",
        help="lookup: guess from the text and earlier answers. none: token by token. model: the driver's draft model.",
    ),
]
DraftModel = Annotated[
    Path | None,
    Option(
        "--draft-model", metavar="DIR", help="A small model with the same tokenizer guesses for what is driven here."
    ),
]
NoMemory = Annotated[
    bool, Option("--no-memory", help="The peers keep nothing of an answer for later ones, nor use earlier ones.")
]
UpNoMemory = Annotated[bool, Option("--no-memory", help="Keep no answers to guess later ones from, nor rows of them.")]
Depth = Annotated[int, Option("--depth", min=1, help="Chunks of drafts in the ring at once, up to 32.")]
Wire = Annotated[
    str,
    Option(
        "--wire",
        metavar="raw|fp16|int8",
        help="How activations go from peer to peer; raw is exact, the others are smaller and round.",
    ),
]
Wait = Annotated[
    float, Option("--wait", metavar="SECONDS", help="Wait so long for room on the ring; 0: be declined at once.")
]
LocalDriver = Annotated[
    bool, Option("--local-driver", help="Drive the answer here: fewer peers see its tokens, and each lap is longer.")
]
LocalLayers = Annotated[
    int, Option("--local-layers", min=0, metavar="A", help="Run the first A layers, and drive, here.")
]
