from __future__ import annotations

import sys

import pytest

from shardp2p.errors import ConfigError
from shardp2p.runtime.device import check_device
from shardp2p.runtime.memory import PeakGrowth

SIZE_BYTES = 64 * 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process forget its peak")
def test_peak_counts_what_is_gone_again_and_nothing_before() -> None:
    earlier = b"\x01" * (2 * SIZE_BYTES)
    del earlier
    growth = PeakGrowth()
    passing = b"\x01" * SIZE_BYTES
    del passing
    assert 0.9 * SIZE_BYTES <= growth.growth_bytes() <= 1.3 * SIZE_BYTES


def test_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_device("cpu")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match="cannot compute on cuda: torch sees no CUDA device here"):
        check_device("cuda")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    check_device("cuda:1")
    with pytest.raises(ConfigError, match="torch sees 2 CUDA devices here"):
        check_device("cuda:2")
