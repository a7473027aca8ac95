"""A forked peer is like one that was started: its streams, signals, exit codes, results; and nothing outlives us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import trio

from shardp2p.errors import ConfigError, PeerUnavailableError
from shardp2p.lab.children import entering, open_children
from shardp2p.lab.forking import Forked, fork_with_pipes
from tests.support.models import tiny_llama
from tests.support.processes import HANG_S, Shardp2p, has_ended

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="peers are forked on Linux only")

STATEMENT = ("-n", "1", "-r", "1", "-s")
"""With these, `python -m timeit` runs a statement, and then says how long nothing took."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny", layers=2)


@contextmanager
def forked_process(module: str, *arguments: str, namespaces: Sequence[str] = ()) -> Iterator[tuple[Forked, int, int]]:
    """A forked process, our end of its stdout, and the file that is its stderr; killed at the end if it still runs."""
    with tempfile.TemporaryFile() as errors:
        made = fork_with_pipes(module, arguments, errors.fileno(), namespaces=namespaces)
        assert made is not None
        forked, stdin, stdout = made
        try:
            yield forked, stdout, errors.fileno()
        finally:
            forked.kill()
            forked.wait(HANG_S)
            os.close(stdin)
            os.close(stdout)


def outcome(statement: str, *namespaces: str) -> tuple[int, str]:
    """The exit code and the output of a forked process that runs a statement."""
    with forked_process("timeit", *STATEMENT, statement, namespaces=namespaces) as (forked, stdout, _):
        with os.fdopen(os.dup(stdout)) as file:
            text = file.read()
        return forked.wait(HANG_S), text


@contextmanager
def another_network() -> Iterator[str]:
    """A network namespace, as a file."""
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo made; read end"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        if holder.stdout.readline() != b"made\n":
            pytest.skip("no network namespaces can be made here: run as root")
        yield f"/proc/{holder.pid}/ns/net"


def up(model: Path, data_dir: Path, *arguments: object) -> tuple[object, ...]:
    return ("up", "--model", model, "--layers", "0:2", "--data-dir", data_dir, "--threads", 1, "--json", *arguments)


@contextmanager
def forked_up(model: Path, data_dir: Path, *arguments: object) -> Iterator[Shardp2p]:
    process = Shardp2p(*up(model, data_dir, *arguments), is_forked=True)
    try:
        assert psutil.Process(process.pid).ppid() != os.getpid()
        yield process
    finally:
        process.end()


@pytest.mark.parametrize(
    "arguments",
    [("--version",), ("frob",), ("up",), ("generate", "nothing", "x"), ("swarm", "show", "nowhere")],
    ids=" ".join,
)
def test_command_says_the_same_and_ends_with_the_same_code(arguments: tuple[str, ...], tmp_path: Path) -> None:
    options = ("--data-dir", tmp_path) if arguments[0] in ("up", "generate", "swarm") else ()
    outcomes = []
    for is_forked in (False, True):
        process = Shardp2p(*arguments, *options, is_forked=is_forked)
        try:
            outcomes.append((*process.wait(), process.stderr))
        finally:
            process.end()
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    ("statement", "exit_code"),
    [
        ("pass", 0),
        ("1 / 0", 1),
        ("import os; os._exit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    ],
)
def test_exit_codes_are_those_of_a_process(statement: str, exit_code: int) -> None:
    assert outcome(statement)[0] == exit_code


@pytest.mark.parametrize(
    ("module", "arguments", "exit_code", "said"),
    [
        ("json.tool", ("--frob",), 2, "error: unrecognized arguments: --frob"),
        ("json.tool", ("/dev/null",), 1, "Expecting value: line 1 column 1 (char 0)"),
        ("shardp2p.lab.reference_process", (), 1, "IndexError: list index out of range"),
    ],
)
def test_failure_is_told_as_the_interpreter_does(
    module: str, arguments: tuple[str, ...], exit_code: int, said: str
) -> None:
    with forked_process(module, *arguments) as (forked, _, errors):
        assert forked.wait(HANG_S) == exit_code
        assert os.pread(errors, 1 << 16, 0).decode().rstrip().endswith(said)


def test_peer_that_is_not_there_makes_exit_code_3(tiny: Path, tmp_path: Path) -> None:
    nobody = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWGC6TvWhfapngX6wvJHMYvKpDMXPb3ZnCZ6dMoaMtimQ5"
    process = Shardp2p("generate", tiny, "x", "--data-dir", tmp_path, "--peer", nobody, is_forked=True)
    try:
        assert process.wait() == (3, "")
        assert "127.0.0.1" in process.error_line
    finally:
        process.end()


def test_it_has_our_environment_and_directory_its_own_group_and_no_other_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDP2P_TEST", "ours")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    statement = (
        "import os; print(os.environ['SHARDP2P_TEST'], 'OPENBLAS_NUM_THREADS' in os.environ, os.getcwd(), "
        "os.getpgid(0) == os.getpid(), sorted(map(int, os.listdir('/proc/self/fd')))[:-1]); "
        "import tempfile; print(tempfile.gettempdir())"
    )
    exit_code, text = outcome(statement)
    assert exit_code == 0
    threads = "OPENBLAS_NUM_THREADS" in os.environ
    assert text.splitlines()[:2] == [f"ours {threads} {tmp_path} True [0, 1, 2]", str(tmp_path)]


