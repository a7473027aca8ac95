from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from shardp2p.errors import ConfigError, IntegrityError, ShardError
from shardp2p.weights.source import build_manifest, open_directory
from shardp2p.weights.tensor_file import read_specs, write_tensors
from tests.support.models import tiny_llama

SHARD_BYTES = 200_000


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "whole")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "sharded", max_shard_bytes=SHARD_BYTES, tied=False)


def edit_json(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def set_header(path: Path, header: bytes) -> None:
    data = path.read_bytes()
    rest = data[8 + int.from_bytes(data[:8], "little") :]
    path.write_bytes(len(header).to_bytes(8, "little") + header + rest)


def test_directory_describes_the_model(whole: Path) -> None:
    source = open_directory(whole)
    assert (source.architecture, source.model_type) == ("LlamaForCausalLM", "llama")
    assert (source.layers, source.hidden_size, source.vocab_size, source.context_tokens) == (6, 64, 259, 512)
    assert source.file_names == (
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    )


def test_manifest_has_the_digest_of_every_tensor_and_file(sharded: Path) -> None:
    from safetensors import safe_open

    manifest = build_manifest(sharded, "tiny")
    assert len({tensor.file for tensor in manifest.tensors}) > 1
    for file in manifest.files:
        data = (sharded / file.name).read_bytes()
        assert (file.size_bytes, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    for tensor in manifest.tensors:
        with safe_open(sharded / tensor.file, framework="numpy") as opened:
            values = opened.get_tensor(tensor.name)
        assert tensor.shape == values.shape
        assert tensor.sha256 == hashlib.sha256(values.tobytes()).hexdigest()


def test_manifest_is_the_same_at_another_place(whole: Path, tmp_path: Path) -> None:
    again = tiny_llama(tmp_path / "again")
    assert build_manifest(whole, "one").digest == build_manifest(again, "two").digest
    other = tiny_llama(tmp_path / "other", seed=1)
    assert build_manifest(whole, "one").digest != build_manifest(other, "one").digest


def test_files_that_are_no_part_of_the_model_are_left_out(whole: Path) -> None:
    before = build_manifest(whole, "tiny")
    (whole / "README.md").write_text("hello")
    (whole / "modeling_custom.py").write_text("raise SystemExit")
    assert build_manifest(whole, "tiny") == before


def test_progress_reaches_the_size_of_the_model(whole: Path) -> None:
    seen: list[tuple[int, int]] = []
    manifest = build_manifest(whole, "tiny", lambda what, done, total: seen.append((done, total)))
    assert {total for _, total in seen} == {manifest.size_bytes}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] <= manifest.size_bytes


def test_nested_text_config_gives_the_dimensions(whole: Path) -> None:
    edit_json(whole / "config.json", lambda c: c.update(text_config={"num_hidden_layers": c.pop("num_hidden_layers")}))
    assert open_directory(whole).layers == 6


@pytest.mark.parametrize(
    ("damage", "kind", "words"),
    [
        (lambda d: (d / "config.json").unlink(), ConfigError, "no config.json"),
        (lambda d: (d / "config.json").write_text("{"), IntegrityError, "no JSON"),
        (lambda d: (d / "config.json").write_text("[]"), IntegrityError, "no JSON object"),
        (lambda d: edit_json(d / "config.json", lambda c: c.pop("model_type")), ConfigError, "model_type"),
        (lambda d: edit_json(d / "config.json", lambda c: c.pop("hidden_size")), ConfigError, "hidden_size"),
        (lambda d: edit_json(d / "config.json", lambda c: c.update(vocab_size="many")), ConfigError, "vocab_size"),
        (lambda d: edit_json(d / "config.json", lambda c: c.update(num_hidden_layers=7)), IntegrityError, "layer 6"),
        (
            lambda d: edit_json(d / "config.json", lambda c: c.update(num_hidden_layers=10**18)),
            IntegrityError,
            "layer 6",
        ),
        (lambda d: (d / "model.safetensors").unlink(), ConfigError, "no weights"),
        (
            lambda d: (d / "model.safetensors").rename(d / "pytorch_model.bin"),
            ConfigError,
            "pickle",
        ),
    ],
)
def test_wrong_directory_is_refused_with_the_reason(
    whole: Path, damage: Callable[[Path], object], kind: type[ShardError], words: str
) -> None:
    damage(whole)
    with pytest.raises(kind, match=words) as caught:
        open_directory(whole)
    assert str(whole) in caught.value.message
    assert "\n" not in caught.value.message


def test_more_layers_than_tensors_are_refused_whatever_the_tensors_are_called(tmp_path: Path) -> None:
    write_tensors(tmp_path / "model.safetensors", [("odd", "F32", (1,))], [bytes(4)])
    config = {"model_type": "x", "num_hidden_layers": 10**18, "max_position_embeddings": 8, "hidden_size": 4}
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 9}))
    with pytest.raises(IntegrityError, match="1 tensors cannot be those of 1000000000000000000 layers"):
        open_directory(tmp_path)


