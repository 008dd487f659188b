"""The settings of a run as an object."""

import copy
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self

from . import _native, _program
from ._functions import without_functions
from ._worker import settings

if TYPE_CHECKING:
    from ._algorithm import Algorithm


class RunConfig(Mapping[str, Any]):
    """All settings of a run, checked, with defaults for omitted ones; RLlib's `AlgorithmConfig`.

    A read-only mapping, also by attributes. `Algorithm`, `EvalWorker` and keyword arguments take it. `rollmesh schema` lists the
    settings.
    """

    def __init__(
        self, env: str | Mapping[str, Any] | None = None, config: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        _program.prepare(env)
        given = without_functions("RunConfig", settings(env, config, more))
        self.__dict__["_settings"] = _native.run_config(given)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Reads settings in TOML, such as the `config.toml` of a run's directory."""
        import tomllib

        return cls(tomllib.loads(pathlib.Path(path).read_text()))

    def updated(self, **changes: Any) -> Self:
        """Returns these settings with others; those of a nested mapping replace it as a whole."""
        return type(self)(self, **changes)

    def build_algo(self, run_dir: str | os.PathLike[str] | None = None) -> "Algorithm":
        """Starts the run."""
        from ._algorithm import Algorithm

        return Algorithm(self, run_dir=run_dir)

    build = build_algo

    def to_dict(self) -> dict[str, Any]:
        return copy.deepcopy(self.__dict__["_settings"])

    def __getitem__(self, name: str) -> Any:
        return copy.deepcopy(self.__dict__["_settings"][name])

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no setting '{name}': rollmesh schema lists them") from None

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"a RunConfig cannot be changed: use updated({name}={value!r}), which returns another one")

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__["_settings"])

    def __len__(self) -> int:
        return len(self.__dict__["_settings"])

    def __repr__(self) -> str:
        return f"RunConfig({self.to_dict()!r})"
