"""Which of a user's few client peers a command is, and which of them a token lets in."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from shardp2p.cli.asked_ring import open_ring_asker
from shardp2p.cli.asked_swarm import open_swarm_asker
from shardp2p.cli.askers import ready_to_ask
from shardp2p.cli.asking import Answer
from shardp2p.cli.client_identity import CLIENTS, client_place, join_clients, key_files
from shardp2p.cli.option_sets import AskOptions
from shardp2p.cli.up_swarm import find_swarm
from shardp2p.config import Paths, Settings, default_paths
from shardp2p.errors import ConfigError
from shardp2p.identity.join import Join, OpenSwarm, write_join
from shardp2p.identity.joined import JoinedSwarms
from shardp2p.identity.keys import hold, load_or_create
from shardp2p.identity.owned import OwnedSwarms
from shardp2p.scheduler.plan import Plan, Stage
from shardp2p.vocabulary import LayerRange, ModelId, PeerId, SwarmId
from shardp2p.weights.store import StoredModel
from tests.support.members import OTHER_OWNER, OWNER, invite, peer

ADDRESS = f"/ip4/192.0.2.7/tcp/4001/p2p/{peer(1).peer_id}"


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return default_paths(tmp_path)


def bearer(**limits: object) -> str:
    return write_join(invite(time.time(), **limits))  # type: ignore[arg-type]


def members(paths: Paths) -> list[PeerId]:
    """The clients that are in a swarm."""
    joined, now_s = JoinedSwarms(paths.swarms_dir), time.time()
    ids = [load_or_create(path).peer_id for path in key_files(paths)]
    return [one for one in ids if joined.remembered(one, now_s)]


def take(token: str | None, paths: Paths) -> PeerId:
    with client_place(token, paths) as place:
        assert place is not None
        return place.identity.peer_id


def test_without_a_swarm_there_is_no_place_and_nothing_is_made(paths: Paths) -> None:
    with client_place(None, paths) as place:
        assert place is None
    assert list(paths.data_dir.iterdir()) == []


def test_a_bearer_token_lets_all_clients_in_and_is_needed_no_more(paths: Paths) -> None:
    token = bearer(peers=(ADDRESS,))
    first = take(token, paths)
    assert len(members(paths)) == CLIENTS
    with client_place(None, paths) as place:
        assert place is not None
        assert (place.identity.peer_id, place.joined.name, place.joined.peers) == (first, "lab", (ADDRESS,))
        assert place.joined.membership is not None


def test_the_secret_of_a_token_is_not_kept(paths: Paths) -> None:
    made = invite(time.time())
    take(write_join(made), paths)
    kept = b"".join(path.read_bytes() for path in paths.data_dir.rglob("*") if path.is_file())
    assert made.seed.hex().encode() not in kept
    assert made.seed not in kept
    assert write_join(made).encode() not in kept


def test_commands_at_the_same_time_are_different_peers(paths: Paths) -> None:
    take(bearer(), paths)
    with ExitStack() as stack:
        places = [stack.enter_context(client_place(None, paths)) for _ in range(CLIENTS)]
        assert len({place.identity.peer_id for place in places if place is not None}) == CLIENTS
        with pytest.raises(ConfigError, match="4 other commands on this machine ask the swarm now"):
            stack.enter_context(client_place(None, paths))
    assert take(None, paths) == load_or_create(key_files(paths)[0]).peer_id


def test_a_counted_token_lets_one_client_in(paths: Paths) -> None:
    token = bearer(uses=3)
    with client_place(token, paths) as place:
        assert place is not None
        assert members(paths) == [place.identity.peer_id]
        for again in (token, None):
            with (
                pytest.raises(ConfigError, match="the only place that the token gives"),
                client_place(again, paths),
            ):
                pass
    assert take(token, paths) == take(None, paths)
    assert len(members(paths)) == 1


def test_a_token_for_one_peer_is_for_that_client(paths: Paths) -> None:
    third = load_or_create(key_files(paths)[2]).peer_id
    assert take(bearer(bound_to=third), paths) == third
    assert members(paths) == [third]


def test_a_token_for_somebody_else_says_who_we_are(paths: Paths) -> None:
    first = load_or_create(key_files(paths)[0]).peer_id
    with pytest.raises(ConfigError, match=f"is for peer {peer(5).peer_id} alone, and this is {first}"):
        take(bearer(bound_to=peer(5).peer_id), paths)


def test_an_open_swarm_takes_all(paths: Paths) -> None:
    take(write_join(OpenSwarm(SwarmId(OWNER.peer_id), "pub", (ADDRESS,))), paths)
    assert len(members(paths)) == CLIENTS


def test_the_owners_clients_join_by_the_swarms_name(paths: Paths) -> None:
    OwnedSwarms(paths.swarms_dir).create("home", is_open=False)
    take("home", paths)
    assert len(members(paths)) == CLIENTS


@pytest.mark.parametrize(("limits", "let_in"), [({}, CLIENTS), ({"uses": 2}, 0)])
def test_a_serving_peers_token_lets_the_clients_in_where_it_may(
    limits: dict[str, int], let_in: int, paths: Paths
) -> None:
    token: Join = invite(time.time(), **limits)  # type: ignore[arg-type]
    join_clients(token, "token", paths, time.time())
    assert len(members(paths)) == let_in


def test_of_several_swarms_one_must_be_named(paths: Paths) -> None:
    take(bearer(), paths)
    other = bearer(owner=OTHER_OWNER)
    take(other, paths)
    with pytest.raises(ConfigError, match="say which with --join"), client_place(None, paths):
        pass
    assert take(other, paths)


def test_peers_that_were_met_are_dialled_beside_those_of_the_token(paths: Paths) -> None:
    take(bearer(peers=(ADDRESS,)), paths)
    kept, swarm = JoinedSwarms(paths.swarms_dir), SwarmId(OWNER.peer_id)
    met = [f"/ip4/192.0.2.7/tcp/{port}/p2p/{peer(port).peer_id}" for port in range(1, 30)]
    kept.keep_met(swarm, [ADDRESS, *met])
    with (paths.swarms_dir / swarm / "met").open("r+") as lines:
        lines.write("damaged ")
    with client_place(None, paths) as place:
        assert place is not None
        assert place.joined.peers == (ADDRESS, *met[:15])


def test_another_trouble_than_being_taken_is_told_as_it_is(paths: Paths) -> None:
    take(bearer(), paths)
    path = key_files(paths)[0]
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="other users can read the identity"), client_place(None, paths):
        pass
    path.chmod(0o600)
    with hold(path):
        assert take(None, paths) == load_or_create(key_files(paths)[1]).peer_id


def test_a_swarm_that_was_joined_is_named_by_its_name_or_its_id(paths: Paths) -> None:
    lab, other = bearer(), bearer(owner=OTHER_OWNER)
    take(lab, paths)
    assert JoinedSwarms(paths.swarms_dir).names() == ("lab",)
    assert take("lab", paths)
    take(other, paths)
    with pytest.raises(ConfigError, match=rf"several swarms.*{OTHER_OWNER.peer_id}"), client_place("lab", paths):
        pass
    with client_place(OTHER_OWNER.peer_id, paths) as place:
        assert place is not None
        assert place.joined.swarm == OTHER_OWNER.peer_id
    assert find_swarm(OWNER.peer_id, load_or_create(key_files(paths)[0]), paths, serves=False) is not None
    with pytest.raises(ConfigError, match="joined here by other peers, and not by this one"):
        find_swarm(OWNER.peer_id, peer(9), paths, serves=True)
    with pytest.raises(ConfigError, match="--join is neither a token"), client_place("elsewhere", paths):
        pass


def test_named_peers_are_the_ring_whatever_was_joined(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    take(bearer(), paths)
    settings = Settings(paths)

    def asked(join: str | None, *peers: str, **others: object) -> object:
        wish = AskOptions(join=join, peer=list(peers), **others).wish()  # type: ignore[arg-type]
        with ready_to_ask(join, wish, cast(StoredModel, None), settings) as open_asker:
            return cast("partial[object]", open_asker).func

    assert asked(None, ADDRESS) is open_ring_asker
    assert "asking the peer that is named, and no swarm; to ask lab, add --join lab" in capsys.readouterr().err
    assert asked(None) is open_swarm_asker
    assert asked("lab", ADDRESS) is open_swarm_asker
    with pytest.raises(ConfigError, match="--only and --block choose among the peers of a swarm: say which"):
        asked(None, ADDRESS, only=[peer(1).peer_id])


def test_the_account_says_which_swarm_answered() -> None:
    plan = Plan(ModelId("m"), "ab" * 32, "float32", 100, (Stage(peer(1).peer_id, LayerRange(0, 2)),))
    answer = Answer(plan, "hi", (1,), "stop", 2.0, 0.5, 1, swarm="lab")
    assert "1 lap of 1 stage of the swarm lab, 2.0 tokens/s" in answer.account()