def test_two_of_them_draw_different_numbers() -> None:
    statement = "import random, numpy, trio; print(random.random(), numpy.random.random(), trio._core._run._r.random())"
    first, second = (outcome(statement)[1].splitlines()[0].split() for _ in range(2))
    assert not set(first) & set(second)
    assert len(set(first)) == 3


COMPUTE = """
import torch, trio
from pathlib import Path
from shardp2p.runtime.device import DeviceThread

def compute():
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn((600, 600), generator=generator) for _ in range(2))
    heads = torch.randn((1, 8, 300, 64), generator=generator)
    attended = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
    values = (a @ b, torch.softmax(a, -1), attended, torch.nn.functional.silu(b).sum(-1))
    return torch.get_num_threads(), b"".join(value.numpy().tobytes() for value in values)

async def main():
    with DeviceThread(threads=2) as device:
        threads, data = await device.run(compute)
    assert threads == 2
    Path(RESULT).write_bytes(data)

trio.run(main)
"""


def test_it_computes_with_two_threads_and_every_bit_is_the_same(tmp_path: Path) -> None:
    results = []
    for name in ("forked", "started"):
        script, result = tmp_path / f"{name}.py", tmp_path / name
        script.write_text(COMPUTE.replace("RESULT", repr(str(result))))
        if name == "forked":
            assert outcome(f"import runpy; runpy.run_path({str(script)!r})")[0] == 0
        else:
            subprocess.run([sys.executable, "-P", script], check=True, timeout=HANG_S)
        results.append(result.read_bytes())
    assert len(results[0]) > 1_000_000
    assert results[0] == results[1]


def test_ready_peer_shows_its_command_line_and_ends_with_its_stdin(tiny: Path, tmp_path: Path) -> None:
    with forked_up(tiny, tmp_path, "--exit-on-stdin-close") as process:
        assert f'"pid": {process.pid}' in process.read_line()
        words = psutil.Process(process.pid).cmdline()
        assert words[1:7] == ["-m", "shardp2p", "up", "--model", str(tiny), "--layers"]
        process.close_stdin()
        assert process.wait() == (0, "")
        assert has_ended(process.pid)


def test_second_interrupt_ends_it_at_once(tiny: Path, tmp_path: Path) -> None:
    with forked_up(tiny, tmp_path) as process:
        process.read_line()
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        assert process.wait() == (0, "")
        assert process.stderr == ""


async def test_eight_start_at_once_as_children(tiny: Path, tmp_path: Path) -> None:
    lines: dict[int, bytes] = {}
    async with open_children() as children, trio.open_nursery() as nursery:

        async def start(number: int) -> None:
            key = ("--identity", tmp_path / f"{number}.key", "--exit-on-stdin-close")
            child = await children.start_peer(f"peer {number}", [str(word) for word in up(tiny, tmp_path, *key)])
            lines[child.pid] = await child.read_line()

        for number in range(8):
            nursery.start_soon(start, number)
    assert len(lines) == 8
    assert all(f'"pid": {pid},'.encode() in line for pid, line in lines.items())
    assert all(has_ended(pid) for pid in lines)


