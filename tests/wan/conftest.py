"""Tests in network namespaces. Where there can be none, each is skipped, with the reason."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import pytest
import trio

from shardp2p.lab.network.holder import why_impossible
from tests.support.models import smollm2_directory


@cache
def reason() -> str | None:
    return trio.run(why_impossible)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.wan)


@pytest.fixture(autouse=True)
def _network_namespaces() -> None:
    if (why := reason()) is not None:
        pytest.skip(why)


@pytest.fixture
def demo_model() -> None:
    """The model that the swarms of scenarios serve, among those of this user."""
    smollm2_directory()


@pytest.fixture
def miniupnpd() -> None:
    """Skips where a router with UPnP cannot be had."""
    path = "/usr/sbin:/sbin:/usr/bin:/bin"
    for program, package in (("miniupnpd", "miniupnpd-nftables"), ("nft", "nftables")):
        if shutil.which(program, path=path) is None:
            pytest.skip(f"needs {program} of the package {package}")
