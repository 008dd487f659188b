"""The game of game.rs, in Python, and the client's errors for mistakes."""

import itertools
import sys

from rollmesh_client import Client, Episode, EpisodeError, HubError


def play(client: Client, number: int) -> None:
    pair, length, last = client.agents != [0], 4 + number % 3, 0
    episode = client.start_episode()
    for t in range(length):
        obs = [number, t, last]
        if pair:
            both = {"left": obs, "right": [number, t, 1]} if t in (0, 2, 3) else {"left": obs}
            last = episode.get_action(both)["left"]
            rewards = {"left": last + 0.5 * t}
            if t <= 2:
                rewards["right"] = -1.0
            episode.log_returns(rewards, info={"left": {"t": t}}, terminated={"right": True} if t == 2 else {})
        else:
            if (number + t) % 5 == 3:
                last = (number + t) % 3
                episode.log_action(obs, last)
            else:
                last = episode.get_action(obs)
            episode.log_returns(last + 0.5 * t, info={"t": t})
    obs = [number, length, last]
    episode.end_episode({"left": obs} if pair else obs, truncated=number % 2 == 1)


def expect(code: str, call) -> None:
    try:
        call()
    except EpisodeError as error:
        assert error.code == code, (error.code, error)
    else:
        raise AssertionError(f"no {code}")


def make_mistakes(client: Client) -> None:
    episode = client.start_episode()
    for wrong in ([0, 0], ["x", 0, 0], {"unknown": [0, 0, 0]}):
        try:
            episode.get_action({"left": wrong} if client.agents != [0] and isinstance(wrong, list) else wrong)
        except ValueError as error:
            assert "agent" in str(error), error
        else:
            raise AssertionError(f"{wrong} was taken")
    nan = [float("nan"), 0, 0]
    expect("bad_rows", lambda: episode.get_action({"left": nan} if client.agents != [0] else nan))
    episode.log_returns({"left": 1.0} if client.agents != [0] else 1.0)
    expect("out_of_turn", lambda: episode.abandon())
    expect("not_open", lambda: episode.abandon())
    expect("not_open", lambda: Episode(client, 12345).abandon())


def main() -> None:
    url, token = sys.argv[1:]
    try:
        Client(url, "00" * 32)
    except HubError as error:
        assert str(error) == "the hub refused: the token is not valid for this role", error
    with Client(url, token, timeout=120) as client:
        make_mistakes(client)
        try:
            for number in itertools.count():
                play(client, number)
        except (EpisodeError, HubError) as error:
            # The hub has sampled enough.
            assert isinstance(error, HubError) or error.code == "stopped", error


main()
