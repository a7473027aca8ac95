"""What may be offered: what is free, within the container's limits, and no more than that."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardp2p.errors import ConfigError
from shardp2p.runtime import free_memory
from shardp2p.runtime.free_memory import free_memory_bytes, group_free_bytes, offered_bytes

GIB = 2**30


def write(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)


def test_the_tightest_group_above_us_counts_and_what_it_can_reclaim_is_free(tmp_path: Path) -> None:
    write(
        tmp_path / "a",
        memory__max=f"{4 * GIB}\n",
        memory__current=f"{3 * GIB}\n",
        memory__stat=f"anon 5\ninactive_file {GIB}\n",
    )
    write(tmp_path / "a" / "b", memory__max="max\n", memory__current="7\n")
    (tmp_path / "own").write_text("0::/a/b\n")
    assert group_free_bytes(tmp_path, tmp_path / "own") == [2 * GIB]


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    write(tmp_path, memory__max=str(GIB), memory__current=str(2 * GIB))
    (tmp_path / "own").write_text("0::/../elsewhere\n")
    assert group_free_bytes(tmp_path, tmp_path / "own") == [0]


def test_groups_of_the_first_version_are_understood(tmp_path: Path) -> None:
    write(
        tmp_path / "memory" / "x",
        memory__limit_in_bytes="1000",
        memory__usage_in_bytes="400",
        memory__stat="total_inactive_file 50",
    )
    (tmp_path / "own").write_text("4:cpu,memory:/x\n3:pids:/x\n")
    assert group_free_bytes(tmp_path, tmp_path / "own") == [650]


def test_a_system_without_groups_has_no_limit(tmp_path: Path) -> None:
    assert group_free_bytes(tmp_path, tmp_path / "none") == []


def test_the_limit_of_a_group_is_less_than_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert free_memory_bytes("cpu") > 2**20
    monkeypatch.setattr(free_memory, "group_free_bytes", lambda: [12_345, 67_890])
    assert free_memory_bytes("cpu") == 12_345


def test_a_gpu_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (device.index * GIB, 80 * GIB))
    assert free_memory_bytes("cuda:3") == 3 * GIB


def test_no_more_than_is_free_can_be_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "free_memory_bytes", lambda device: 3 * GIB + 5)
    assert offered_bytes("cpu") == 3 * GIB + 5
    assert offered_bytes("cpu", 2 * GIB) == 2 * GIB
    with pytest.raises(ConfigError, match=r"cpu has 3,072 MiB free; offer at most --memory 3072MiB, or leave"):
        offered_bytes("cpu", 4 * GIB)