async def test_child_that_fails_or_is_killed_is_named_with_its_reason(tiny: Path, tmp_path: Path) -> None:
    async with open_children() as children:
        child = await children.start_peer("peer 1", ["up", "--model", "frob", "--data-dir", str(tmp_path)])
        with pytest.raises(ConfigError, match=r"^peer 1: there is no model 'frob'"):
            await child.read_line()
        child = await children.start_peer("peer 2", [str(word) for word in up(tiny, tmp_path)])
        child.send_signal(signal.SIGKILL)
        with pytest.raises(PeerUnavailableError, match=r"^peer 2: it ended with exit code -9"):
            await child.read_line()
        assert not child.is_running


async def test_peer_in_an_environment_that_was_read_by_imports_is_started_like_any_command(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "3"}
    with (tmp_path / "log").open("wb") as log:
        assert fork_with_pipes("shardp2p", ["--version"], log.fileno(), environment) is None
    async with open_children() as children:
        child = await children.start_peer("peer", ["--version"], environment)
        assert (await child.read_line()).startswith(b"shardp2p ")
        assert await child.wait() == 0


HOST = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
from shardp2p.lab.forking import fork, prepare_forking
print("began", flush=True)
assert prepare_forking()
while line := sys.stdin.readline():
    forked = fork("timeit", ["-n", "1", "-r", "1", "-s", "import time; time.sleep(600)"], (0, 1, 2))
    print(forked.pid, flush=True)
    if line == "wait\\n":
        print(forked.wait(60), flush=True)
"""
"""A program that has peers forked and does nothing about their end."""


@contextmanager
def host() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-P", "-c", HOST]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert say(process) == "began"
            yield process
        finally:
            process.kill()


def say(process: subprocess.Popen[str], word: str = "") -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    if word:
        process.stdin.write(word + "\n")
        process.stdin.flush()
    return process.stdout.readline().strip()


def test_peers_end_with_their_server_and_the_next_one_has_a_new_server() -> None:
    with host() as process:
        peer = psutil.Process(int(say(process, "wait")))
        server = peer.parent()
        assert server is not None
        assert server.ppid() == process.pid
        server.kill()
        assert say(process) == str(-signal.SIGKILL)
        _, alive = psutil.wait_procs([peer], HANG_S)  # the server is a zombie until its parent looks
        assert alive == []
        again = psutil.Process(int(say(process, "go on")))
        assert again.ppid() != server.pid
        # What we ignore is not ignored by those that we start.
        ignored = next(line for line in Path(f"/proc/{again.pid}/status").read_text().splitlines() if "SigIgn" in line)
        assert not int(ignored.split()[1], 16) & (1 << signal.SIGINT - 1)
        family = psutil.Process(process.pid).children(recursive=True)
        assert again in family
        process.kill()
        _, alive = psutil.wait_procs(family, HANG_S)
        assert alive == []


def test_server_that_still_imports_ends_with_whoever_started_it() -> None:
    with host() as process:
        parent = psutil.Process(process.pid)
        while not (family := parent.children()):
            assert process.poll() is None
        process.kill()
        _, alive = psutil.wait_procs(family, HANG_S)
        assert alive == []


def test_peer_runs_in_the_namespaces_that_are_asked_for() -> None:
    show = "import os; print(os.readlink('/proc/self/ns/net'))"
    ours = str(Path("/proc/self/ns/net").readlink())
    assert outcome(show)[1].startswith(ours)
    with another_network() as namespace:
        theirs = str(Path(namespace).readlink())
        assert theirs != ours
        assert outcome(show, namespace)[1].startswith(theirs)
        not_forked = [*entering([namespace]), sys.executable, "-c", show]
        assert subprocess.run(not_forked, capture_output=True, text=True, check=True).stdout.startswith(theirs)


def test_peer_does_not_run_where_a_namespace_is_gone() -> None:
    code, text = outcome("print('runs')", "/proc/self/ns/nothing")
    assert code == 1
    assert "runs" not in text
