"""PPO's update of 2,048 rows, compared with PyTorch's and Stable-Baselines3's on the CPU, alternately.

Usage: python tests/peers/update_speed.py target/release/deps/update-… [TURNS]

The first argument is the benchmark that `cargo bench -p rollmesh-learner --bench update --no-run` builds. All sides do eight epochs
of minibatches of 128 rows on one thread, with the same layers: 64x64 networks for policy and value, an LSTM of 64 over sequences of
20 rows, and 16 filters of 3x3 with a layer of 128 on images of 10x10x4. For the first, Stable-Baselines3's `PPO.train` does the
update; the others are the same loss in plain PyTorch, with rollmesh's gradient clipping and AdamW. Prints medians and ratios.
"""

import os
import re
import statistics
import subprocess
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from torch import nn

ROWS, EPOCHS, MINIBATCH, SEQUENCE = 2_048, 8, 128, 20
torch.set_num_threads(1)
GENERATOR = torch.Generator().manual_seed(0)


def sb3_mlp():
    """Returns Stable-Baselines3's update with its default networks, which equal rollmesh's: two of 64x64, tanh."""
    import gymnasium
    from stable_baselines3 import PPO

    model = PPO("MlpPolicy", gymnasium.make("CartPole-v1"), n_steps=ROWS, n_epochs=EPOCHS, batch_size=MINIBATCH,
                device="cpu", verbose=0)
    model.learn(ROWS)
    return model.train


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        net = lambda outputs: nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))
        self.policy, self.value = net(2), net(1)
        self.shape = (4,)

    def forward(self, obs):
        return self.policy(obs), self.value(obs)[:, 0]


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(4, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 128), nn.Tanh())
        self.policy, self.value = nn.Linear(128, 2), nn.Linear(128, 1)
        self.shape = (4, 10, 10)

    def forward(self, obs):
        features = self.trunk(obs)
        return self.policy(features), self.value(features)[:, 0]


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.lstm = nn.Sequential(nn.Linear(4, 64), nn.Tanh()), nn.LSTM(64, 64, batch_first=True)
        self.policy, self.value = nn.Linear(64, 2), nn.Linear(64, 1)
        self.shape = (4,)

    def forward(self, obs):
        features, _ = self.lstm(self.before(obs))
        features = features.reshape(-1, 64)
        return self.policy(features), self.value(features)[:, 0]


def torch_update(model):
    """Returns PPO's update of such a model: the ratio's clipped loss, a squared error of values, and AdamW."""
    draw = lambda *shape: torch.randn(*shape, generator=GENERATOR)
    length = SEQUENCE if isinstance(model, Lstm) else 1
    items = ROWS // length
    shape = (items, SEQUENCE, *model.shape) if length > 1 else (items, *model.shape)
    obs, per_batch = draw(*shape), max(1, MINIBATCH // length)
    flat = lambda values: values.view(items, length)
    actions, old = flat(torch.randint(2, (items * length,), generator=GENERATOR)), flat(draw(items * length) * 0.1 - 0.7)
    advantages, targets = flat(draw(items * length)), flat(draw(items * length))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3, eps=1e-5, weight_decay=0.0)

    def update():
        for _ in range(EPOCHS):
            for rows in torch.randperm(items, generator=GENERATOR).split(per_batch):
                logits, values = model(obs[rows])
                distribution = torch.distributions.Categorical(logits=logits)
                advantage = advantages[rows].reshape(-1)
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                ratio = (distribution.log_prob(actions[rows].reshape(-1)) - old[rows].reshape(-1)).exp()
                policy_loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
                value_loss = (values - targets[rows].reshape(-1)).square().mean()
                loss = policy_loss + 0.5 * value_loss - 0.0 * distribution.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()

    return update


def ours(bench, name):
    """Returns the benchmark's median in milliseconds."""
    command = [bench, "--bench", f"ppo_update/{name}$", "--noplot", "--warm-up-time", "1", "--measurement-time", "3"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    number, unit = re.search(r"time:\s+\[\S+ \S+ (\S+) (\S+) ", text).groups()
    return float(number) * {"s": 1_000.0, "ms": 1.0, "µs": 0.001}[unit]


def timed(update):
    began = time.perf_counter()
    update()
    return (time.perf_counter() - began) * 1_000


def main():
    bench, turns = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    cases = [
        ("mlp_64x64", "Stable-Baselines3", sb3_mlp()),
        ("mlp_64x64", "PyTorch", torch_update(Mlp())),
        ("lstm_64", "PyTorch", torch_update(Lstm())),
        ("cnn_16x3x3_128", "PyTorch", torch_update(Cnn())),
    ]
    for _, _, update in cases:
        update()
    print(f"PyTorch {torch.__version__}, one thread, medians of {turns} turns, milliseconds per update")
    for name, what, update in cases:
        both = [(ours(bench, name), timed(update)) for _ in range(turns)]
        mine, theirs = (statistics.median(column) for column in zip(*both))
        ratios = sorted(theirs / mine for mine, theirs in both)
        spread = f"{ratios[0]:.2f}–{ratios[-1]:.2f}"
        print(f"{name}: ours {mine:.1f}, {what} {theirs:.1f}, ratio {statistics.median(ratios):.2f} ({spread})", flush=True)


if __name__ == "__main__":
    main()
