"""`shardp2p generate` against real stages: what it answers, and what it refuses."""

from __future__ import annotations

import json
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardp2p.cli.main import run
from shardp2p.identity.keys import Identity
from shardp2p.runtime.reference import Reference, ReferenceRun
from shardp2p.runtime.tokenizer import Tokenizer
from tests.support.cli_ring import CONTEXT_TOKENS, LAYERS, endless, slow_talker
from tests.support.processes import StageProcess, restored_logging, running, running_stages

PROMPT = "Tell me"
ANYONE = "12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings file of this machine's user, and no log setup left for other tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with restored_logging():
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def tiny(models: Path) -> Path:
    return slow_talker(models / "tiny")


@pytest.fixture(scope="module")
def namesake(models: Path) -> Path:
    """Another model that happens to have the same name."""
    return slow_talker(models / "other" / "tiny", seed=1)


@pytest.fixture(scope="module")
def stages(tiny: Path, namesake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[StageProcess]]:
    """The two halves of the model, its second half in another type, and that of another model."""
    wanted = (
        (tiny, "0:2", "float32"), (tiny, "2:4", "float32"), (tiny, "2:4", "bfloat16"), (namesake, "2:4", "float32")
    )  # fmt: skip
    with running_stages(tmp_path_factory.mktemp("data"), *wanted) as ready:
        yield ready


