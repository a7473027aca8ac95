from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardp2p.errors import ConfigError, IntegrityError
from shardp2p.vocabulary import LayerRange, ModelId
from shardp2p.weights.manifest import DOMAIN_TAG, FileEntry, Manifest, TensorEntry, layer_of, local_name, model_id


def tensor(name: str, *shape: int) -> TensorEntry:
    size_bytes = 2
    for length in shape:
        size_bytes *= length
    return TensorEntry(name, "model.safetensors", "BF16", shape, size_bytes, name.encode().hex()[:8].ljust(64, "0"))


def manifest(*, is_tied: bool = True) -> Manifest:
    tensors = [
        tensor("model.embed_tokens.weight", 100, 4),
        *(tensor(f"model.layers.{layer}.mlp.up_proj.weight", 4, layer + 1) for layer in range(12)),
        tensor("model.norm.weight", 4),
    ]
    if not is_tied:
        tensors.append(tensor("lm_head.weight", 100, 4))
    return Manifest(
        model=ModelId("tiny"),
        architecture="LlamaForCausalLM",
        model_type="llama",
        layers=12,
        context_tokens=128,
        hidden_size=4,
        vocab_size=100,
        dtype="BF16",
        files=(FileEntry("config.json", 7, "a" * 64), FileEntry("model.safetensors", 5000, "b" * 64)),
        tensors=tuple(sorted(tensors, key=lambda entry: entry.name)),
    )


def canonical(value: object) -> bytes:
    return DOMAIN_TAG + json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def body() -> dict[str, object]:
    value = json.loads(manifest().to_bytes().removeprefix(DOMAIN_TAG))
    assert isinstance(value, dict)
    return value


def test_manifest_survives_its_bytes() -> None:
    assert Manifest.from_bytes(manifest().to_bytes()) == manifest()


def test_digest_does_not_depend_on_the_local_name() -> None:
    renamed = replace(manifest(), model=ModelId("other"))
    assert renamed.digest == manifest().digest
    assert renamed.to_bytes() != manifest().to_bytes()


def test_digest_is_the_known_one() -> None:
    assert manifest().digest == "9dcc5eb8b967dcbda85da3a97498f7fdf4e0b327f0135d355f32062306ff5f07"


@pytest.mark.parametrize(
    "change",
    [
        {"layers": 13},
        {"context_tokens": 129},
        {"architecture": "OtherForCausalLM"},
        {"files": (FileEntry("config.json", 7, "c" * 64), FileEntry("model.safetensors", 5000, "b" * 64))},
        {"tensors": manifest().tensors[:-1]},
    ],
)
def test_digest_depends_on_everything_else(change: dict[str, object]) -> None:
    assert replace(manifest(), **change).digest != manifest().digest  # type: ignore[arg-type]


def test_bytes_in_another_form_are_refused() -> None:
    data = manifest().to_bytes()
    for other in (
        data + b"\n",
        data.replace(b'"layers":12', b'"layers": 12'),
        data.replace(b'"layers":12', b'"layers":12,"layers":12'),
        DOMAIN_TAG + json.dumps(dict(reversed(body().items())), separators=(",", ":")).encode(),
    ):
        assert other != data
        with pytest.raises(IntegrityError):
            Manifest.from_bytes(other)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layers", True),
        ("layers", 12.0),
        ("layers", 0),
        ("layers", 2**53),
        ("layers", "12"),
        ("dtype", ""),
        ("model", "../escape"),
        ("files", {}),
        ("files", [{"name": "../../x", "size_bytes": 1, "sha256": "a" * 64}]),
        ("files", [{"name": ".hidden", "size_bytes": 1, "sha256": "a" * 64}]),
        ("files", [{"name": "model.safetensors", "size_bytes": -1, "sha256": "a" * 64}]),
        ("files", [{"name": "model.safetensors", "size_bytes": 9000, "sha256": "A" * 64}]),
        ("files", [{"name": "other.safetensors", "size_bytes": 9000, "sha256": "a" * 64}]),
        ("files", list(reversed(body()["files"]))),  # type: ignore[call-overload]
        ("tensors", []),
        ("tensors", None),
        ("tensors", [1]),
        ("surplus", 1),
    ],
)
def test_wrong_field_is_refused(key: str, value: object) -> None:
    with pytest.raises(IntegrityError):
        Manifest.from_bytes(canonical({**body(), key: value}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shape", [100, 5]),
        ("shape", [-100, -4]),
        ("shape", [100, 4] + [1] * 10_000),
        ("shape", [True, 4]),
        ("size_bytes", 799),
        ("size_bytes", 800.0),
        ("dtype", "INT3"),
        ("dtype", ["BF16"]),
        ("file", ["model.safetensors"]),
        ("name", "a\nb"),
        ("name", "zzz"),
        ("sha256", None),
    ],
)
def test_wrong_tensor_is_refused(key: str, value: object) -> None:
    wrong = body()
    wrong["tensors"][0][key] = value  # type: ignore[index]
    with pytest.raises(IntegrityError):
        Manifest.from_bytes(canonical(wrong))


