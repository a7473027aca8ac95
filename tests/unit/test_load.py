"""Loading a block: only its own tensors, checked, and one clear error for whatever is wrong."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from shardp2p.errors import ConfigError, IntegrityError, LocalProtocolError, OverloadedError
from shardp2p.runtime import recipes
from shardp2p.runtime.block import Block
from shardp2p.runtime.cache import RowBatch
from shardp2p.runtime.load import load_block
from shardp2p.runtime.prepare import prepare
from shardp2p.vocabulary import LayerRange
from tests.support.checkpoints import UNSPLITTABLE, VOCABULARY, make_checkpoint, make_config


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of 6 layers in many files, embeddings tied."""
    return make_checkpoint("llama", tmp_path_factory.mktemp("sharded"), max_shard_bytes=100_000)


@pytest.fixture
def single(tmp_path: Path) -> Path:
    """A qwen2 of 2 layers in one file, embeddings not tied."""
    return make_checkpoint("qwen2", tmp_path / "qwen2", layers=2)


def load(directory: Path, layers: str = "0:2", **options: object) -> Block:
    return load_block(directory, LayerRange.parse(layers), dtype="float32", **options)  # type: ignore[arg-type]


def tensor_digests(directory: Path) -> dict[str, str]:
    digests = {}
    for file in directory.glob("*.safetensors"):
        for name, tensor in load_file(file).items():
            digests[name] = hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
    return digests


def test_block_says_what_it_is(sharded: Path) -> None:
    first, middle, last = (load(sharded, text) for text in ("0:2", "2:3", "3:6"))
    assert [(block.is_first, block.is_last) for block in (first, middle, last)] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    assert (middle.model_layers, middle.hidden_size, middle.vocab_size, middle.context_tokens) == (6, 64, 320, 256)
    layer = sum(p.numel() for p in middle._inner.layers.parameters()) * 4
    embedding = VOCABULARY * 64 * 4
    assert middle.layer_bytes == layer
    assert first.layer_bytes == 2 * layer + embedding
    assert last.layer_bytes == 3 * layer + embedding + 64 * 4
    assert middle.row_bytes == 2 * 2 * 16 * 4
    assert middle.new_cache(10).bytes == 10 * middle.row_bytes


def test_a_file_that_goes_away_while_it_is_read_is_named(single: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("shardp2p.runtime.checkpoint.os.readv", fail)
    with pytest.raises(IntegrityError, match=r"model.safetensors cannot be read: Input/output error"):
        load(single)


def test_cache_that_no_memory_is_left_for_is_declined(sharded: Path) -> None:
    with pytest.raises(OverloadedError, match=r"cache rows need .* MiB"):
        load(sharded, "1:3").new_cache(10**13)


def test_files_of_other_layers_are_not_needed(sharded: Path, tmp_path: Path) -> None:
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    needed = {file for name, file in index["weight_map"].items() if ".layers.2." in name}
    assert 0 < len(needed) < len(set(index["weight_map"].values()))
    for name in ("config.json", "model.safetensors.index.json", *needed):
        (tmp_path / name).write_bytes((sharded / name).read_bytes())
    block = load(tmp_path, "2:3")
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    expected = load(sharded, "2:3")
    rows = RowBatch.chain(0, 3)
    ours, theirs = (b.forward(hidden, b.new_cache(3), rows) for b in (block, expected))
    assert torch.equal(ours, theirs)
    with pytest.raises(ConfigError, match=r"safetensors is missing"):
        load(tmp_path, "0:3")


def test_weights_are_converted_to_the_wanted_type(single: Path) -> None:
    stored = load_file(single / "model.safetensors")
    half = {name: tensor.to(torch.bfloat16) for name, tensor in stored.items()}
    save_file(half, single / "model.safetensors")
    block = load(single)
    weight = block._inner.layers[1].mlp.up_proj.weight
    assert weight.dtype == torch.float32
    assert torch.equal(weight, half["model.layers.1.mlp.up_proj.weight"].float())


def test_progress_ends_with_all_bytes_read(single: Path) -> None:
    seen: list[tuple[int, int]] = []
    block = load(single, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (block.layer_bytes, block.layer_bytes)


def test_matching_digests_are_accepted_and_a_wrong_one_names_tensor_and_file(single: Path) -> None:
    digests = tensor_digests(single)
    load(single, digests=digests)
    file = single / "model.safetensors"
    content = bytearray(file.read_bytes())
    with safe_open(file, "pt") as stored:
        assert "model.layers.1.mlp.up_proj.weight" in stored.keys()  # noqa: SIM118 (safe_open is no mapping)
    header_bytes = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + header_bytes])
    content[8 + header_bytes + header["model.layers.1.mlp.up_proj.weight"]["data_offsets"][0] + 5] ^= 1
    file.write_bytes(content)
    with pytest.raises(IntegrityError, match=r"model\.layers\.1\.mlp\.up_proj\.weight in .*model\.safetensors"):
        load(single, digests=digests)


def test_a_tensor_that_the_manifest_lacks_is_not_used(single: Path) -> None:
    digests = tensor_digests(single)
    del digests["model.norm.weight"]
    with pytest.raises(IntegrityError, match=r"model\.norm\.weight .* not in the manifest"):
        load(single, digests=digests)


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_truncated_file_is_named(single: Path, keep: int) -> None:
    file = single / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(IntegrityError, match=r"model\.safetensors .*get it again"):
        load(single)


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{",
        b'{"a": 1}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}',
    ],
)
def test_broken_header_is_named(single: Path, header: bytes) -> None:
    file = single / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    with pytest.raises(IntegrityError, match=r"model\.safetensors"):
        load(single)