@pytest.fixture
def ask(tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs `generate` in this process; gives the exit code, stdout and stderr."""

    def run_generate(prompt: str, *options: object, model: Path = tiny) -> tuple[int, str, str]:
        code = run(["generate", str(model), prompt, "--data-dir", str(tmp_path), *map(str, options)])
        return (code, *capsys.readouterr())

    return run_generate


@pytest.fixture
def refused(ask: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """Runs `generate`, which must fail with exit code 2 (or `code`); gives the only line it writes."""

    def refuse(prompt: str, *options: object, code: int = 2) -> str:
        exit_code, out, err = ask(prompt, *options)
        assert (exit_code, out) == (code, "")
        assert err.startswith("shardp2p: error: ")
        assert err.count("\n") == 1
        return err.removeprefix("shardp2p: error: ").rstrip()

    return refuse


def peers(*stages: StageProcess) -> tuple[str, ...]:
    return tuple(f"--peer={stage.address}" for stage in stages)


@pytest.fixture(scope="module")
def reference(tiny: Path) -> ReferenceRun:
    tokenizer = Tokenizer(tiny)
    prompt = tokenizer.encode_chat([{"role": "user", "content": PROMPT}])
    return Reference(tiny).generate(prompt, 24, tokenizer.stop_tokens)


@pytest.mark.parametrize(
    ("options", "first_layers"),
    [(("--local-driver",), 2), (("--local-layers", 1), 1), (("--local-layers", 3), 3), (("--local-layers", 4), 4)],
)
def test_the_driver_and_the_first_layers_may_be_here(
    ask: Callable[..., tuple[int, str, str]],
    stages: list[StageProcess],
    reference: ReferenceRun,
    options: tuple[object, ...],
    first_layers: int,
) -> None:
    """The ring then begins here, and the peers' ranges are cut."""
    code, out, err = ask(PROMPT, *peers(*stages[:2]), "--max-tokens", 24, "--draft", "lookup", "--json", *options)
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert tuple(answer["tokens"]) == reference.tokens
    bounds = [stage["layers"] for stage in answer["stages"]]
    assert bounds[0] == [0, first_layers]
    is_here = answer["stages"][0]["peer_id"] not in {stage.peer_id for stage in stages}
    assert is_here == ("--local-layers" in options)


@pytest.mark.parametrize("sampling", [(), ("--temperature", 0.7, "--seed", 5)])
def test_a_draft_model_does_not_change_the_answer(
    ask: Callable[..., tuple[int, str, str]], stages: list[StageProcess], tiny: Path, sampling: tuple[object, ...]
) -> None:
    asked = (*peers(*stages[:2]), "--max-tokens", 24, "--local-driver", "--json", *sampling)
    plain, drafted = [
        json.loads(ask(PROMPT, *asked, *options)[1]) for options in ((), ("--draft-model", tiny, "--depth", 2))
    ]
    assert drafted["tokens"] == plain["tokens"]


def test_a_draft_model_that_cannot_draft_is_refused(
    refused: Callable[..., str], stages: list[StageProcess], tiny: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(tiny, tmp_path / "other")
    file = other / "tokenizer.json"
    file.write_text(file.read_text().replace("<|im_start|>", "<|begin|>"))
    ring = peers(*stages[:2])
    assert "has another vocabulary" in refused(PROMPT, *ring, "--local-driver", "--draft-model", other)
    assert "--local-driver" in refused(PROMPT, *ring, "--draft-model", tiny)
    assert "no tokenizer.json" in refused(PROMPT, *ring, "--local-driver", "--draft-model", tmp_path / "nowhere")


@pytest.mark.parametrize("draft", ["none", "lookup", "model"])
def test_answer_is_the_whole_models_own(
    ask: Callable[..., tuple[int, str, str]],
    stages: list[StageProcess],
    tiny: Path,
    reference: ReferenceRun,
    draft: str,
) -> None:
    tokenizer = Tokenizer(tiny)
    code, out, err = ask(PROMPT, *peers(*stages[:2]), "--max-tokens", 24, "--draft", draft, "--json")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert tuple(answer["tokens"]) == reference.tokens
    assert set(answer) == {
        "model", "text", "tokens", "finish_reason", "tok_s", "ttft_s", "laps", "accepted_per_lap", "stages"
    }  # fmt: skip
    assert answer["model"] == "tiny"
    assert answer["text"] == tokenizer.decode(reference.tokens)
    assert answer["finish_reason"] == ("stop" if reference.tokens[-1] in tokenizer.stop_tokens else "length")
    assert answer["laps"] * answer["accepted_per_lap"] == pytest.approx(len(reference.tokens), abs=0.1)
    assert answer["stages"] == [{"peer_id": s.peer_id, "layers": s.ready["layers"]} for s in stages[:2]]


def test_text_comes_on_stdout_and_its_account_on_stderr(
    ask: Callable[..., tuple[int, str, str]], stages: list[StageProcess], tiny: Path
) -> None:
    code, out, err = ask(PROMPT, *peers(*stages[:2]), *endless(tiny), "--max-tokens", 12)
    assert code == 0
    assert len(out) == 13
    assert set(out[:-1]) <= set("abcdefgh")
    assert out[-1] == "\n"
    assert err.startswith("12 tokens in 12 laps of 2 stages, ")
    assert err.endswith("cut at the most tokens allowed\n")


def test_stop_string_ends_the_answer_before_it(
    ask: Callable[..., tuple[int, str, str]], stages: list[StageProcess], tiny: Path
) -> None:
    options = (*peers(*stages[:2]), *endless(tiny), "--temperature", 1, "--seed", 3)
    _, whole, _ = ask(PROMPT, *options, "--max-tokens", 12)
    code, out, _ = ask(PROMPT, *options, "--stop", whole[4:7], "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["text"] == whole[: whole.index(whole[4:7])]
    assert answer["finish_reason"] == "stop"


def test_sampled_answer_depends_on_the_seed_alone(
    ask: Callable[..., tuple[int, str, str]], stages: list[StageProcess]
) -> None:
    options = (*peers(*stages[:2]), "--raw", "--temperature", 1.5, "--max-tokens", 16, "--json")
    answers = [
        json.loads(ask(PROMPT, *options, "--seed", seed, "--draft", draft)[1])["tokens"]
        for seed, draft in ((1, "none"), (1, "lookup"), (2, "none"))
    ]
    assert answers[0] == answers[1] != answers[2]


def test_prompt_is_read_from_stdin(stages: list[StageProcess], tiny: Path, tmp_path: Path) -> None:
    options = ("--data-dir", tmp_path, *peers(*stages[:2]), "--max-tokens", 4, "--raw", "--json")
    with (
        running("generate", tiny, "-", *options) as piped,
        running("generate", tiny, "é ok", *options, is_forked=True) as given,
    ):
        piped.write("é ok\n".encode())
        answers = [process.wait() for process in (piped, given)]
    assert [code for code, _ in answers] == [0, 0]
    assert len({tuple(json.loads(out)["tokens"]) for _, out in answers}) == 1


def test_reader_that_leaves_ends_it_quietly(stages: list[StageProcess], tiny: Path, tmp_path: Path) -> None:
    options = ("--data-dir", tmp_path, *peers(*stages[:2]), *endless(tiny))
    with running("generate", tiny, PROMPT, *options, is_forked=True) as process:
        process.read_bytes(3)
        process.close_stdout()
        assert process.wait()[0] == 128 + signal.SIGPIPE
        assert process.stderr == ""


@pytest.mark.parametrize("prompt", ["", "  \n", "\udcff"])
def test_prompt_must_be_text(refused: Callable[..., str], prompt: str) -> None:
    line = refused(prompt, "--peer", f"/ip4/127.0.0.1/tcp/1/p2p/{Identity.generate().peer_id}")
    assert line.startswith("the prompt is ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "no peer is named"),
        ([], "join a swarm with --join TOKEN|FILE"),
        (["--join", "nothing"], "--join is neither a token"),
        (["--block", "me"], "--block: 'me' is no peer id"),
        (
            ["--only", ANYONE, "--peer", f"/ip4/127.0.0.1/tcp/1/p2p/{ANYONE}"],
            "--only and --block choose among the peers of a swarm",
        ),
        (["--peer", "/ip4/127.0.0.1/tcp/1"], "does not end in /p2p/PEER-ID"),
        (["--peer", "localhost:80"], "is no multiaddr"),
        (["--peer", ""], "a --peer is empty; name a peer with --peer ADDRESS"),
        (
            [
                "--peer",
                f"/ip4/127.0.0.1/tcp/1/p2p/{ANYONE}",
                "--stop",
                "\udcff",
            ],
            "a --stop text is not UTF-8 text",
        ),
        (["--temperature", "-1"], "temperature is -1"),
        (["--local-layers", "-1"], "Invalid value for '--local-layers'"),
        (["--top-p", "0"], "top_p is 0"),
        (["--logit-bias", "a:b"], "is no TOKEN:BIAS"),
        (["--log-level", "loud"], "the log level is 'loud'"),
    ],
)
def test_option_that_cannot_be_is_named(refused: Callable[..., str], options: list[str], said: str) -> None:
    assert said in refused(PROMPT, *options)


@pytest.mark.parametrize(
    ("option", "value"), [("--draft", "magic"), ("--wire", "zip"), ("--wait", "-1"), ("--depth", "33"), ("--stop", "")]
)
def test_drafting_and_stopping_need_sound_values(
    refused: Callable[..., str], stages: list[StageProcess], option: str, value: str
) -> None:
    assert refused(PROMPT, *peers(*stages[:2]), option, value)


def test_model_without_a_tokenizer_here_is_refused(
    ask: Callable[..., tuple[int, str, str]], stages: list[StageProcess]
) -> None:
    code, out, err = ask(PROMPT, *peers(*stages[:2]), model=Path("frob"))
    assert (code, out) == (2, "")
    assert "there is no model 'frob'" in err


def test_prompt_beyond_the_context_is_refused(refused: Callable[..., str], stages: list[StageProcess]) -> None:
    long = "x" * (CONTEXT_TOKENS + 1)
    assert f"tiny takes {CONTEXT_TOKENS} in all" in refused(long, *peers(*stages[:2]), "--raw")
    line = refused(PROMPT, *peers(*stages[:2]), "--raw", "--max-tokens", CONTEXT_TOKENS)
    assert f"the prompt has {len(PROMPT)} tokens and {CONTEXT_TOKENS} more are asked for" in line


def test_default_length_fits_what_the_context_leaves(
    ask: Callable[..., tuple[int, str, str]], stages: list[StageProcess]
) -> None:
    code, out, _ = ask("x" * (CONTEXT_TOKENS - 3), *peers(*stages[:2]), "--raw", "--json")
    assert code == 0
    assert len(json.loads(out)["tokens"]) <= 3


def test_peer_that_is_not_there_is_named(refused: Callable[..., str], stages: list[StageProcess]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    peer = Identity.generate().peer_id
    line = refused(PROMPT, *peers(stages[0]), "--peer", f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}", code=3)
    assert line.startswith(f"cannot reach peer {peer}")
    assert "refused" in line


def test_another_peer_at_the_address_is_noticed(refused: Callable[..., str], stages: list[StageProcess]) -> None:
    address, _, _ = stages[0].address.partition("/p2p/")
    line = refused(PROMPT, "--peer", f"{address}/p2p/{Identity.generate().peer_id}", code=3)
    assert "another peer answers there" in line


def test_layers_that_nobody_holds_are_named(refused: Callable[..., str], stages: list[StageProcess]) -> None:
    line = refused(PROMPT, *peers(stages[0]), code=3)
    assert f"do not cover tiny's layers 0:{LAYERS}" in line
    assert "start a peer that holds 2:4" in line


def test_stages_with_different_types_are_refused(refused: Callable[..., str], stages: list[StageProcess]) -> None:
    line = refused(PROMPT, *peers(stages[0], stages[2]))
    assert "do not serve the same dtype" in line
    assert "float32" in line
    assert "bfloat16" in line


def test_stages_with_different_models_are_refused(refused: Callable[..., str], stages: list[StageProcess]) -> None:
    assert "serves other weights as tiny" in refused(PROMPT, *peers(stages[0], stages[3]))


def test_weights_that_are_not_ours_are_refused(
    ask: Callable[..., tuple[int, str, str]], stages: list[StageProcess], namesake: Path
) -> None:
    code, out, err = ask(PROMPT, *peers(*stages[:2]), model=namesake)
    assert (code, out) == (2, "")
    assert "other weights" in err


def test_model_is_known_by_its_digest_whatever_its_name(
    ask: Callable[..., tuple[int, str, str]], stages: list[StageProcess], tiny: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(tiny, tmp_path / "my-own-name")
    code, out, _ = ask(PROMPT, *peers(*stages[:2]), "--max-tokens", 2, "--json", model=copy)
    assert code == 0
    assert json.loads(out)["model"] == "my-own-name"


def test_local_layers_beyond_the_model_are_refused(refused: Callable[..., str], stages: list[StageProcess]) -> None:
    line = refused(PROMPT, *peers(*stages[:2]), "--local-layers", LAYERS + 1)
    assert line == f"--local-layers {LAYERS + 1} is more than tiny has: {LAYERS}"
