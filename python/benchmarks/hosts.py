"""The speed of Gymnasium's environments in host processes, compared with a bare Python loop, Gymnasium's vector
environments, and those of Stable-Baselines3, PufferLib and RLlib if they are installed.

Run with `python hosts.py [ENV] [ROUNDS]` on Linux. The cases alternate, so that other programs on the machine slow all
of them; the best round counts. The CPU time of all processes together depends less on other programs.
"""

import importlib
import os
import pathlib
import sys
import time

import gymnasium
import numpy as np

import rollmesh

ENVS = 64
# Steps of all environments in a turn.
STEPS = int(os.environ.get("STEPS", 400))


def cpu_seconds() -> float:
    """Returns the CPU time of this process and its descendants."""
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


def subproc(id: str):
    from stable_baselines3.common.vec_env import SubprocVecEnv

    envs = SubprocVecEnv([lambda: gymnasium.make(id)] * ENVS)
    envs.reset()
    actions = [np.array([envs.action_space.sample() for _ in range(ENVS)]) for _ in range(STEPS)]

    def step() -> None:
        for action in actions:
            envs.step(action)

    return step


def puffer(id: str):
    import pufferlib.emulation
    import pufferlib.vector

    def make(buf=None, seed=0):
        return pufferlib.emulation.GymnasiumPufferEnv(env=gymnasium.make(id), buf=buf, seed=seed)

    envs = pufferlib.vector.make(make, num_envs=ENVS, num_workers=2, backend=pufferlib.vector.Multiprocessing)
    envs.reset()
    actions = [envs.action_space.sample() for _ in range(STEPS)]

    def step() -> None:
        for action in actions:
            envs.step(action)

    return step


def rllib(id: str):
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

    config = PPOConfig().environment(id).env_runners(num_envs_per_env_runner=ENVS)
    runner = SingleAgentEnvRunner(config=config)
    return lambda: runner.sample(num_timesteps=ENVS * STEPS, random_actions=True)


def hosts(id: str, processes: int):
    # Environments of a worker stay in its processes.
    rollmesh.allow_python(f"gym:{id}", processes=processes)
    policies = {"default_policy": {"policy": "random"}}
    worker = rollmesh.RolloutWorker(f"gym:{id}", num_envs=ENVS, rollout_fragment_length=STEPS, policies=policies)
    return worker.sample


def main() -> None:
    id = sys.argv[1] if len(sys.argv) > 1 else "CartPole-v1"
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    if id.startswith("ALE/"):
        importlib.import_module("ale_py")
    cases = {
        "a bare loop over one environment": bare_loop(id, 1),
        f"a bare loop over {ENVS} environments": bare_loop(id, ENVS),
        "SyncVectorEnv": vector(id, "sync"),
        "AsyncVectorEnv": vector(id, "async"),
        "rollmesh, 1 process": hosts(id, 1),
        "rollmesh, 2 processes": hosts(id, 2),
    }
    for name, make in {"SubprocVecEnv": subproc, "PufferLib, 2 processes": puffer, "RLlib's env runner": rllib}.items():
        try:
            cases[name] = make(id)
        except Exception as error:
            print(f"without {name}: {type(error).__name__}: {error}")
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
