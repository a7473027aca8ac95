"""What a peer reports becomes an error of ours, of the kind that says whose fault it is."""

from __future__ import annotations

import pytest

from shardp2p.errors import BY_WIRE_STATUS, LocalProtocolError, RemoteProtocolError, error_from_wire


@pytest.mark.parametrize("status", [*BY_WIRE_STATUS, "cosmic rays", ""])
def test_no_report_of_a_peer_is_a_bug_of_ours(status: str) -> None:
    error = error_from_wire(status, "it went wrong", "some-peer")
    assert not isinstance(error, LocalProtocolError)
    assert error.exit_code != LocalProtocolError.exit_code
    assert error.peer == "some-peer"
    assert "it went wrong" in error.message


def test_a_reported_error_keeps_its_kind() -> None:
    for status in BY_WIRE_STATUS.keys() - {"internal"}:
        assert error_from_wire(status, "why").wire_status == status
    assert type(error_from_wire("internal", "why")) is RemoteProtocolError
