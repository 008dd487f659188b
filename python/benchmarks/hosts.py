"""How fast environments of Gymnasium step in host processes, beside a bare Python loop and Gymnasium's vector environments.

Run with `python hosts.py [ENV] [ROUNDS]` on Linux. The cases take turns, so that other programs on the machine slow all of
them; the best round counts. The time of processors, of all processes together, depends less on other programs.
"""

import os
import pathlib
import sys
import time

import gymnasium
import numpy as np

import rollmesh

ENVS = 64
# Steps of all environments in a turn.
STEPS = 400


def cpu_seconds() -> float:
    """Returns the processors' time of this process and its descendants."""
    stats = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        stats[int(path.parent.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    own, ticks = {os.getpid()}, 0
    for pid in sorted(stats):
        parent, used = stats[pid]
        if pid in own or parent in own:
            own.add(pid)
            ticks += used
    return ticks / os.sysconf("SC_CLK_TCK")


def bare_loop(id: str, number: int):
    envs = [gymnasium.make(id, disable_env_checker=True) for _ in range(number)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    actions = [envs[0].action_space.sample() for _ in range(ENVS * STEPS)]

    def step() -> None:
        for at, action in enumerate(actions):
            env = envs[at % number]
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
        "a bare loop over one environment": bare_loop(id, 1),
        f"a bare loop over {ENVS} environments": bare_loop(id, ENVS),
        "SyncVectorEnv": vector(id, "sync"),
        "AsyncVectorEnv": vector(id, "async"),
        "rollmesh, 1 process": hosts(id, 1),
        "rollmesh, 2 processes": hosts(id, 2),
    }
    best, cpu = dict.fromkeys(cases, 0.0), dict.fromkeys(cases, float("inf"))
    for _ in range(rounds):
        for name, step in cases.items():
            before, begun = cpu_seconds(), time.perf_counter()
            step()
            best[name] = max(best[name], ENVS * STEPS / (time.perf_counter() - begun))
            cpu[name] = min(cpu[name], (cpu_seconds() - before) / (ENVS * STEPS))
    for name in cases:
        print(f"{id}, {name}: {best[name]:,.0f} env steps/s, {1e6 * cpu[name]:.1f} µs of processors per step")


if __name__ == "__main__":
    main()
