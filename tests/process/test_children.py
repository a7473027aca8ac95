"""What a child process dies of is told in its own words, as the kind of error that its exit code stands for."""

from __future__ import annotations

import sys

import pytest

from shardp2p.errors import ConfigError, IntegrityError, PeerUnavailableError, RemoteProtocolError, ShardError
from shardp2p.lab.children import open_children


@pytest.mark.parametrize(
    ("exit_code", "kind"),
    [
        (1, RemoteProtocolError),  # the child's bug, not ours
        (2, ConfigError),
        (3, PeerUnavailableError),
        (4, IntegrityError),
        (99, PeerUnavailableError),
    ],
)
async def test_a_child_that_fails_is_named_with_its_reason(exit_code: int, kind: type[ShardError]) -> None:
    script = f"import sys; print('shardp2p: error: all went wrong', file=sys.stderr); sys.exit({exit_code})"
    async with open_children() as children:
        child = await children.start("stage 1", [sys.executable, "-I", "-S", "-c", script])
        with pytest.raises(ShardError) as caught:
            await child.read_line()
    assert type(caught.value) is kind
    assert caught.value.message == "stage 1: all went wrong"
