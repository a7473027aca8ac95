"""The committed protobuf code is what the schemas give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = ROOT / "shardp2p" / "wire" / "pb"


def sources(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for path in directory.iterdir() if path.suffix in (".py", ".pyi")}


def test_generated_code_is_current(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "proto" / "generate.py", tmp_path], check=True, cwd=tmp_path)
    generated, committed = sources(tmp_path), sources(COMMITTED)
    assert generated.keys() == committed.keys()
    stale = [name for name, text in generated.items() if committed[name] != text]
    assert not stale, "run `make proto` and commit the result"


def test_codec_and_messages_do_not_import_torch() -> None:
    program = (
        "import sys, shardp2p.wire.codec, shardp2p.wire.channel, shardp2p.wire.credit; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, cwd=ROOT).returncode == 0