def test_newer_format_asks_for_an_update() -> None:
    with pytest.raises(ConfigError, match="update shardp2p"):
        Manifest.from_bytes(manifest().to_bytes().replace(b"manifest 1\n", b"manifest 2\n"))


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_give_a_manifest_or_an_error(data: bytes, is_tagged: bool) -> None:
    with pytest.raises((IntegrityError, ConfigError)):
        Manifest.from_bytes(DOMAIN_TAG + data if is_tagged else data)


@given(st.integers(min_value=0, max_value=len(manifest().to_bytes()) - 1), st.integers(min_value=0, max_value=255))
def test_altered_byte_never_gives_the_same_digest(place: int, byte: int) -> None:
    data = bytearray(manifest().to_bytes())
    if data[place] == byte:
        return
    data[place] = byte
    try:
        altered = Manifest.from_bytes(bytes(data))
    except (IntegrityError, ConfigError):
        return
    assert altered.digest != manifest().digest or altered.model != manifest().model


@given(st.sets(st.integers(min_value=1, max_value=11)), st.booleans())
def test_ranges_that_cover_the_model_hold_each_tensor_once_but_for_tied_embeddings(
    cuts: set[int], is_tied: bool
) -> None:
    whole = manifest(is_tied=is_tied)
    edges = [0, *sorted(cuts), 12]
    held = [t.name for a, b in itertools.pairwise(edges) for t in whole.tensors_of(LayerRange(a, b))]
    twice = ["model.embed_tokens.weight"] if is_tied and cuts else []
    assert sorted(held) == sorted([*(t.name for t in whole.tensors), *twice])


def test_layer_bytes_count_the_ends_of_the_model() -> None:
    tied, untied = manifest(), manifest(is_tied=False)
    assert tied.layer_bytes(LayerRange(1, 3)) == 2 * 4 * (2 + 3)
    assert tied.layer_bytes(LayerRange(0, 1)) == 2 * 4 * 1 + 800
    assert tied.layer_bytes(LayerRange(11, 12)) == 2 * 4 * 12 + 8 + 800
    assert untied.layer_bytes(LayerRange(11, 12)) == 2 * 4 * 12 + 8 + 800
    assert untied.layer_bytes(LayerRange(0, 12)) == sum(t.size_bytes for t in untied.tensors)
    with pytest.raises(ConfigError, match="0:12"):
        tied.layer_bytes(LayerRange(5, 13))


def test_digests_are_by_tensor_name() -> None:
    assert manifest().digests()["model.norm.weight"] == tensor("model.norm.weight", 4).sha256


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.7.self_attn.q_proj.weight", 7),
        ("transformer.h.3.attn.weight", 3),
        ("model.language_model.layers.2.mlp.weight", 2),
        ("vision_tower.layers.2.mlp.weight", None),
        ("model.embed_tokens.weight", None),
        ("lm_head.weight", None),
    ],
)
def test_layer_of_a_tensor_is_read_from_its_name(name: str, layer: int | None) -> None:
    assert layer_of(name) == layer


def test_names_are_checked_and_made() -> None:
    assert model_id("smollm2") == "smollm2"
    assert local_name("My Model (v1.5)") == "my-model-v1.5"
    assert local_name("日本") == "model"
    for wrong in ("", "a/b", "..", ".hidden", "UPPER", "a" * 65):
        with pytest.raises(ConfigError):
            model_id(wrong)
