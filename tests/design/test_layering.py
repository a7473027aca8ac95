"""What import-linter cannot see: imports inside functions of banned libraries, awaits and clocks in pure modules."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "shardp2p"
MODULES = sorted(p for p in PACKAGE.rglob("*.py") if "pb" not in p.relative_to(PACKAGE).parts)
CONTRACTS = {
    contract["id"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
}
PURE = [ROOT / (name.replace(".", "/") + ".py") for name in CONTRACTS["pure"]["source_modules"]]
CLOCKS = {"time", "datetime", "random", "secrets", "socket", "threading", "asyncio"}


def imported(tree: ast.AST) -> Iterator[str]:
    """The top-level name of everything that is imported anywhere in `tree`, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module.partition(".")[0]


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def impurities(tree: ast.AST) -> list[str]:
    """What a pure module must not have: something awaited, a clock, chance that is not seeded, a socket, a thread."""
    waits = ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith
    found = [f"line {n.lineno}: {type(n).__name__}" for n in ast.walk(tree) if isinstance(n, waits)]
    return found + sorted(CLOCKS.intersection(imported(tree)))


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def test_tensor_libraries_are_imported_in_runtime_and_the_tensor_codec_alone() -> None:
    allowed = {PACKAGE / "wire" / "tensor.py"}
    strangers = [
        path
        for path in MODULES
        if {"torch", "transformers"}.intersection(imported(parsed(path)))
        if path not in allowed and path.relative_to(PACKAGE).parts[0] != "runtime"
    ]
    assert names(strangers) == []


def test_libp2p_is_imported_in_host_alone() -> None:
    strangers = [p for p in MODULES if "libp2p" in imported(parsed(p)) and p.relative_to(PACKAGE).parts[0] != "host"]
    assert names(strangers) == []


def test_contracts_speak_of_every_package() -> None:
    packages = {f"shardp2p.{p.name}" for p in PACKAGE.iterdir() if (p / "__init__.py").exists()}
    packages |= {f"shardp2p.{p.stem}" for p in PACKAGE.glob("*.py") if p.stem not in ("__init__", "__main__")}
    packages -= {"shardp2p.vocabulary", "shardp2p.errors"}
    assert packages - set(CONTRACTS["libp2p"]["source_modules"]) == {"shardp2p.host"}
    assert packages - set(CONTRACTS["torch"]["source_modules"]) == {"shardp2p.runtime"}


@pytest.mark.parametrize("path", PURE, ids=lambda p: str(p.relative_to(ROOT)))
def test_pure_module_awaits_nothing_and_has_no_clock(path: Path) -> None:
    assert impurities(parsed(path)) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("async def f(): pass", ["line 1: AsyncFunctionDef"]),
        ("def f():\n    import time", ["time"]),
        ("from random import choice", ["random"]),
        ("from shardp2p.wire import messages", []),
    ],
)
def test_impurity_is_noticed(source: str, found: list[str]) -> None:
    assert impurities(ast.parse(source)) == found
