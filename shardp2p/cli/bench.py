"""`shardp2p bench`: what this software costs, measured on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from shardp2p.cli import schemes
from shardp2p.cli.asking import parse_wire
from shardp2p.cli.interrupts import interrupts
from shardp2p.cli.options import AsJson, DataDir, FastLayout, Wire
from shardp2p.cli.output import write, write_json
from shardp2p.cli.progress import Report, waiting_bar
from shardp2p.config import UpSettings, load_settings
from shardp2p.errors import ConfigError
from shardp2p.telemetry import configure_logging
from shardp2p.vocabulary import ModelId, SamplingParams
from shardp2p.weights.store import ModelStore, StoredModel

LEAST_TOPOLOGIES = 20
"""So that each kind of swarm is among them."""

EMULATED_OPTIONS = ("accept",)
REAL_OPTIONS = ("dtype", "threads", "fast_layout", "temperature", "top_p", "model", "data_dir")
"""Of `bench wan`: those that mean something on one kind of ring alone."""

app = typer.Typer(name="bench", help="Measure what this software costs.", no_args_is_help=True)


@app.callback()
def _bench() -> None:
    """Measure what this software costs."""


@app.command("loopback")
def loopback(
    rounds: Annotated[int, typer.Option("--rounds", help="Turns of every arm.")] = 6,
    tokens: Annotated[int, typer.Option("--tokens", help="Length of each answer.")] = 64,
    stages: Annotated[int, typer.Option("--stages", help="Processes of the ring.")] = 2,
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16.")] = "bfloat16",
    threads: Annotated[int, typer.Option("--threads", help="Threads of each process; 0: torch decides.")] = 0,
    model: Annotated[str, typer.Option("--model", help="A model in the store, or a directory.")] = "smollm2",
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Compare a ring on this machine with the whole model in one process, and with itself when it drafts."""
    configure_logging("warning")
    for name, value, least in (("--rounds", rounds, 1), ("--tokens", tokens, 8)):
        if value < least:
            raise ConfigError(f"{name} is {value}; it must be at least {least}")
    settings = UpSettings(dtype=dtype, threads=threads)  # type: ignore[arg-type]  # checks it
    from shardp2p.lab.loopback import measure_loopback

    with waiting_bar() as report:
        stored = _find_model(model, data_dir, report)
        result = interrupts.run(
            lambda: measure_loopback(
                stored, rounds=rounds, tokens=tokens, dtype=settings.dtype, stages=stages, threads=threads,
                data_dir=data_dir, progress=report,
            )
        )  # fmt: skip
    told = {"model": stored.name, "dtype": dtype, "stages": stages, "rounds": rounds, "tokens": tokens}
    measured = told | result.report()
    if as_json:
        write_json(measured)
    else:
        write(_describe(measured))