def test_missing_directory_and_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        open_directory(tmp_path / "nowhere")
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match="model import"):
        open_directory(tmp_path / "model.gguf")


def first_shard(directory: Path) -> Path:
    return min(directory.glob("model-*.safetensors"))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda d: first_shard(d).unlink(), "is missing"),
        (lambda d: (d / "model.safetensors.index.json").write_text("{}"), "maps no tensors"),
        (
            lambda d: edit_json(d / "model.safetensors.index.json", lambda i: i["weight_map"].update(x="../x")),
            "outside",
        ),
        (
            lambda d: edit_json(
                d / "model.safetensors.index.json", lambda i: i["weight_map"].update(ghost=first_shard(d).name)
            ),
            "does not hold ghost",
        ),
    ],
)
def test_damaged_index_is_refused_with_the_reason(sharded: Path, damage: Callable[[Path], object], words: str) -> None:
    damage(sharded)
    with pytest.raises(IntegrityError, match=words):
        open_directory(sharded)


def test_tensor_in_two_files_is_refused(sharded: Path) -> None:
    shards = sorted(sharded.glob("model-*.safetensors"))
    shards[1].write_bytes(shards[0].read_bytes())
    with pytest.raises(IntegrityError, match="damaged"):
        open_directory(sharded)


@pytest.mark.parametrize("keep", [0, 4, 20, -1])
def test_truncated_weights_are_noticed_without_reading_them(whole: Path, keep: int) -> None:
    path = whole / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(IntegrityError, match=r"truncated|no header"):
        open_directory(whole)


@pytest.mark.parametrize(
    "header",
    [
        b"{",
        b"[]",
        b'{"a":1}',
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[4,0]}}',
        b'{"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        b"[" * 100_000,
    ],
)
def test_bad_header_is_refused(whole: Path, header: bytes) -> None:
    set_header(whole / "model.safetensors", header)
    with pytest.raises(IntegrityError, match=r"model\.safetensors is damaged"):
        open_directory(whole)


def test_header_that_claims_a_huge_length_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")
    with pytest.raises(IntegrityError, match="no header"):
        read_specs(tmp_path / "x.safetensors")


def test_written_tensors_are_read_by_the_format_s_own_library(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    path = tmp_path / "x.safetensors"
    tensors = [("b", "BF16", (2, 3)), ("empty", "F32", (0,)), ("a", "F32", (1,))]
    write_tensors(path, tensors, [b"\x80\x3f" * 2, b"\x80\x3f" * 4, b"\0\0\x80\x3f"])
    loaded = load_file(path)
    assert torch.equal(loaded["b"], torch.ones(2, 3, dtype=torch.bfloat16))
    assert torch.equal(loaded["a"], torch.ones(1))
    assert loaded["empty"].shape == (0,)
    assert [spec.name for spec in read_specs(path)] == ["b", "empty", "a"]
