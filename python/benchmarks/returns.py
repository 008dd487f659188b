"""Returns of LunarLander-v3 and HalfCheetah-v5 after a million env steps of PPO, compared with Stable-Baselines3.

Run with `python returns.py [ENV_STEPS] [SEED]` on an idle machine: it takes hours. It needs stable-baselines3, box2d,
mujoco and imageio. Both have the same settings.
"""

import os
import sys

import gymnasium
import stable_baselines3
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import rollmesh

WANTED = {"LunarLander-v3": 200, "HalfCheetah-v5": 1_500}
EPISODES = 20
# Environments, steps of each between two updates, and settings: those of rollmesh's presets.
SETTINGS = {
    "LunarLander-v3": (16, 128, {"n_epochs": 4, "batch_size": 64, "gamma": 0.999, "gae_lambda": 0.98, "ent_coef": 0.01}),
    "HalfCheetah-v5": (8, 256, {"n_epochs": 10, "batch_size": 64, "gamma": 0.98, "gae_lambda": 0.92}),
}


def of_rollmesh(id: str, env_steps: int, seed: int) -> float:
    # A finished run cannot evaluate, so its own stop condition is later than the end of this loop.
    stop = {"env_steps": 2 * env_steps}
    with rollmesh.Algorithm(f"gym:{id}", num_workers=os.cpu_count() or 1, stop=stop, seed=seed) as algorithm:
        while algorithm.step()["env_steps"] < env_steps:
            pass
        return algorithm.evaluate(EPISODES)["episode_return_mean"]


def of_stable_baselines(id: str, env_steps: int, seed: int) -> float:
    envs, length, settings = SETTINGS[id]
    vector = VecNormalize(DummyVecEnv([lambda: gymnasium.make(id)] * envs), norm_reward=False)
    rate = lambda left: 3e-4 * left  # noqa: E731
    model = stable_baselines3.PPO(
        "MlpPolicy", vector, n_steps=length, learning_rate=rate, seed=seed, device="cpu", **settings
    )
    model.learn(env_steps)
    vector.training = False
    mean, _ = evaluate_policy(model, vector, EPISODES)
    return float(mean)


def main() -> None:
    env_steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    for id, wanted in WANTED.items():
        ours, theirs = of_rollmesh(id, env_steps, seed), of_stable_baselines(id, env_steps, seed)
        print(f"{id}: rollmesh {ours:.0f}, Stable-Baselines3 {theirs:.0f}, wanted {wanted}", flush=True)


if __name__ == "__main__":
    main()
