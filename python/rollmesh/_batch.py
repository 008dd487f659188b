"""Batches of experience as mappings of NumPy arrays."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, overload

import numpy as np

from . import _json, _native

Array = np.ndarray
# Columns of booleans, which are numbers in other libraries.
_FLAGS = ("terminateds", "truncateds")
_DTYPES = ("float32", "float64", "int32", "int64", "uint8", "bool")


def view(buffer: Any) -> Array:
    """Returns the elements of a column without copying them, read-only; rows of bytes and JSON as objects."""
    if isinstance(buffer, tuple):
        kind, rows = buffer
        array = np.empty(len(rows), dtype=object)
        array[:] = [json.loads(row) for row in rows] if kind == "json" else rows
        array.flags.writeable = False
        return array
    if 0 in buffer.shape:
        array = np.empty(buffer.shape, dtype=buffer.dtype)
        array.flags.writeable = False
        return array
    return np.frombuffer(buffer, dtype=buffer.dtype).reshape(buffer.shape)


def to_column(name: str, values: Any) -> tuple:
    """Returns a column's parts for the extension module."""
    array = np.asarray(values)
    if array.ndim == 0:
        raise TypeError(f"column '{name}' is a single value: give one row per step")
    if array.dtype.kind in "OSU":
        # The rows of the values: an array of bytes loses their trailing zeros.
        rows = list(values)
        if all(isinstance(row, bytes) for row in rows):
            return "bytes", rows
        return "json", [_json.dumps(row, f"{name}[{at}]", allow_nan=True).encode() for at, row in enumerate(rows)]
    if name in _FLAGS and array.dtype != bool and np.isin(array, (0, 1)).all():
        array = array.astype(bool)
    if array.dtype.name not in _DTYPES:
        raise TypeError(f"column '{name}' is of {array.dtype}: convert it to one of {', '.join(_DTYPES)}")
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return array.dtype.name, array.shape[1:], array.tobytes()


