"""Files and functions stay short enough to be read at once (docs/conventions.md)."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(p for p in (ROOT / "shardp2p").rglob("*.py") if "pb" not in p.relative_to(ROOT).parts)
MAX_LINES = 400
MAX_PURE_LINES = 250
MAX_FUNCTION_LINES = 50


def pure_modules() -> set[Path]:
    """The files of the modules that the `pure` contract in pyproject.toml names."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (pure,) = [contract for contract in contracts if contract["id"] == "pure"]
    return {ROOT / (name.replace(".", "/") + ".py") for name in pure["source_modules"]}


def long_functions(source: str) -> list[str]:
    """Each function of `source` above the limit, its decorators not counted, as `name (lines)`."""
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = [(node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in functions]
    return [f"{name} ({length} lines)" for name, length in lengths if length > MAX_FUNCTION_LINES]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_module_and_its_functions_stay_short(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    limit = MAX_PURE_LINES if path in pure_modules() else MAX_LINES
    assert len(source.splitlines()) <= limit
    assert long_functions(source) == []


def test_a_long_function_is_noticed() -> None:
    body = "    pass\n" * MAX_FUNCTION_LINES
    assert long_functions(f"def f():\n{body}") == [f"f ({MAX_FUNCTION_LINES + 1} lines)"]
    assert long_functions(f"class C:\n  async def g(self):\n{body}") == [f"g ({MAX_FUNCTION_LINES + 1} lines)"]
    assert long_functions("def f():\n" + "    pass\n" * (MAX_FUNCTION_LINES - 1)) == []
