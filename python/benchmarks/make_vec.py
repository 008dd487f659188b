"""The speed of `rollmesh.make_vec` compared with Gymnasium's own vector environment, in one run."""

import time

import gymnasium
import numpy as np

import rollmesh

LANES, STEPS, TURNS = 4096, 100, 5


def rate(envs, actions) -> float:
    """Returns env steps per second."""
    envs.reset(seed=0)
    begun = time.perf_counter()
    for row in actions:
        envs.step(row)
    return len(actions) * LANES / (time.perf_counter() - begun)


def main() -> None:
    actions = np.random.default_rng(0).integers(0, 2, (STEPS, LANES))
    ours = rollmesh.make_vec("CartPole-v1", LANES)
    theirs = gymnasium.make_vec("CartPole-v1", LANES, vectorization_mode="vector_entry_point")
    rates = [(rate(ours, actions), rate(theirs, actions)) for _ in range(TURNS)]
    best = [max(column) for column in zip(*rates)]
    print(f"rollmesh {best[0]:,.0f} env steps/s, Gymnasium {best[1]:,.0f}, ratio {best[0] / best[1]:.2f}")


if __name__ == "__main__":
    main()
