"""Settings and rows as JSON."""

import json
import math
import os
from collections.abc import Mapping
from typing import Any


def dumps(value: Any, name: str = "", allow_nan: bool = False) -> str:
    """Returns a value as JSON: arrays and numbers of NumPy as Python's, paths as text.

    Errors contain `name` as the place of the value.
    """
    try:
        return json.dumps(value, allow_nan=allow_nan)
    except (TypeError, ValueError):
        return json.dumps(_plain(value, name, allow_nan))


def _key(key: Any) -> str:
    """Returns a key as the text that `json` writes."""
    return json.dumps(key) if key is None or isinstance(key, bool) else str(key)


def _plain(value: Any, name: str, allow_nan: bool) -> Any:
    if isinstance(value, Mapping):
        named = ((_key(key), inner) for key, inner in value.items())
        return {key: _plain(inner, f"{name}.{key}".lstrip("."), allow_nan) for key, inner in named}
    if isinstance(value, set | frozenset):
        # The order of a set depends on the hashes of its values, which differ between processes.
        value = sorted(value, key=repr)
    if isinstance(value, list | tuple):
        return [_plain(inner, f"{name}[{at}]", allow_nan) for at, inner in enumerate(value)]
    if hasattr(value, "tolist"):
        return _plain(value.tolist(), name, allow_nan)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, float) and not allow_nan and not math.isfinite(value):
        raise ValueError(f"{name} is {value}, which JSON has no number for")
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"{name} is of {type(value).__name__}: give text, numbers, lists or mappings of them")
