"""Reinforcement-learning rollouts: workers, batches, training and evaluation in Rust, controlled from Python.

Names follow RLlib and Gymnasium. Batches are mappings of read-only NumPy arrays that share the memory of the
columns; weights are NumPy arrays under PyTorch's names.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ._native import (
    AlgorithmError,
    BatchError,
    ClosedError,
    ConfigError,
    EnvError,
    Error,
    GroupError,
    LostWorkerError,
    OfflineError,
    PolicyError,
    WorkerError,
    __version__,
)

if TYPE_CHECKING:
    from ._algorithm import Algorithm, EvalWorker
    from ._batch import MultiAgentBatch, SampleBatch, batch_hash, concat_samples
    from ._config import RunConfig
    from ._functions import Callbacks
    from ._offline import (
        DatasetReader,
        DirectMethod,
        DoublyRobust,
        ImportanceSampling,
        JsonReader,
        JsonWriter,
        ParquetWriter,
        Reader,
        WeightedImportanceSampling,
        estimate,
    )
    from ._policy import Policy, PolicyMap
    from ._program import allow_python
    from ._vector import VectorEnv as VectorEnv
    from ._vector import make_vec as make_vec
    from ._worker import RolloutWorker, WorkerGroup

# Loaded when they are first used: the command line and worker processes need neither NumPy nor Gymnasium.
_MODULES = {
    "Algorithm": "_algorithm",
    "EvalWorker": "_algorithm",
    "MultiAgentBatch": "_batch",
    "SampleBatch": "_batch",
    "batch_hash": "_batch",
    "concat_samples": "_batch",
    "RunConfig": "_config",
    "Callbacks": "_functions",
    "DatasetReader": "_offline",
    "DirectMethod": "_offline",
    "DoublyRobust": "_offline",
    "ImportanceSampling": "_offline",
    "JsonReader": "_offline",
    "JsonWriter": "_offline",
    "ParquetWriter": "_offline",
    "Reader": "_offline",
    "WeightedImportanceSampling": "_offline",
    "estimate": "_offline",
    "Policy": "_policy",
    "PolicyMap": "_policy",
    "allow_python": "_program",
    "RolloutWorker": "_worker",
    "WorkerGroup": "_worker",
}
# These need Gymnasium, so `from rollmesh import *` does not load them.
_GYMNASIUM_MODULES = {"VectorEnv": "_vector", "make_vec": "_vector"}

__all__ = [
    "Algorithm",
    "AlgorithmError",
    "BatchError",
    "Callbacks",
    "ClosedError",
    "ConfigError",
    "DatasetReader",
    "DirectMethod",
    "DoublyRobust",
    "EnvError",
    "Error",
    "EvalWorker",
    "GroupError",
    "ImportanceSampling",
    "JsonReader",
    "JsonWriter",
    "LostWorkerError",
    "MultiAgentBatch",
    "OfflineError",
    "ParquetWriter",
    "Policy",
    "PolicyError",
    "PolicyMap",
    "Reader",
    "RolloutWorker",
    "RunConfig",
    "SampleBatch",
    "WeightedImportanceSampling",
    "WorkerError",
    "WorkerGroup",
    "__version__",
    "allow_python",
    "batch_hash",
    "concat_samples",
    "estimate",
]


# Type checkers know the names from the imports above, and refuse others.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        module = {**_MODULES, **_GYMNASIUM_MODULES}.get(name)
        if module is None:
            raise AttributeError(f"module 'rollmesh' has no attribute '{name}'")
        try:
            return getattr(importlib.import_module(f".{module}", __name__), name)
        except ModuleNotFoundError as error:
            if error.name != "gymnasium":
                raise
            raise ImportError(f"rollmesh.{name} needs Gymnasium: pip install gymnasium") from error


def __dir__() -> list[str]:
    return sorted([*__all__, *_GYMNASIUM_MODULES])
