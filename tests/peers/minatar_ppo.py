"""PPO with a convolutional network on PixelBreakout-v0 and PixelFreeway-v0, three seeds to 5 M frames.

Usage: python tests/peers/minatar_ppo.py target/release/rollmesh DIRECTORY [SEEDS [FRAMES]]

One run after the other, each in one process with one thread that samples and learns sequentially. A run that is interrupted
resumes from its newest checkpoint, and a finished one is not repeated, so the same command continues the series. It prints
each run's mean return of the latest 100 episodes at every fifth of the frames, as a table.
"""

import json
import pathlib
import shutil
import statistics
import subprocess
import sys

ENVIRONMENTS = ["PixelBreakout-v0", "PixelFreeway-v0"]

# The network is that of Young and Tian (arXiv 1903.03176): 16 filters of 3x3, a hidden layer of 128, heads for policy and
# value over the same layers. The other settings are usual for PPO on Atari games, with more rows per update.
SETTINGS = {
    "preset": "none",
    "algorithm": "ppo",
    "num_workers": 0,
    "num_slots": 32,
    "rollout_fragment_length": 64,
    "model_config": {
        "conv_filters": "auto",
        "fcnet_hiddens": [128],
        "fcnet_activation": "relu",
        "vf_share_layers": True,
        "weights_initializer": "orthogonal",
    },
    "policy_config": {
        "gamma": 0.99,
        "lambda": 0.95,
        "lr": 0.001,
        "num_epochs": 3,
        "minibatch_size": 256,
        "clip_param": 0.2,
        "vf_loss_coeff": 0.5,
        "entropy_coeff": 0.01,
        "grad_clip": 0.5,
        "anneal_to": 0.1,
    },
}


def settings(env, frames):
    policy = {**SETTINGS["policy_config"], "anneal_over_env_steps": frames}
    return {**SETTINGS, "env": env, "policy_config": policy, "stop": {"env_steps": frames}}


def train(program, folder, env, seed, frames):
    """Begins the run of `folder` or resumes it; does nothing if it has finished."""
    if (folder / "summary.json").exists():
        return
    if any((folder / "checkpoints").glob("*/manifest.json")):
        command = ["--resume", folder]
    else:
        shutil.rmtree(folder, ignore_errors=True)
        file = folder.parent / f"{folder.name}.json"
        file.write_text(json.dumps(settings(env, frames)))
        command = ["--config", file, "--seed", str(seed), "--run-dir", folder]
    subprocess.run([program, "train", "--no-dashboard", "--json", *command], check=True, stdout=subprocess.DEVNULL)


def returns(folder, frames, points=5):
    """Returns the mean return of the latest 100 episodes at every `points`-th part of the frames."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line.get("episode_return_mean") is not None]
    at = [frames * point // points for point in range(1, points + 1)]
    return at, [max((line for line in lines if line["env_steps"] <= limit), key=lambda line: line["env_steps"],
                    default={"episode_return_mean": float("nan")})["episode_return_mean"] for limit in at]


def main():
    program, directory = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    seeds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    frames = int(sys.argv[4]) if len(sys.argv) > 4 else 5_000_000
    directory.mkdir(parents=True, exist_ok=True)
    for seed in range(seeds):
        for env in ENVIRONMENTS:
            folder = directory / f"{env}-seed-{seed}"
            train(program, folder, env, seed, frames)
            at, reached = returns(folder, frames)
            seconds = json.loads((folder / "summary.json").read_text())["wall_s"]
            print(f"{env} seed {seed}: {', '.join(f'{value:.1f}' for value in reached)} in {seconds:.0f} s", flush=True)
    print("| game | " + " | ".join(f"{point / 1e6:g} M frames" for point in at) + " |")
    print("|---" * (len(at) + 1) + "|")
    for env in ENVIRONMENTS:
        runs = [returns(directory / f"{env}-seed-{seed}", frames)[1] for seed in range(seeds)]
        means = [f"{statistics.mean(point):.1f} ({min(point):.1f}–{max(point):.1f})" for point in zip(*runs)]
        print(f"| {env} | " + " | ".join(means) + " |")


if __name__ == "__main__":
    main()