class SampleBatch(Mapping[str, Array]):
    """The experience of one policy: columns of equally many rows by name, as RLlib's class of this name.

    `len` is the number of rows. Arrays are read-only and share the memory of the columns; slices share it, too. Those
    of a `copy` can be written, and writes into its slices and episodes reach the copy; with sequences these have
    separate memory.
    """

    OBS = "obs"
    NEXT_OBS = "new_obs"
    ACTIONS = "actions"
    REWARDS = "rewards"
    TERMINATEDS = "terminateds"
    TRUNCATEDS = "truncateds"
    DONES = "dones"
    INFOS = "infos"
    EPS_ID = "eps_id"
    ENV_ID = "env_id"
    AGENT_INDEX = "agent_index"
    UNROLL_ID = "unroll_id"
    T = "t"
    VF_PREDS = "vf_preds"
    ACTION_LOGP = "action_logp"
    ACTION_PROB = "action_prob"
    ACTION_DIST_INPUTS = "action_dist_inputs"
    ADVANTAGES = "advantages"
    VALUE_TARGETS = "value_targets"
    SEQ_LENS = "seq_lens"

    _batch: _native.Batch
    # The interceptor of columns, and the converted columns.
    _interceptor: Callable[[Array], Any] | None = None
    _intercepted: Mapping[str, Any] = {}
    # The columns of a copy that can be written: all but the compressed ones. The batch has their original content.
    _written: dict[str, Array] | None

    def __init__(
        self,
        columns: Mapping[str, Any] | None = None,
        *,
        seq_lens: Sequence[int] | None = None,
        max_seq_len: int | None = None,
        zero_padded: bool = False,
        time_major: bool = False,
        is_training: bool = False,
        num_grad_updates: float | None = None,
        **more: Any,
    ) -> None:
        named = {**(columns or {}), **more}
        seq_lens = named.pop(self.SEQ_LENS, seq_lens)
        flags = (max_seq_len, zero_padded, time_major, is_training, num_grad_updates)
        self._batch, self._written = _of_columns(named, seq_lens, flags), None

    @classmethod
    def _of(cls, batch: _native.Batch) -> Self:
        made = cls.__new__(cls)
        made._batch, made._written = batch, None
        return made

    @property
    def _handle(self) -> _native.Batch:
        """The batch with the writes to a copy's arrays."""
        return self._with_writes(self._written or ())

    def _with_writes(self, names: Iterable[str]) -> _native.Batch:
        for name in names:
            if self._written is not None and name in self._written:
                self._batch = self._batch.with_column(name, to_column(name, self._written[name]))
        return self._batch

    def _like(self, batch: _native.Batch) -> Self:
        """Returns a batch of other rows, whose arrays can be written if those of this one can."""
        made = self._of(batch)
        return made if self._written is None else made.copy()

    def _part(self, batch: _native.Batch, start: int) -> Self:
        """Returns a part of this batch from row `start` on, whose columns are views."""
        if self._written is None or batch.seq_lens is not None:
            return self._like(batch)
        made = self._of(batch)
        made._written = {name: array[start : start + len(made)] for name, array in self._written.items()}
        return made

    def _parts(self, batches: Iterable[_native.Batch]) -> list[Self]:
        """Returns consecutive parts."""
        parts, start = [], 0
        for batch in batches:
            parts.append(self._part(batch, start))
            start += len(parts[-1])
        return parts

    @overload
    def __getitem__(self, key: str) -> Array: ...

    @overload
    def __getitem__(self, key: slice) -> Self: ...

    def __getitem__(self, key: str | slice) -> Array | Self:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step != 1:
                raise _native.BatchError(f"slices of batches have step 1, not {step}")
            source = self._batch if self._batch.seq_lens is None else self._handle
            return self._part(source.index_slice(start, max(start, stop)), start)
        if self._interceptor is None:
            return self._column(key)
        if key not in self._intercepted:
            self._intercepted = {**self._intercepted, key: self._interceptor(self._column(key))}
        return self._intercepted[key]

    def _column(self, key: str) -> Array:
        if self._written is not None and key in self._written:
            return self._written[key]
        if key == self.DONES and key in self:
            return np.asarray(self._with_writes(_FLAGS).dones(), dtype=bool)
        if key == self.SEQ_LENS and (lengths := self._batch.seq_lens) is not None:
            lengths = np.asarray(lengths, dtype=np.int32)
            lengths.flags.writeable = False
            return lengths
        found = self._batch.column(key)
        if found is None:
            raise KeyError(key)
        return view(found)

    def set_get_interceptor(self, fn: Callable[[Array], Any] | None = None) -> None:
        """Lets `batch[column]` return `fn(array)`, such as a tensor on a device; None ends it.

        `fn` is called once per column, and again after the batch has changed, but not after a write into a copy's array. It
        belongs to this batch alone: `copy` and slices have no `fn`, and `rows` has the arrays' rows.
        """
        self._interceptor, self._intercepted = fn, {}

    def __setitem__(self, key: str, values: Any) -> None:
        self._intercepted = {}
        if key == self.SEQ_LENS:
            self._set_lengths(values)
            return
        self._batch = self._batch.with_column(key, to_column(key, values))
        if self._written is not None:
            self._written[key] = np.array(view(self._batch.column(key)))

    def __delitem__(self, key: str) -> None:
        self._intercepted = {}
        if key == self.SEQ_LENS and key in self:
            self._set_lengths(None)
            return
        if key not in self._batch.names:
            raise KeyError(key)
        self._batch = self._batch.without_column(key)
        (self._written or {}).pop(key, None)

    def _set_lengths(self, lengths: Sequence[int] | None) -> None:
        # Without padding the longest sequence has any length.
        is_padded = lengths is not None and (self.zero_padded or self.time_major)
        layout = (self.max_seq_len, self.zero_padded, self.time_major) if is_padded else (None, False, False)
        columns = {name: self._column(name) for name in self._batch.names}
        self._batch = _of_columns(columns, lengths, (*layout, self.is_training, self.num_grad_updates))

    def __contains__(self, key: object) -> bool:
        names = self._batch.names
        return (
            key in names
            or (key == self.SEQ_LENS and self._batch.seq_lens is not None)
            or (key == self.DONES and self.TERMINATEDS in names)
        )

    def __iter__(self) -> Iterator[str]:
        """Iterates over the columns, including `seq_lens` of sequences; `dones` follow from other columns."""
        yield from self._batch.names
        if self._batch.seq_lens is not None:
            yield self.SEQ_LENS

    def __len__(self) -> int:
        return self._batch.agent_steps

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SampleBatch) and self._handle == other._handle

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._batch)

    def __reduce__(self) -> tuple:
        return _decode, (self._handle.encode(), self._written is not None)

    @property
    def count(self) -> int:
        return len(self)

    def env_steps(self) -> int:
        return len(self)

    def agent_steps(self) -> int:
        return len(self)

    def size_bytes(self) -> int:
        return self._batch.size_bytes

    @property
    def max_seq_len(self) -> int | None:
        return self._batch.flags["max_seq_len"]

    @property
    def zero_padded(self) -> bool:
        return self._batch.flags["zero_padded"]

    @property
    def time_major(self) -> bool:
        return self._batch.flags["time_major"]

    @property
    def is_training(self) -> bool:
        return self._batch.flags["is_training"]

    @property
    def num_grad_updates(self) -> float | None:
        """The number of gradient updates behind the weights that acted."""
        return self._batch.flags["num_grad_updates"]

    def set_training(self, training: bool = True) -> None:
        self._batch = self._batch.set_training(training)

    def is_terminated_or_truncated(self) -> bool:
        return self._with_writes(_FLAGS).is_terminated_or_truncated()

    def is_single_trajectory(self) -> bool:
        return self._handle.is_single_trajectory()

    def columns(self, keys: Sequence[str]) -> list[Array]:
        """Returns these columns in this order."""
        return [self[key] for key in keys]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Returns the rows, each as a dictionary; those of sequences are sequences of one step."""
        columns, lengths = {name: self._column(name) for name in self._batch.names}, self._batch.seq_lens
        if lengths is None:
            return ({name: column[row] for name, column in columns.items()} for row in range(len(self)))
        if self.time_major:
            raise _native.BatchError("a time-major batch of sequences has no rows: transpose its columns first")
        starts = np.arange(len(lengths)) * self.max_seq_len if self.zero_padded else np.cumsum([0, *lengths[:-1]])
        places = ((at, start + step) for at, start in enumerate(starts) for step in range(lengths[at]))
        return (
            {name: column[at if name.startswith("state_in_") else row] for name, column in columns.items()}
            | {self.SEQ_LENS: 1}
            for at, row in places
        )

    def copy(self) -> Self:
        """Returns a deep copy, whose arrays can be written."""
        made = self._of(self._handle)
        made._written = {name: np.array(self._column(name)) for name in self._batch.names}
        return made

    def slice(self, start: int, end: int, state_start: int | None = None, state_end: int | None = None) -> Self:
        """Returns exactly the rows from `start` to `end`; with a negative start, zeros before the first row.

        Slices in brackets have whole sequences only.
        """
        states = None if state_start is None or state_end is None else (state_start, state_end)
        if start >= 0 and self._batch.seq_lens is None:
            return self._part(self._batch.slice(start, end, states), start)
        return self._like(self._handle.slice(start, end, states))

    def split_by_episode(self, key: str | None = None) -> list[Self]:
        """Splits the batch where an episode ends: by `eps_id`, `dones` or the flags, whichever it has, or by `key`."""
        return self._parts(self._handle.split_by_episode(key))

    def timeslices(self, size: int | None = None, num_slices: int | None = None) -> list[Self]:
        """Returns slices of `size` rows, or that many slices."""
        return self._parts(self._handle.timeslices(size, num_slices))

    def shuffle(self, seed: int | None = None) -> Self:
        """Shuffles the rows, or sequences, in place: by the seed, or at random."""
        self._batch, self._intercepted = self._handle.shuffled(_random_seed() if seed is None else seed), {}
        if self._written is not None:
            self._written = {name: np.array(view(self._batch.column(name))) for name in self._batch.names}
        return self

    def right_zero_pad(self, max_seq_len: int) -> Self:
        """Returns the batch with all sequences padded to this length."""
        return self._like(self._handle.right_zero_pad(max_seq_len))

    def compress(self, bulk: bool = False, columns: Sequence[str] | None = None) -> Self:
        """Compresses observations, or these columns, in place; they are read-only until they are decompressed."""
        self._batch = self._handle.compress(None if columns is None else names_of("columns", columns), bulk)
        for name in self._batch.compressed:
            (self._written or {}).pop(name, None)
        return self

    def decompress_if_needed(self) -> Self:
        self._batch = self._handle.decompress_if_needed()
        if self._written is not None:
            self._written |= {name: np.array(self._column(name)) for name in self._batch.names if name not in self._written}
        return self

    def as_multi_agent(self) -> "MultiAgentBatch":
        """Returns the batch as that of the default policy."""
        return MultiAgentBatch({"default_policy": self}, len(self))

    @staticmethod
    def concat_samples(samples: "Iterable[Batch]") -> "Sampled":
        return concat_samples(samples)


class MultiAgentBatch(Mapping[str, SampleBatch]):
    """The experience of several policies: a `SampleBatch` of each, and the number of env steps behind them."""

    policy_batches: dict[str, SampleBatch]

    def __init__(self, policy_batches: Mapping[str, SampleBatch], env_steps: int) -> None:
        self.policy_batches, self._env_steps = dict(policy_batches), env_steps

    @classmethod
    def _of(cls, batch: _native.Batch) -> Self:
        return cls({id: SampleBatch._of(part) for id, part in batch.policies}, batch.env_steps)

    @property
    def _is_copy(self) -> bool:
        return any(batch._written is not None for batch in self.values())

    @property
    def _handle(self) -> _native.Batch:
        """The batch with the writes to the policies' batches."""
        return _native.Batch.of_policies([(id, batch._handle) for id, batch in self.items()], self._env_steps)

    def __getitem__(self, policy: str) -> SampleBatch:
        return self.policy_batches[policy]

    def __iter__(self) -> Iterator[str]:
        return iter(self.policy_batches)

    def __len__(self) -> int:
        return self._env_steps

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MultiAgentBatch) and self._handle == other._handle

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._handle)

    def __reduce__(self) -> tuple:
        return type(self), (self.policy_batches, self._env_steps)

    @property
    def count(self) -> int:
        return len(self)

    def env_steps(self) -> int:
        return self._env_steps

    def agent_steps(self) -> int:
        return sum(map(len, self.values()))

    def size_bytes(self) -> int:
        return sum(batch.size_bytes() for batch in self.values())

    def timeslices(self, k: int) -> list[Self]:
        """Returns slices of `k` env steps; those of a copy have separate memory."""
        parts = map(self._of, self._handle.timeslices(k, None))
        return [part.copy() if self._is_copy else part for part in parts]

    def copy(self) -> Self:
        """Returns a deep copy, whose arrays can be written."""
        return type(self)({id: batch.copy() for id, batch in self.items()}, self._env_steps)

    def compress(self, bulk: bool = False, columns: Sequence[str] | None = None) -> Self:
        """Compresses the observations of all policies, or these columns, in place."""
        for batch in self.values():
            batch.compress(bulk, None if columns is None else [name for name in columns if name in batch])
        return self

    def decompress_if_needed(self) -> Self:
        for batch in self.values():
            batch.decompress_if_needed()
        return self

    def as_multi_agent(self) -> Self:
        return self

    @staticmethod
    def wrap_as_needed(policy_batches: Mapping[str, SampleBatch], env_steps: int) -> "Sampled":
        """Returns the batch of the default policy if it is the only one."""
        if list(policy_batches) == ["default_policy"]:
            return policy_batches["default_policy"]
        return MultiAgentBatch(policy_batches, env_steps)

    @staticmethod
    def concat_samples(samples: "Iterable[Batch]") -> "Sampled":
        return concat_samples(samples)


