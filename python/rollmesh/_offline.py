"""Logged experience: readers and writers of files, and off-policy estimators."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Self

from . import _native
from ._batch import MultiAgentBatch, SampleBatch, of_native

Batch = SampleBatch | MultiAgentBatch


class Reader:
    """Reads all batches of files, folders, patterns or data sets, in any format that `rollmesh data` reads, once."""

    def __init__(self, inputs: str | Sequence[str], *, buffer_size: int | None = None) -> None:
        names = [inputs] if isinstance(inputs, str) else list(inputs)
        self._reader = _native.Reader(names, buffer_size)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = self._reader.next()
        if batch is None:
            raise StopIteration
        return of_native(batch)

    @property
    def corrupt_lines(self) -> int:
        """Number of damaged lines that were skipped."""
        return self._reader.corrupt_lines


class JsonWriter:
    """Writes batches as RLlib's JSON to files of a directory."""

    _format = "json"

    def __init__(self, path: str, **settings: Any) -> None:
        self._writer = _native.Writer(str(path), {"format": self._format, **settings})

    def write(self, sample_batch: Batch) -> None:
        self._writer.write(sample_batch._native)

    def close(self) -> None:
        """Flushes buffered batches and closes the file."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ParquetWriter(JsonWriter):
    """Writes batches as Parquet to files of a directory."""

    _format = "parquet"


def estimate(
    batch: SampleBatch,
    estimator: Literal["is", "trajectory_is", "wis", "cwpdis", "dm", "dr"] = "wis",
    *,
    gamma: float = 1.0,
    split_batch_by_episode: bool = True,
) -> dict[str, float]:
    """Estimates a policy's value from logged episodes.

    The batch has `rewards`, `action_prob`, `new_action_prob` and `eps_id`; for "dm" and "dr" also `v_values`, for "dr" also
    `q_values`. Returns `v_behavior`, `v_target`, their standard deviations, `v_gain` and `v_delta`.
    """
    return _native.estimate(estimator, batch._native, gamma, split_batch_by_episode)
