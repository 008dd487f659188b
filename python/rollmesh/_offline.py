"""Logged experience: readers and writers of files, and off-policy estimators."""

import os
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, Self

from . import _native
from ._batch import Batch, SampleBatch, Sampled, names_of, of_native, to_column, to_native, view
from ._policy import Policy


class Reader:
    """Reads all batches of files, folders, patterns or data sets, in any format that `rollmesh data` reads, once."""

    def __init__(
        self, inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, buffer_size: int | None = None
    ) -> None:
        names = [inputs] if isinstance(inputs, str | os.PathLike) else inputs
        self._reader = _native.Reader([os.fspath(name) for name in names], buffer_size)

    def __iter__(self) -> Iterator[Sampled]:
        return self

    def __next__(self) -> Sampled:
        batch = self._reader.next()
        if batch is None:
            raise StopIteration
        return of_native(batch)

    @property
    def corrupt_lines(self) -> int:
        """The number of damaged lines that were skipped."""
        return self._reader.corrupt_lines


class DatasetReader:
    """Reads the batches of files, in any format, without end: after the last one comes the first one again."""

    def __init__(
        self, inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, buffer_size: int | None = None
    ) -> None:
        self._open = lambda: Reader(inputs, buffer_size=buffer_size)
        self._reader = self._open()

    def next(self) -> Sampled:
        """Returns the next batch."""
        batch = next(self._reader, None)
        if batch is None:
            self._reader = self._open()
            batch = next(self._reader, None)
        if batch is None:
            raise _native.OfflineError("the files have no batches: name others")
        return batch


class JsonReader(DatasetReader):
    """Does the same as `DatasetReader`, and reads all files once, too."""

    def read_all_files(self) -> Iterator[Sampled]:
        """Returns all batches, once, from the first one on; the next batch of `next` stays the same."""
        return self._open()


class JsonWriter:
    """Writes batches as RLlib's JSON to files of a directory.

    `max_file_size` is in bytes, 64 MiB if it is omitted; `compress_columns` are the columns to compress, `obs` and
    `new_obs` if they are omitted.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_file_size: int | None = None,
        compress_columns: Sequence[str] | None = None,
    ) -> None:
        columns = None if compress_columns is None else names_of("compress_columns", compress_columns)
        self._open(path, format="json", max_file_size=max_file_size, compress_columns=columns)

    def _open(self, path: str | os.PathLike[str], **settings: Any) -> None:
        given = {name: value for name, value in settings.items() if value is not None}
        self._writer = _native.Writer(os.fspath(path), given)

    def write(self, sample_batch: Batch) -> None:
        """Appends a batch."""
        self._writer.write(to_native(sample_batch))

    def close(self) -> None:
        """Flushes buffered batches and closes the file."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ParquetWriter(JsonWriter):
    """Writes batches as Parquet to files of a directory; `max_file_size` is in bytes, 64 MiB if it is omitted."""

    def __init__(self, path: str | os.PathLike[str], *, max_file_size: int | None = None) -> None:
        self._open(path, format="parquet", max_file_size=max_file_size)


def estimate(
    batch: SampleBatch,
    estimator: Literal["is", "trajectory_is", "wis", "cwpdis", "dm", "dr"] = "wis",
    *,
    gamma: float = 1.0,
    split_batch_by_episode: bool = True,
    policy: Policy | None = None,
    epsilon: float = 0.0,
) -> dict[str, float]:
    """Estimates a policy's value from logged episodes.

    With a `policy`, which acts at random with the probability `epsilon`, the batch has `rewards`, `eps_id`, `obs`, `actions`, and
    `action_prob` or `action_logp`, in samples one after the other: an episode may continue in the next one. For "dm" and "dr" a
    model of values is fitted to the batch, which has `terminateds`, too. Without a policy the batch has `rewards`, `eps_id`,
    `action_prob` and `new_action_prob`, for "dm" and "dr" also `v_values`, for "dr" also `q_values`, and each episode's rows are
    together. Returns `v_behavior`, `v_target`, their standard deviations, `v_gain` and `v_delta`.
    """
    if policy is None and epsilon != 0.0:
        raise _native.OfflineError(f"epsilon is {epsilon}, but there is no policy that could act at random: give a policy")
    handle = to_native(batch)
    for name in ("rewards", "action_prob", "new_action_prob", "v_values", "q_values"):
        if name in handle.names and (column := view(handle.column(name))).dtype.kind in "iu":
            handle = handle.with_column(name, to_column(name, column.astype(float)))
    if policy is not None:
        for name in ("new_action_prob", "v_values", "q_values"):
            handle = handle.without_column(name)
        handle = policy._owner.judged(policy.id, handle, epsilon, gamma if estimator in ("dm", "dr") else None)
    return _native.estimate(estimator, handle, gamma, split_batch_by_episode)


class OffPolicyEstimator:
    """Estimates the value of a policy from logged episodes, see `estimate`; its classes are RLlib's."""

    _estimator: ClassVar[Literal["is", "wis", "dm", "dr"]]

    def __init__(self, policy: Policy, gamma: float = 0.0, epsilon_greedy: float = 0.0) -> None:
        self.policy, self.gamma, self.epsilon_greedy = policy, gamma, epsilon_greedy

    def estimate(self, batch: SampleBatch, split_batch_by_episode: bool = True) -> dict[str, float]:
        """Estimates the value, with a model of values that is fitted to this batch if the estimator has one."""
        return estimate(
            batch,
            self._estimator,
            gamma=self.gamma,
            split_batch_by_episode=split_batch_by_episode,
            policy=self.policy,
            epsilon=self.epsilon_greedy,
        )

    def train(self, batch: SampleBatch) -> dict[str, Any]:
        """Returns no metrics: `estimate` fits the model to its own batch."""
        return {}


class ImportanceSampling(OffPolicyEstimator):
    """Weighs rewards by the ratios of the probabilities of actions."""

    _estimator = "is"


class WeightedImportanceSampling(OffPolicyEstimator):
    """Weighs rewards by ratios that are divided by their means over the episodes."""

    _estimator = "wis"


class DirectMethod(OffPolicyEstimator):
    """Asks a model of values."""

    _estimator = "dm"


class DoublyRobust(OffPolicyEstimator):
    """Corrects a model of values by importance sampling."""

    _estimator = "dr"
