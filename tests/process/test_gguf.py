from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardp2p.errors import ConfigError, IntegrityError
from shardp2p.weights.gguf import convert_gguf, to_bfloat16
from shardp2p.weights.source import open_directory
from tests.support.models import CHAT_TEMPLATE, tiny_gguf, tiny_llama


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("gguf") / "tiny", layers=2)


def convert(path: Path) -> Path:
    directory = path.with_suffix("")
    directory.mkdir()
    convert_gguf(path, directory)
    return directory


def tensors(directory: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(directory / "model.safetensors")


@pytest.mark.parametrize("is_tied", [True, False])
def test_conversion_undoes_what_llama_cpp_did_to_the_tensors(tmp_path: Path, is_tied: bool) -> None:
    import torch

    original = tiny_llama(tmp_path / "original", layers=2, tied=is_tied)
    converted = tensors(convert(tiny_gguf(tmp_path / "x.gguf", original)))
    expected = {name: tensor.to(torch.bfloat16) for name, tensor in tensors(original).items()}
    assert converted.keys() == expected.keys()
    assert ("lm_head.weight" in converted) is not is_tied
    for name, tensor in expected.items():
        assert torch.equal(converted[name], tensor), name


@pytest.mark.parametrize("quantisation", ["F16", "Q8_0", "Q4_1", "Q4_0"])
def test_quantised_tensors_equal_the_package_s_own_values(checkpoint: Path, tmp_path: Path, quantisation: str) -> None:
    import gguf
    import torch
    from gguf.quants import dequantize

    path = tiny_gguf(tmp_path / "x.gguf", checkpoint, quantisation=quantisation)
    converted = tensors(convert(path))
    by_name = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for ours, theirs in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.layers.1.mlp.down_proj.weight", "blk.1.ffn_down.weight"),
        ("model.layers.1.input_layernorm.weight", "blk.1.attn_norm.weight"),
    ):
        values = dequantize(by_name[theirs].data, by_name[theirs].tensor_type)
        assert torch.equal(converted[ours], torch.from_numpy(values.copy()).to(torch.bfloat16))


def test_converted_model_computes_what_the_original_computes(checkpoint: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    converted = convert(tiny_gguf(tmp_path / "x.gguf", checkpoint))
    models = [AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16) for path in (checkpoint, converted)]
    for name in ("rms_norm_eps", "rope_parameters", "eos_token_id", "tie_word_embeddings", "max_position_embeddings"):
        assert getattr(models[0].config, name) == getattr(models[1].config, name)
    tokens = torch.arange(3, 43)[None]
    with torch.inference_mode():
        assert torch.equal(models[0](tokens).logits, models[1](tokens).logits)


