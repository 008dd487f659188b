"""Connections that break, over TLS and without, and several episodes in one round trip."""

import socket
import sys

from rollmesh_client import Client, EpisodeError, HubError


def expect(code: str, call) -> None:
    try:
        call()
    except EpisodeError as error:
        assert error.code == code, (error.code, error)
    else:
        raise AssertionError(f"no {code}")


def play(client: Client) -> None:
    episodes = [client.start_episode() for _ in range(3)]
    for t in range(4):
        actions = client.get_actions({episode: [at, t, 0] for at, episode in enumerate(episodes)})
        assert list(actions) == episodes and all(action in (0, 1, 2) for action in actions.values()), actions
        for episode in episodes:
            episode.log_returns(1.0)
    # The mistake in one episode does not affect the others.
    nan = [float("nan"), 0, 0]
    actions = client.get_actions({episodes[0]: [0, 4, 0], episodes[1]: nan, episodes[2]: [2, 4, 0]})
    wrong = actions.pop(episodes[1])
    assert isinstance(wrong, EpisodeError) and wrong.code == "bad_rows", wrong
    assert all(action in (0, 1, 2) for action in actions.values()), actions
    for episode in actions:
        episode.end_episode([0, 5, 0])
    episodes[1].abandon()


def main() -> None:
    url, token, fingerprint = sys.argv[1:]
    trust = {} if fingerprint == "-" else {"fingerprint": fingerprint}
    if trust:
        for wrong in ({}, {"fingerprint": "00" * 32}):
            try:
                Client(url, token, **wrong)
            except HubError as error:
                assert "is not trusted" in str(error) or f"has a certificate with the fingerprint {fingerprint}" in str(error), error
            else:
                raise AssertionError("a hub that is not trusted was accepted")
    with Client(url, token, timeout=120, reconnect=60, **trust) as client:
        # Four lanes.
        assert client.max_episodes == 4, client.max_episodes
        play(client)
        episode = client.start_episode()
        episode.get_action([0, 0, 0])
        client._socket._socket.shutdown(socket.SHUT_RDWR)
        expect("lost", lambda: episode.get_action([0, 1, 0]))
        expect("lost", lambda: episode.abandon())
        play(client)
    with Client(url, token, timeout=120, **trust) as client:
        client._socket._socket.shutdown(socket.SHUT_RDWR)
        try:
            client.start_episode()
        except HubError:
            pass
        else:
            raise AssertionError("a client that does not connect again did")
    print("played")


main()
