"""PPO in one file, after CleanRL: PyTorch learns, a worker group samples, the policy acts in Rust.

Run with `python ppo.py [ENV_STEPS]`; it needs PyTorch.
"""

import sys

import torch
from torch import nn

import rollmesh

GAMMA, LAMBDA, CLIP, EPOCHS, MINIBATCH, LEARNING_RATE = 0.98, 0.8, 0.2, 10, 256, 1e-3


class Agent(nn.Module):
    """The networks of a rollmesh policy, under its names."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()

        def network(outputs: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Linear(observations, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
            )

        self.policy, self.value = network(actions), network(1)


def train(env_steps: int, seed: int = 1, num_workers: int = 2) -> float:
    """Returns the mean episode return of the last iteration."""
    torch.manual_seed(seed)
    agent, mean = Agent(4, 2), 0.0
    optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, eps=1e-5)
    config = {
        "env": "CartPole-v1",
        "num_envs": 8,
        "rollout_fragment_length": 64,
        "policies": {
            "default_policy": {
                "policy": "net",
                # Workers add `advantages` and `value_targets`.
                "config": {"model": {"fcnet_hiddens": [64, 64]}, "gamma": GAMMA, "lambda": LAMBDA},
            }
        },
        "seed": seed,
    }
    with rollmesh.WorkerGroup(config, num_workers=num_workers) as group:
        agent.load_state_dict({name: torch.from_numpy(array) for name, array in group.get_weights()["default_policy"].items()})
        done = 0
        while done < env_steps:
            batch = group.synchronous_parallel_sample().copy()
            done += batch.env_steps()
            names = ("obs", "actions", "action_logp", "advantages", "value_targets")
            obs, actions, logp, advantages, targets = (torch.from_numpy(batch[name]) for name in names)
            for _ in range(EPOCHS):
                for rows in torch.randperm(len(batch)).split(MINIBATCH):
                    chosen = torch.distributions.Categorical(logits=agent.policy(obs[rows]))
                    ratio = (chosen.log_prob(actions[rows]) - logp[rows]).exp()
                    gain = advantages[rows]
                    gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                    policy_loss = -torch.min(gain * ratio, gain * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                    value_loss = 0.5 * (agent.value(obs[rows])[:, 0] - targets[rows]).pow(2).mean()
                    loss = policy_loss + 0.5 * value_loss
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                    optimizer.step()
            group.sync_weights(agent.state_dict())
            mean = group.get_metrics()["episode_reward_mean"] or mean
            print(f"{done} env steps: return {mean:.1f}")
    return mean


if __name__ == "__main__":
    train(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
