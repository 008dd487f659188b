"""A learner that needs only NumPy: REINFORCE with a baseline on CartPole, whose policy acts in Rust.

The workers sample; NumPy computes the gradient of a linear policy and owns its weights.
"""

import sys

import numpy as np

import rollmesh


def learn(iterations: int, seed: int = 1) -> list[float]:
    """Returns the mean episode return of every iteration."""
    config = {
        "env": "CartPole-v1",
        "num_envs": 16,
        "rollout_fragment_length": 64,
        "policies": {"default_policy": {"policy": "net", "config": {"model": {"fcnet_hiddens": []}}}},
        "seed": seed,
    }
    returns = []
    with rollmesh.WorkerGroup(config, num_workers=2) as group:
        weights = group.get_weights()["default_policy"]
        for _ in range(iterations):
            batch = group.synchronous_parallel_sample()
            obs, actions = batch["obs"], batch["actions"]
            reward_to_go = np.concatenate([discounted(episode["rewards"]) for episode in batch.split_by_episode()])
            advantages = (reward_to_go - reward_to_go.mean()) / (reward_to_go.std() + 1e-8)
            logits = obs @ weights["policy.0.weight"].T + weights["policy.0.bias"]
            probs = np.exp(logits - logits.max(axis=1, keepdims=True))
            probs /= probs.sum(axis=1, keepdims=True)
            gradient = (np.eye(2)[actions] - probs) * advantages[:, None] / len(batch)
            weights["policy.0.weight"] += 0.5 * gradient.T @ obs
            weights["policy.0.bias"] += 0.5 * gradient.sum(axis=0)
            group.sync_weights(weights)
            returns.append(group.get_metrics()["episode_reward_mean"])
    return returns


def discounted(rewards: np.ndarray, gamma: float = 0.98) -> np.ndarray:
    """Returns the discounted sum of the rewards from each step on."""
    sums = np.zeros(len(rewards))
    ahead = 0.0
    for step in reversed(range(len(rewards))):
        ahead = rewards[step] + gamma * ahead
        sums[step] = ahead
    return sums


if __name__ == "__main__":
    for iteration, mean in enumerate(learn(int(sys.argv[1]) if len(sys.argv) > 1 else 60), 1):
        print(f"{iteration}: {mean:.1f}")
