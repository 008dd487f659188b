"""How fast environments of Gymnasium step in host processes, beside a bare Python loop and Gymnasium's vector environments.

Run with `python hosts.py [ENV] [ROUNDS]`. The cases take turns, so that other programs on the machine slow all of them; the
best round counts.
"""

import sys
import time

import gymnasium
import numpy as np

import rollmesh

ENVS = 64
# Steps of all environments in a turn.
STEPS = 100


def rate(step) -> float:
    """Returns env steps per second of a function that steps all environments `STEPS` times."""
    begun = time.perf_counter()
    step()
    return ENVS * STEPS / (time.perf_counter() - begun)


def bare_loop(id: str):
    env = gymnasium.make(id, disable_env_checker=True)
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(ENVS * STEPS)]

    def step() -> None:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return step


def vector(id: str, mode: str):
    envs = gymnasium.make_vec(id, ENVS, vectorization_mode=mode)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = [envs.action_space.sample() for _ in range(STEPS)]

    def step() -> None:
        for action in actions:
            envs.step(action)

    return step


def hosts(id: str, processes: int):
    # Environments of a worker stay in its processes.
    rollmesh.allow_python(f"gym:{id}", processes=processes)
    policies = {"default_policy": {"policy": "random"}}
    worker = rollmesh.RolloutWorker(f"gym:{id}", num_envs=ENVS, rollout_fragment_length=STEPS, policies=policies)
    return worker.sample


def main() -> None:
    id = sys.argv[1] if len(sys.argv) > 1 else "CartPole-v1"
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    cases = {
        "a bare loop over one environment": bare_loop(id),
        "SyncVectorEnv": vector(id, "sync"),
        "AsyncVectorEnv": vector(id, "async"),
        "rollmesh, 1 process": hosts(id, 1),
        "rollmesh, 2 processes": hosts(id, 2),
    }
    best = dict.fromkeys(cases, 0.0)
    for _ in range(rounds):
        for name, step in cases.items():
            best[name] = max(best[name], rate(step))
    loop = best["a bare loop over one environment"]
    for name, found in best.items():
        print(f"{id}, {name}: {found:,.0f} env steps/s, {found / loop:.2f} of the loop")


if __name__ == "__main__":
    main()
