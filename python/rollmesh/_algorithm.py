"""Training runs and evaluation workers."""

import os
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from . import _native, _program, _progress
from ._functions import without_functions
from ._policy import Policy, Weights, of_policies, to_policies
from ._worker import RolloutWorker, settings, within

# Of an iteration, None after the last one: type checkers let it be used without a check.
Metrics = dict[str, Any] | Any


class Algorithm:
    """A training run, iteration by iteration, bit-identical to `rollmesh train`.

    The settings are those of `RunConfig`, as `rollmesh schema` lists them, as keyword arguments or as a mapping. Rows come
    from this process with `num_workers=0`, else from worker processes. With a `run_dir` its files are those of
    `rollmesh train --run-dir`.
    """

    def __init__(
        self,
        env: str | Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        run_dir: str | os.PathLike[str] | None = None,
        **more: Any,
    ) -> None:
        _program.prepare(env)
        all_ = without_functions("Algorithm", settings(env, config, more))
        run_dir = None if run_dir is None else os.fspath(run_dir)
        self._begin(_native.Algorithm(all_, run_dir), run_dir)

    def _begin(self, algorithm: Any, run_dir: str | None) -> None:
        self._algorithm, self._run_dir = algorithm, run_dir
        self._calls: Counter[str] = Counter()
        # The run reported this evaluation before it was saved.
        evaluated = algorithm.evaluated()
        self._last_evaluated: int | None = None if evaluated is None else evaluated["iteration"]

    def __repr__(self) -> str:
        return f"Algorithm(run_dir={self._run_dir!r})"

    @classmethod
    def from_checkpoint(cls, run_dir: str | os.PathLike[str]) -> Self:
        """Resumes the run in a directory bit-identically."""
        _program.prepare()
        made = cls.__new__(cls)
        made._begin(_native.Algorithm.restore(os.fspath(run_dir)), os.fspath(run_dir))
        return made

    def restore(self, run_dir: str | os.PathLike[str]) -> None:
        """Ends this run, and resumes the one in a directory in its place, bit-identically.

        If another directory's run cannot be resumed, this run stays as it is; with its own directory this run has ended by
        then. A run's own directory has the checkpoint from its end.
        """
        run_dir = os.fspath(run_dir)
        if self._run_dir is not None and os.path.realpath(self._run_dir) == os.path.realpath(run_dir):
            # A directory has one run at a time.
            self.stop()
        resumed = _native.Algorithm.restore(run_dir)
        try:
            self.stop()
        finally:
            self._begin(resumed, run_dir)

    def step(self) -> Metrics:
        """Executes one iteration and returns its metrics; None once the run has reached one of its stop conditions.

        With `evaluation.interval`, other episodes are played alongside the iterations; the first step after the end of an
        evaluation has its result as `"evaluation"`, with the iteration whose policy was evaluated.
        """
        metrics = self._algorithm.step()
        evaluated = None if metrics is None else self._algorithm.evaluated()
        if evaluated is not None and evaluated["iteration"] != self._last_evaluated:
            self._last_evaluated = evaluated["iteration"]
            metrics["evaluation"] = evaluated
        return metrics

    train = step

    def run(self, progress: bool | None = None) -> Metrics:
        """Executes iterations until the run reaches a stop condition; returns the last metrics, None if there were none.

        In a terminal and in a notebook a line shows the progress; `progress` turns it on or off anywhere. After
        Ctrl-C the run can be continued.
        """
        is_shown = _progress.is_watched(sys.stderr) if progress is None else progress
        last = None
        with _progress.Progress(sys.stderr if is_shown else None) as line:
            while (metrics := self.step()) is not None:
                line.show(metrics)
                last = metrics
        return last

    def save(self) -> str:
        """Writes a checkpoint into the run's directory and returns the directory."""
        return os.fspath(self._algorithm.save())

    save_checkpoint = save

    def evaluate(self, episodes: int = 10) -> dict[str, Any]:
        """Plays episodes with the most likely actions, in separate environments."""
        return self._algorithm.evaluate(episodes)

    def get_weights(self) -> dict[str, Weights]:
        """Returns the weights by policy, under PyTorch's names."""
        return of_policies(self._algorithm.weights())

    @property
    def weights_hash(self) -> str:
        return self._algorithm.weights_hash()

    def get_policy(self, policy_id: str = "default_policy") -> Policy:
        """Returns a copy of a policy as it is now, to act with."""
        config = {**self._algorithm.rollout_config(), "num_envs": 1, "output": None}
        worker = RolloutWorker(config)
        worker.set_weights(self.get_weights())
        return Policy(worker._worker, policy_id, self._calls)

    def stop(self) -> dict[str, Any] | None:
        """Ends the run and its workers and returns the summary of the run; None the second time."""
        return self._algorithm.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class EvalWorker:
    """Evaluates policies in a separate process, while the caller learns; TorchRL's `RayEvalWorker`."""

    def __init__(
        self,
        env: str | Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        **more: Any,
    ) -> None:
        _program.prepare(env)
        self._worker = _native.Evaluations(without_functions("EvalWorker", settings(env, config, more)), name)

    @classmethod
    def from_name(cls, name: str) -> Self:
        """Finds the evaluation worker that another program of this user has given a name."""
        made = cls.__new__(cls)
        made._worker = _native.Evaluations.from_name(name)
        return made

    def submit(
        self,
        weights: Mapping[str, Any] | None = None,
        max_steps: int = 1_000,
        *,
        deterministic: bool = True,
        break_when_any_done: bool = True,
        render: bool = True,
    ) -> None:
        """Begins an evaluation of these weights, or of the latest ones. Cancels an earlier one that has not ended.

        Each environment takes at most `max_steps` steps. The first one is rendered after each, if `render` and it has pictures.
        """
        named = None if weights is None else to_policies(weights)
        self._worker.submit(named, max_steps, deterministic, break_when_any_done, render)

    def poll(self, timeout: float | None = 0.0) -> dict[str, Any] | None:
        """Returns the evaluation once it has ended; waits this many seconds for it, with None for ever.

        `"reward"` is its mean return, and `"frames"` has its pictures, (T, height, width, 3) of `uint8`, or None. Raises an
        `AlgorithmError` if the evaluation has failed; one whose environment cannot be rendered is submitted with `render=False`.
        """
        if (found := within(timeout, self._worker.poll)) is None:
            return None
        evaluation, reward, frames = found
        if frames is not None:
            frames = np.frombuffer(frames[1], np.uint8).reshape(frames[0])
        return {**evaluation, "reward": reward, "frames": frames}

    def shutdown(self) -> None:
        """Ends the worker and its process."""
        self._worker.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