def test_missing_tensor_and_wrong_shape_are_named(single: Path) -> None:
    file = single / "model.safetensors"
    tensors = load_file(file)
    norm = tensors.pop("model.norm.weight")
    save_file(tensors, file)
    with pytest.raises(ConfigError, match=r"lacks the tensor model\.norm\.weight"):
        load(single)
    save_file({**tensors, "model.norm.weight": norm[:5].clone()}, file)
    with pytest.raises(ConfigError, match=r"model\.norm\.weight has the shape \(5,\)"):
        load(single)


@pytest.mark.parametrize("layers", ["0:2", "1:2"])
def test_head_is_shared_with_the_embedding_only_where_the_checkpoint_ties_them(tmp_path: Path, layers: str) -> None:
    directory = make_checkpoint("llama", tmp_path, layers=2)
    file = directory / "model.safetensors"
    tensors = load_file(file)
    embedding = tensors["model.embed_tokens.weight"]
    tied_bytes = load(directory, layers).layer_bytes
    for name, head in (("equal", embedding.clone()), ("different", embedding + 1)):
        save_file({**tensors, "lm_head.weight": head}, file)
        block = load(directory, layers)
        hidden = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
        assert torch.equal(block.logits(hidden), hidden @ head.T), name
    assert load(directory, "1:2").layer_bytes <= tied_bytes


def test_experts_are_fused_as_transformers_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_checkpoint("mixtral", tmp_path, layers=2)
    streamed = dict(load(directory, "1:2")._inner.named_parameters())
    monkeypatch.setattr(recipes, "_is_plain_fusion", lambda _: False)
    converted = dict(load(directory, "1:2")._inner.named_parameters())
    assert any("experts" in name for name in streamed)
    assert streamed.keys() == converted.keys()
    assert all(torch.equal(streamed[name], converted[name]) for name in streamed)


def test_layers_beyond_the_model_are_refused_with_their_number(single: Path) -> None:
    with pytest.raises(ConfigError, match="the model has 2 layers"):
        load(single, "1:3")


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ("qwen3_next", "linear_attention"),
        ("mamba", "linear_attention"),
        ("gpt2", "cannot be split"),
        ("t5", "encoder"),
    ],
)
def test_architectures_that_cannot_be_split_are_refused_before_weights_are_read(
    tmp_path: Path, architecture: str, reason: str
) -> None:
    assert architecture in UNSPLITTABLE
    make_config(architecture, layers=2).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=reason):
        load(tmp_path)


@pytest.mark.parametrize("layers", ["0:1", "1:2"])
def test_architecture_that_norms_outside_its_layers_is_refused(tmp_path: Path, layers: str) -> None:
    make_checkpoint("nanochat", tmp_path, layers=2)
    with pytest.raises(ConfigError, match="outside its layers"):
        load(tmp_path, layers)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "llamma"}, "unknown architecture 'llamma'"),
        ({"model_type": None}, "unknown architecture"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised"),
        ({"num_attention_heads": "many"}, "no valid configuration"),
        ({"rope_parameters": {"rope_type": "nope", "rope_theta": 1e4}}, "no valid configuration of qwen2: .*nope"),
        ({"hidden_act": "nope"}, "no valid configuration of qwen2: .*nope"),
        ({"num_attention_heads": 0}, "no valid configuration"),
        ({"hidden_size": -64}, "no valid configuration"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": "x"}}, "no valid configuration"),
        ({"layer_types": [["full_attention"], 3]}, "no valid configuration"),
    ],
)
def test_configurations_that_cannot_be_used_are_refused(single: Path, change: dict[str, object], reason: str) -> None:
    file = single / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ConfigError, match=reason):
        load(single)
    with pytest.raises(ConfigError, match=reason):
        prepare(single, "float32")


def test_quantised_tensors_without_a_word_in_the_configuration_are_refused(single: Path) -> None:
    file = single / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, file)
    with pytest.raises(ConfigError, match="F8_E4M3; quantised"):
        load(single)


def test_directories_without_a_model_are_refused(tmp_path: Path, single: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        load(tmp_path / "nowhere")
    (single / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"no model\.safetensors"):
        load(single)
    (single / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="no JSON"):
        load(single)


def test_a_block_refuses_inputs_that_do_not_fit(single: Path) -> None:
    block = load(single, "0:1")
    cache = block.new_cache(4)
    with pytest.raises(LocalProtocolError, match="shape"):
        block.forward(torch.zeros(3, dtype=torch.int64), cache, RowBatch.chain(0, 2))
    with pytest.raises(LocalProtocolError, match="more rows"):
        block.forward(torch.zeros(5, dtype=torch.int64), cache, RowBatch.chain(0, 5))
    with pytest.raises(LocalProtocolError, match="has a head"):
        block.logits(torch.zeros(1, 64))
    assert cache.rows == 0


def test_warm_up_leaves_no_trace_in_results(single: Path) -> None:
    block = load(single)
    rows, tokens = RowBatch.chain(0, 4), torch.tensor([5, 6, 7, 8])
    before = block.logits(block.forward(tokens, block.new_cache(4), rows))
    block.warm_up()
    assert torch.equal(block.logits(block.forward(tokens, block.new_cache(4), rows)), before)
    assert before.shape == (4, VOCABULARY)
