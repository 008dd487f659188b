"""Runs as trials of Ray Tune. This module imports Ray Tune (`pip install "ray[tune]"`)."""

import os
import shutil
from typing import Any

from ray import tune

from .._algorithm import Algorithm


class Trainable(tune.Trainable):
    """A run as a trial, with an iteration per step. Its `config` has the settings of `rollmesh.Algorithm`.

        from ray import tune
        from rollmesh.ray.tune import Trainable

        space = {"env": "CartPole-v1", "num_workers": 0, "policy_config": {"lr": tune.grid_search([1e-3, 3e-3])}}
        tune.Tuner(Trainable, param_space=space).fit()

    Results are the metrics of iterations, such as `episode_return_mean`. A trial is done once its run has reached a stop
    condition. A checkpoint is a copy of the run's directory: a trial that Tune restores resumes bit-identically.
    """

    def setup(self, config: dict[str, Any]) -> None:
        self._copies = 0
        self._latest: dict[str, Any] = {}
        self._algorithm = Algorithm(config, run_dir=os.path.join(self.logdir, "run"))

    def step(self) -> dict[str, Any]:
        metrics = self._algorithm.step()
        if metrics is None:
            return {**self._latest, "done": True}
        self._latest = metrics
        return dict(metrics)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        shutil.copytree(self._algorithm.save(), os.path.join(checkpoint_dir, "run"))

    def load_checkpoint(self, checkpoint: str) -> None:
        self._algorithm.stop()
        self._copies += 1
        run_dir = os.path.join(self.logdir, f"run-{self._copies}")
        shutil.copytree(os.path.join(checkpoint, "run"), run_dir)
        self._algorithm = Algorithm.from_checkpoint(run_dir)

    def cleanup(self) -> None:
        self._algorithm.stop()