@app.command("sessions")
def sessions(
    count: Annotated[int, typer.Option("--sessions", help="How many at once.")] = 8,
    queued: Annotated[int, typer.Option("--queued", help="Clients that wait for room; 0: leave that out.")] = 32,
    rounds: Annotated[int, typer.Option("--rounds", help="Turns of everything.")] = 3,
    tokens: Annotated[int, typer.Option("--tokens", help="Length of each answer.")] = 48,
    prompt_tokens: Annotated[int, typer.Option("--prompt-tokens", help="Length of the long prompt.")] = 1500,
    stages: Annotated[int, typer.Option("--stages", help="Processes of the ring.")] = 3,
    rtt_ms: Annotated[float, typer.Option("--rtt-ms", help="Round trip between any two peers.")] = 0.0,
    wire: Wire = "raw",
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16.")] = "float32",
    threads: Annotated[int, typer.Option("--threads", help="Threads of each process; 0: torch decides.")] = 1,
    model: Annotated[str, typer.Option("--model", help="A model in the store, or a directory.")] = "smollm2",
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Compare sessions at once with one alone, and see how long a long prompt takes and holds up others."""
    configure_logging("warning")
    for name, value, least in (
        ("--sessions", count, 2),
        ("--queued", queued, 0),
        ("--rounds", rounds, 1),
        ("--tokens", tokens, 8),
        ("--prompt-tokens", prompt_tokens, 1),
        ("--rtt-ms", rtt_ms, 0),
    ):
        if value < least:
            raise ConfigError(f"{name} is {value}; it must be at least {least}")
    settings = UpSettings(dtype=dtype, threads=threads)  # type: ignore[arg-type]  # checks it
    scheme = parse_wire(wire)
    from shardp2p.lab.sessions import Order, check_lengths, measure_sessions

    with waiting_bar() as report:
        stored = _find_model(model, data_dir, report)
        check_lengths(stored, tokens, prompt_tokens)
        order = Order(
            stored, count, queued, tokens, rounds, stages, prompt_tokens, settings.dtype, threads, rtt_ms / 1e3, scheme
        )
        result = interrupts.run(lambda: measure_sessions(order, data_dir=data_dir, progress=report))
    told = {"model": stored.name, "dtype": dtype, "stages": stages, "rtt_ms": rtt_ms, "wire": scheme, "rounds": rounds}
    measured = told | {"sessions": count, "tokens": tokens, "prompt_tokens": prompt_tokens} | result.report()
    if as_json:
        write_json(measured)
    else:
        write(_describe_sessions(measured))


@app.command("wan")
def wan(
    context: typer.Context,
    profile: Annotated[str | None, typer.Option("--profile", help=schemes.PROFILE_HELP)] = None,
    runtime: Annotated[
        str, typer.Option("--runtime", help="real (a model and prompt lookup) or emulated.")
    ] = "emulated",
    accept: schemes.Accept = 0.74,
    arm: schemes.Schemes = None,
    rounds: schemes.Rounds = 3,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", help="Length of each answer, from 32. Real answers may end earlier."),
    ] = None,
    seed: schemes.Seed = 0,
    dtype: Annotated[str, typer.Option("--dtype", help="Of a real ring: float32, bfloat16 or float16.")] = "float32",
    threads: Annotated[int, typer.Option("--threads", help="Of each process of a real ring; 0: torch decides.")] = 1,
    fast_layout: FastLayout = False,
    temperature: Annotated[
        float, typer.Option("--temperature", help="Of a real ring's sampled answers; 0: only greedy ones.")
    ] = 0.8,
    top_p: Annotated[float, typer.Option("--top-p", help="Of a real ring's sampled answers.")] = 0.95,
    model: Annotated[str, typer.Option("--model", help="Of a real ring: in the store, or a directory.")] = "smollm2",
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Compare drafting schemes on a wide-area ring: emulated layers and drafts, or a real model with prompt lookup."""
    configure_logging("warning")
    if runtime not in ("real", "emulated"):
        raise ConfigError(f"--runtime is {runtime!r}; it must be real or emulated")
    _refuse_unused(context, runtime)
    if tokens is None:
        tokens = 192 if runtime == "real" else 200
    if runtime == "real":
        settings = UpSettings(dtype=dtype, threads=threads, fast_layout=fast_layout)  # type: ignore[arg-type]  # checks it
        sampling = SamplingParams(temperature=temperature, top_p=top_p)
        profile = "three-50ms" if profile is None else profile
        measured = _far(profile, arm, rounds, tokens, seed, settings, sampling, model, data_dir)
    else:
        profile = "glm52" if profile is None else profile
        measured = _emulated(profile, accept, arm, rounds, tokens, seed)
    if as_json:
        write_json(measured)
    else:
        write(schemes.describe_arms(measured))


@app.command("placement")
def placement(
    topologies: Annotated[int, typer.Option("--topologies", help="Generated swarms to plan.")] = 500,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same swarms.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Compare plans with the optimum, with joiners that place themselves, and with what others do."""
    if topologies < LEAST_TOPOLOGIES:
        raise ConfigError(f"--topologies is {topologies}; it must be at least {LEAST_TOPOLOGIES}")
    from shardp2p.lab.placement.comparison import compare, plan_s

    with waiting_bar() as report:
        compared = compare(topologies, seed, lambda done, of: report("comparing plans", done, of)).report()
        timed = {f"plan_{peers}_s": plan_s(peers, seed) for peers in (1000, 10_000)}
    measured = compared | timed
    if as_json:
        write_json(measured)
    else:
        write(_describe_placement(measured))


def _refuse_unused(context: typer.Context, runtime: str) -> None:
    """Raises: ConfigError for an option that says something of the other kind of ring."""
    other, options = ("emulated", EMULATED_OPTIONS) if runtime == "real" else ("real", REAL_OPTIONS)
    for name in options:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = "--" + name.replace("_", "-")
            raise ConfigError(f"{option} is for --runtime {other}; this ring is {runtime}, so leave it out")


def _emulated(
    profile: str, accept: float, arm: Sequence[str] | None, rounds: int, tokens: int, seed: int
) -> dict[str, Any]:
    ring, names = schemes.choose(profile, accept, arm, rounds, tokens)
    from shardp2p.lab.emulation.wan import measure_wan

    with waiting_bar() as report:
        result = interrupts.run(
            lambda: measure_wan(ring, accept, names=names, rounds=rounds, tokens=tokens, seed=seed, progress=report)
        )
    return result.report()


def _far(
    profile: str, arm: Sequence[str] | None, rounds: int, tokens: int, seed: int, settings: UpSettings,
    sampling: SamplingParams, model: str, data_dir: Path | None,
) -> dict[str, Any]:  # fmt: skip
    ways, names = schemes.choose_far(profile, arm, rounds, tokens)
    from shardp2p.lab.far_answers import FarOrder, measure_far

    with waiting_bar() as report:
        stored = _find_model(model, data_dir, report)
        order = FarOrder(
            stored,
            ways,
            names,
            rounds,
            tokens,
            seed,
            dtype=settings.dtype,
            threads=settings.threads,
            fast_layout=settings.fast_layout,
            sampling=sampling,
        )
        result = interrupts.run(lambda: measure_far(order, data_dir=data_dir, progress=report))
    told: dict[str, Any] = {"profile": ways.name, "runtime": "real", "model": stored.name, "dtype": settings.dtype}
    told |= {
        "accept": None,
        "fast_layout": settings.fast_layout,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    return told | result.report()


def _find_model(model: str, data_dir: Path | None, report: Report) -> StoredModel:
    """The model, imported now if it is the usual one and not there yet."""
    store = ModelStore(load_settings(data_dir=data_dir).paths.models_dir)
    is_missing = model == "smollm2" and not store.directory_of(ModelId(model)).exists()
    return store.import_model(model, progress=report) if is_missing else store.resolve(model, report)


def _describe_sessions(measured: dict[str, Any]) -> str:
    m = measured
    return (
        f"{m['model']} in {m['dtype']}, {m['stages']} stages, {m['rtt_ms']:g} ms of round trip, {m['wire']}\n"
        f"\n"
        f"one session                  {m['one_tok_s']:7.1f} tokens/s\n"
        f"{m['sessions']:<3} at once                 {m['all_tok_s']:7.1f} tokens/s   × {m['ratio']:.2f}, "
        f"fairness {m['fairness']:.3f}\n"
        f"\n"
        f"a prompt of {m['prompt_tokens']:<5} tokens     {m['ttft_s']:7.2f} s to the first token   "
        f"× {m['ttft_ratio']:.2f} of its bound; {m['ttft_beside_s']:.2f} s beside a session\n"
        f"a session's gaps             {m['gap_usual_ms']:7.1f} ms, beside the prompt {m['gap_beside_ms']:.1f} ms, "
        f"at most {m['gap_longest_ms']:.1f} ms   × {m['gap_ratio']:.2f}\n"
    ) + (_describe_queue(m) if "queue_fairness" in m else "")


def _describe_queue(m: dict[str, Any]) -> str:
    return (
        f"clients that wait            {m['queue_tok_s']:7.1f} tokens/s   fairness {m['queue_fairness']:.3f}, "
        f"the first token after {m['queue_longest_wait_s']:.1f} s at most\n"
    )


def _describe_placement(measured: dict[str, Any]) -> str:
    m = measured
    baselines = "".join(f"{name:<34} × {ratio:.3f}\n" for name, ratio in m["baselines"].items())
    return (
        f"{m['topologies']} generated swarms; time per chunk, 1 is the best possible\n"
        f"\n"
        f"up to 7 machines, all rings        × {m['oracle_ratio_max']:.3f} at worst\n"
        f"8 to 12, Held and Karp             × {m['held_karp_ratio_max']:.3f} at worst\n"
        f"100, against a lower bound         × {m['hundred_ratio_max']:.3f} at worst\n"
        f"joiners, against our plan          × {m['joiners_ratio_p50']:.3f} (worst: × {m['joiners_ratio_max']:.3f})\n"
        f"moves of peers after a newcomer    {m['joiners_moves_per_join']:7.2f}\n"
        f"planning 1,000 machines            {m['plan_1000_s']:7.2f} s\n"
        f"planning 10,000 machines           {m['plan_10000_s']:7.2f} s\n"
        f"moves while delays are noisy       {m['moves_under_noise']:4d}\n"
        f"\n"
        f"others, against our plan (medians)\n"
        f"{baselines}"
    )


def _describe(measured: dict[str, Any]) -> str:
    m = measured
    return (
        f"{m['model']} in {m['dtype']}, {m['rounds']} {'round' if m['rounds'] == 1 else 'rounds'} of "
        f"{m['tokens']} tokens, medians\n"
        f"\n"
        f"whole model in one process   {m['single_tok_s']:7.1f} tokens/s\n"
        f"ring of {m['stages']} processes          {m['ring_tok_s']:7.1f} tokens/s   × {m['ratio']:.2f}\n"
        f"a hop beside computing       {m['hop_overhead_ms_p50']:7.2f} ms (99 %: {m['hop_overhead_ms_p99']:.2f} ms)\n"
        f"\n"
        f"repetition, plain            {m['repeat_tok_s']:7.1f} tokens/s\n"
        f"repetition, prompt lookup    {m['lookup_tok_s']:7.1f} tokens/s   × {m['lookup_ratio']:.2f}, "
        f"{m['lookup_accepted_per_lap']:.2f} tokens a lap\n"
    )
