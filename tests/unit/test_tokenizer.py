"""A model directory whose text files are wrong: one error that names the file, whatever is wrong with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from shardp2p.errors import ConfigError, IntegrityError
from shardp2p.runtime.tokenizer import Tokenizer
from tests.support.models import tiny_llama

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("sound") / "tiny", layers=1)


@pytest.fixture
def model(sound: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(sound, tmp_path / "tiny"))


def test_stop_tokens_are_those_of_the_first_file_that_names_some(model: Path) -> None:
    (model / "generation_config.json").write_text('{"eos_token_id": [5, 7]}')
    assert Tokenizer(model).stop_tokens == {5, 7}
    (model / "generation_config.json").write_text('{"eos_token_id": null}')
    assert Tokenizer(model).stop_tokens == {2}


@pytest.mark.parametrize("said", [["x"], "x", [1, None], [[2]], {"id": 2}, 2.5, True])
def test_stop_token_that_is_no_token_id_is_named_with_its_file(model: Path, said: object) -> None:
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": said}))
    with pytest.raises(IntegrityError, match=r"generation_config\.json is damaged: eos_token_id is"):
        Tokenizer(model)


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer_config.json", "config.json", "tokenizer.json"])
@pytest.mark.parametrize(
    "put", [lambda path: path.mkdir(), lambda path: path.write_bytes(b"\xff\xfe{")], ids=["directory", "no UTF-8"]
)
def test_file_that_cannot_be_read_as_text_is_named(model: Path, name: str, put: Callable[[Path], object]) -> None:
    (model / "generation_config.json").unlink()
    (model / name).unlink(missing_ok=True)
    put(model / name)
    with pytest.raises(IntegrityError, match=rf"{name} is damaged: .*import the model again"):
        Tokenizer(model)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 + messages }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].absent.more }}",
        "{{ raise_exception('no') }}",
        "{{ 'x'.split('') }}",
        "{% for i in range(10000000) %}{% endfor %}",
        "{{ '\ud800' }}",
        "{% if %}",
    ],
)
def test_chat_template_that_fails_is_told_in_one_error(model: Path, template: str) -> None:
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    with pytest.raises(ConfigError, match="chat template refuses these messages"):
        Tokenizer(model).encode_chat(MESSAGES)
