"""The times that a learner in Python waits: for a batch of 64x200 CartPole rows, and for 10 MB of weights on 2 workers.

Run with `python calls.py [CREATED]` on Linux. It also creates and closes many workers and vector environments, and prints how
the memory of the process and its number of threads change.
"""

import pathlib
import statistics
import sys
import time

import numpy as np

import rollmesh

TURNS = 30


def of_batch() -> str:
    """Times the arrays of a batch that has been sampled."""
    times = []
    with rollmesh.RolloutWorker("CartPole-v1", num_envs=64, rollout_fragment_length=200) as worker:
        for _ in range(TURNS):
            batch = worker.sample()
            begun = time.perf_counter()
            arrays = [np.asarray(batch[name]) for name in batch]
            times.append(1e3 * (time.perf_counter() - begun))
    return f"{len(arrays)} columns of {len(arrays[0]):,} rows as arrays: {statistics.median(times):.3f} ms"


def of_weights(placement: str) -> str:
    """Times a `state_dict` on its way into the acting nets of two workers."""
    model = {"fcnet_hiddens": [1100, 1100]}
    group = rollmesh.WorkerGroup("CartPole-v1", num_envs=1, model_config=model, num_workers=2, placement=placement)
    with group:
        weights = group.get_weights()["default_policy"]
        try:
            import torch

            weights = {name: torch.tensor(array) for name, array in weights.items()}
            kind = "torch"
        except ImportError:
            kind = "NumPy"
        size = sum(np.asarray(array).nbytes for array in weights.values())
        times = []
        for _ in range(TURNS):
            begun = time.perf_counter()
            group.sync_weights(weights, timeout_seconds=60)
            times.append(1e3 * (time.perf_counter() - begun))
    return f"{size / 1e6:.1f} MB of weights from {kind} on two workers ({placement}): {statistics.median(times):.1f} ms"


def status(name: str) -> int:
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def of_many(name: str, number: int, create) -> str:
    for _ in range(min(100, number)):
        create()
    threads, memory = status("Threads:"), status("VmRSS:")
    for _ in range(number):
        create()
    grown = status("VmRSS:") - memory
    return f"{number:,} times {name}: {grown:+,} kB of memory, {status('Threads:') - threads:+d} threads"


def worker() -> None:
    with rollmesh.RolloutWorker("CartPole-v1", num_envs=2, rollout_fragment_length=5) as made:
        made.sample()


def main() -> None:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    print(of_batch())
    for placement in ("threads", "processes"):
        print(of_weights(placement))
    print(of_many("a worker that samples", number, worker))
    print(of_many("a vector environment", number, lambda: rollmesh.make_vec("CartPole-v1", 4).reset(seed=1)))
    print(of_many("a batch and its slices", number, lambda: rollmesh.SampleBatch({"obs": np.zeros((64, 4))}).slice(3, 9)))


if __name__ == "__main__":
    main()