Batch = SampleBatch | MultiAgentBatch
# The type of samples: a `SampleBatch`, or a `MultiAgentBatch` of an environment with several policies. For type
# checkers it is the first, and after `isinstance` the second.
Sampled = SampleBatch | Any


def of_native(batch: _native.Batch) -> Sampled:
    return MultiAgentBatch._of(batch) if batch.is_multi else SampleBatch._of(batch)


def to_native(batch: Any) -> _native.Batch:
    """Returns the extension module's handle of a batch."""
    if not isinstance(batch, SampleBatch | MultiAgentBatch):
        raise TypeError(f"a batch is a SampleBatch or a MultiAgentBatch, not {type(batch).__name__}")
    return batch._handle


def names_of(argument: str, names: Iterable[str]) -> list[str]:
    """Returns names as a list; a text is one name."""
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{argument} has {name!r}, which is no name")
    return names


def _of_columns(columns: Mapping[str, Any], seq_lens: Iterable[int] | None, flags: tuple) -> _native.Batch:
    return _native.Batch.of_columns(
        [(name, to_column(name, values)) for name, values in columns.items()],
        None if seq_lens is None else [int(length) for length in seq_lens],
        *flags,
    )


def _decode(encoded: bytes, is_copy: bool) -> SampleBatch:
    batch = SampleBatch._of(_native.Batch.decode(encoded))
    return batch.copy() if is_copy else batch


def _random_seed() -> int:
    return int(np.random.randint(0, 2**63 - 1))


def concat_samples(samples: Iterable[Batch]) -> Sampled:
    """Joins batches, by policy if one of them has several."""
    return of_native(_native.concat([to_native(batch) for batch in samples]))


def batch_hash(samples: Iterable[Batch]) -> str:
    """Returns the hash of batches, one after the other: the `batch_hash` of `rollmesh sample` for its samples."""
    return _native.batch_hash([to_native(batch) for batch in samples])