def test_conversion_gives_the_same_bytes_every_time(checkpoint: Path, tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "x.gguf", checkpoint, quantisation="Q4_1")
    first, second = convert(path), convert(path.rename(tmp_path / "y.gguf"))
    for name in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_converted_directory_is_a_sound_model(checkpoint: Path, tmp_path: Path) -> None:
    source = open_directory(convert(tiny_gguf(tmp_path / "x.gguf", checkpoint, tokenizer__ggml__eot_token_id=0)))
    assert (source.layers, source.vocab_size, source.context_tokens) == (2, 259, 512)
    generation = json.loads((source.directory / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": [2, 0], "pad_token_id": 2}


def test_large_tensors_are_converted_in_pieces(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_gguf(tmp_path / "x.gguf", checkpoint, quantisation="Q8_0")
    whole = convert(path)
    monkeypatch.setattr("shardp2p.weights.gguf._PIECE_ELEMENTS", 64 * 17)
    seen: list[tuple[int, int]] = []
    (tmp_path / "pieces").mkdir()
    convert_gguf(path, tmp_path / "pieces", lambda what, done, total: seen.append((done, total)))
    assert (whole / "model.safetensors").read_bytes() == (tmp_path / "pieces" / "model.safetensors").read_bytes()
    assert len(seen) > 20
    assert seen[-1][0] == seen[-1][1]


# The tokenizer


def tokenizer_of(directory: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory)


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe"])
@pytest.mark.parametrize("text", ["Hello, world", "12345 and 7", "émigré 日本語 🙂", " \n\n\ttabs  ", "I'm; DON'T"])
def test_any_text_survives_the_tokenizer(checkpoint: Path, tmp_path: Path, pre: str, text: str) -> None:
    tokenizer = tokenizer_of(convert(tiny_gguf(tmp_path / "x.gguf", checkpoint, tokenizer__ggml__pre=pre)))
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


def test_smollm_splits_digits_and_gpt2_does_not(checkpoint: Path, tmp_path: Path) -> None:
    counts = {}
    for pre in ("smollm", "gpt-2"):
        path = tiny_gguf(tmp_path / f"{pre}.gguf", checkpoint, tokenizer__ggml__pre=pre)
        tokenizer = tokenizer_of(convert(path))
        counts[pre] = len(tokenizer("12").input_ids)
    assert counts == {"smollm": 2, "gpt-2": 1}


def test_chat_template_and_special_tokens_are_kept(checkpoint: Path, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(convert(tiny_gguf(tmp_path / "x.gguf", checkpoint)))
    assert tokenizer.chat_template == CHAT_TEMPLATE
    chat = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    tokens = tokenizer(text).input_ids
    assert tokens[0] == tokenizer.bos_token_id == 1
    assert tokens.count(tokenizer.eos_token_id) == 1
    assert tokenizer.decode(tokens, skip_special_tokens=True) == "user\nhi\nassistant\n"


@pytest.mark.parametrize(("fields", "count"), [({}, 0), ({"tokenizer__ggml__add_bos_token": True}, 1)])
def test_begin_token_is_added_where_the_file_says_so(
    checkpoint: Path, tmp_path: Path, fields: dict[str, Any], count: int
) -> None:
    tokenizer = tokenizer_of(convert(tiny_gguf(tmp_path / "x.gguf", checkpoint, **fields)))
    assert tokenizer("hi").input_ids.count(1) == count


# Refusals


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"general__architecture": "qwen2"}, "'qwen2'"),
        ({"llama__expert_count": 8}, "mixtures of experts"),
        ({"llama__rope__scaling__type": "yarn"}, "scaled"),
        ({"llama__attention__key_length": 32}, "rotated"),
        ({"split__count": 2}, "merge"),
        ({"tokenizer__ggml__model": "llama"}, "tokenizer"),
        ({"tokenizer__ggml__pre": "qwen2"}, "'qwen2'"),
        ({"tokenizer__ggml__pre": None}, "None"),
    ],
)
def test_file_that_cannot_be_converted_is_refused_with_the_reason(
    checkpoint: Path, tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        convert(tiny_gguf(tmp_path / "x.gguf", checkpoint, **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"llama__block_count": 3},
        {"llama__block_count": 2**31 - 1},
        {"llama__block_count": None},
        {"llama__attention__head_count": 0},
        {"llama__attention__layer_norm_rms_epsilon": float("nan")},
        {"llama__vocab_size": 300},
        {"tokenizer__ggml__eos_token_id": 259},
        {"tokenizer__ggml__token_type": [3, 3, 3]},
        {"tokenizer__ggml__merges": ["nopair"]},
        {"tokenizer__ggml__merges": ["3 4"]},
    ],
)
def test_contradicting_file_is_refused(checkpoint: Path, tmp_path: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError):
        convert(tiny_gguf(tmp_path / "x.gguf", checkpoint, **fields))


def test_layer_too_many_has_no_place(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"blk\.1\.\S+ has no place"):
        convert(tiny_gguf(tmp_path / "x.gguf", checkpoint, llama__block_count=1))


@pytest.mark.parametrize("part", [0.0, 0.001, 0.02, 0.1, 0.5, 0.99])
def test_truncated_file_is_noticed(checkpoint: Path, tmp_path: Path, part: float) -> None:
    path = tiny_gguf(tmp_path / "x.gguf", checkpoint)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(IntegrityError, match="get the file again"):
        convert(path)


def test_altered_header_never_escapes_as_a_foreign_error(checkpoint: Path, tmp_path: Path) -> None:
    data = tiny_gguf(tmp_path / "x.gguf", checkpoint).read_bytes()
    random = np.random.default_rng(0)
    outcomes = []
    for round_ in range(40):
        altered = bytearray(data)
        for place in random.integers(0, 1200, size=4):
            altered[place] = random.integers(0, 256)
        path = tmp_path / f"altered-{round_}.gguf"
        path.write_bytes(altered)
        try:
            convert(path)
            outcomes.append("converted")
        except (IntegrityError, ConfigError) as error:
            outcomes.append(type(error).__name__)
    assert outcomes.count("IntegrityError") > 10


def test_values_that_are_no_numbers_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "x.gguf", checkpoint)
    data = bytearray(path.read_bytes())
    data[-4:] = b"\x00\x00\xc0\x7f"
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="no numbers"):
        convert(path)


def test_missing_package_names_the_extra(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_gguf(tmp_path / "x.gguf", checkpoint)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match=r"shardp2p\[demo\]"):
        convert(path)


def test_bfloat16_rounds_as_torch_does() -> None:
    import torch

    random = np.random.default_rng(7)
    bits = random.integers(0, 2**32, size=200_000, dtype=np.uint32)
    ties = (np.arange(2**16, dtype=np.uint32) << 16) | 0x8000
    edges = np.array([0, 0x80000000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x00000001, 0x7FC00000], dtype=np.uint32)
    values = np.concatenate([bits, ties, ties - 1, ties + 1, edges]).view(np.float32)
    expected = torch.from_numpy(values.copy()).to(torch.bfloat16)
    ours = torch.from_numpy(to_bfloat16(values).view(np.int16)).view(torch.bfloat16)
    is_nan = torch.isnan(expected)
    assert torch.equal(torch.isnan(ours), is_nan)
    assert torch.equal(ours[~is_nan].view(torch.int16), expected[~is_nan].view(torch.int16))
