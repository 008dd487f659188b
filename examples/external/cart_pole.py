"""Balances a pole with the policy that a rollmesh hub is learning from it.

    rollmesh train --config examples/external/cart_pole.toml --listen 127.0.0.1:7878
    ROLLMESH_TOKEN=… python3 examples/external/cart_pole.py --hub ws://127.0.0.1:7878

Uses Gymnasium's CartPole-v1 if that is installed, else the same equations in this file.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
from typing import List, Tuple

from rollmesh_client import Client, EpisodeError, HubError

try:
    import gymnasium
except ImportError:
    gymnasium = None


class CartPole:
    """CartPole-v1 (Barto, Sutton, Anderson 1983), with the necessary part of Gymnasium's interface."""

    def reset(self, seed: int) -> Tuple[List[float], dict]:
        draw = random.Random(seed)
        self.state, self.steps = [draw.uniform(-0.05, 0.05) for _ in range(4)], 0
        return self.state, {}

    def step(self, action: int) -> Tuple[List[float], float, bool, bool, dict]:
        x, speed, angle, turn = self.state
        force = 10.0 if action == 1 else -10.0
        sin, cos = math.sin(angle), math.cos(angle)
        push = (force + 0.05 * turn * turn * sin) / 1.1
        turning = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos * cos / 1.1))
        moving = push - 0.05 * turning * cos / 1.1
        self.state = [x + 0.02 * speed, speed + 0.02 * moving, angle + 0.02 * turn, turn + 0.02 * turning]
        self.steps += 1
        x, _, angle, _ = self.state
        fallen = abs(x) > 2.4 or abs(angle) > math.radians(12)
        return self.state, 1.0, fallen, self.steps == 500 and not fallen, {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hub", default="ws://127.0.0.1:7878", help="where the hub listens [%(default)s]")
    parser.add_argument("--token", default=os.environ.get("ROLLMESH_TOKEN"), help="the client token it has printed [ROLLMESH_TOKEN]")
    parser.add_argument("--episodes", type=int, default=400, help="how many to play [%(default)s]")
    parser.add_argument("--fingerprint", help="that of the certificate of a hub at wss://, which it has printed")
    args = parser.parse_args()
    if not args.token:
        parser.error("there is no token: set ROLLMESH_TOKEN to the one that the hub has printed")

    env = gymnasium.make("CartPole-v1") if gymnasium else CartPole()
    returns: List[float] = []
    try:
        with Client(args.hub, args.token, fingerprint=args.fingerprint) as client:
            for number in range(args.episodes):
                episode = client.start_episode()
                observation, _ = env.reset(seed=number)
                total, done = 0.0, False
                while not done:
                    action = episode.get_action(observation)
                    observation, reward, terminated, truncated, _ = env.step(action)
                    episode.log_returns(reward)
                    total, done = total + reward, terminated or truncated
                episode.end_episode(observation, truncated=not terminated)
                returns.append(total)
                if len(returns) % 20 == 0:
                    print(f"{len(returns)} episodes, mean return of the last 20: {sum(returns[-20:]) / 20:.1f}", flush=True)
    except (HubError, EpisodeError) as error:
        print(f"after {len(returns)} episodes: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
