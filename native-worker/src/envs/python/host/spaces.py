"""The host of Python environments: makes and steps them for the rollmesh program that started it.

Messages are those of rollmesh's environment processes: number (8 bytes), length of the body (4), kind (1), three zeros, body.
MAKE makes a group of lanes, environments of one kind, or a game of PettingZoo. RESET and STEP name a group and lanes; rows
are little-endian. Actions and turns of a game are in the form that rollmesh's core gives rows and turns of several agents.
The output of environments goes to standard error.
"""

import contextlib
import faulthandler
import fcntl
import hashlib
import importlib
import importlib.metadata
import inspect
import json
import mmap
import os
import re
import secrets
import select
import signal
import struct
import sys
import traceback

HEAD = struct.Struct("<QIB3x")
MAKE, RESET, STEP, RENDER, STOP, CLOSE, SAVE, RESTORE, FINGERPRINT = range(1, 10)
MADE, TURN, PICTURE, FAILED = range(1, 5)
# Element types that rows do not support, with wider ones that hold all their values, of uint64 those below 2**63.
WIDER = {"float16": "float32", "int8": "int32", "int16": "int32", "uint16": "int32", "uint32": "int64", "uint64": "int64"}
SAME = {"float32", "float64", "int32", "int64", "uint8", "bool"}
# Their numbers in rows of several agents.
NUMBERS = {"float32": 1, "float64": 2, "int32": 3, "int64": 4, "uint8": 5, "bool": 6}
TERMINATED, TRUNCATED = 1, 2
# Settings of the host among those of an environment.
VECTOR_SETTINGS = {"vectorize", "observation_dtype"}
HOST_SETTINGS = {"host_fingerprint", "host_pictures"} | VECTOR_SETTINGS
# Steps of the random episodes in a fingerprint.
GOLDEN_STEPS = 64
# True by name and settings of environments that continue bit-identically from their saved states.
PROVEN = {}
# Fingerprints by name and settings of an environment.
FINGERPRINTS = {}


class Refused(Exception):
    """A space of an unsupported kind."""


class Unavailable(Exception):
    """This machine lacks the environment, or one of its dependencies."""


def box_dtype(dtype):
    name = dtype.name
    if name in SAME:
        return np.dtype(name)
    if name in WIDER:
        return np.dtype(WIDER[name])
    raise Refused(f"its elements are {name}, which rows cannot hold")


def check_unchanged(value, row):
    """Refuses integers that are other numbers in a row: beyond its integers, or beyond those that its floats hold exactly."""
    own, kind = value.dtype, row.dtype
    if own == kind or own.kind not in "iu" or (own.itemsize < 8 and np.can_cast(own, kind)):
        return
    limit = 2 ** (np.finfo(kind).nmant + 1) if kind.kind == "f" else None
    low, high = (np.iinfo(kind).min, np.iinfo(kind).max) if limit is None else (-limit, limit)
    if ((value < low) | (value > high)).any():
        raise ValueError(f"the observation has integers that rows of {kind} cannot hold: they are from {low} to {high}")


class Box:
    def __init__(self, space):
        self.own, self.dtype, self.shape = space.dtype, box_dtype(space.dtype), space.shape

    @staticmethod
    def form(space):
        if 0 in space.shape:
            raise Refused("it has no elements")

        def bounds(values):
            exact = 2**53 if space.dtype.kind in "iu" else float("inf")
            values = np.ravel(values)
            if values.size and (values == values[0]).all():
                values = values[:1]
            # None means no bound. A float cannot distinguish larger integers, so they count as no bound.
            numbers = (value.item() for value in values)
            return [float(number) if abs(number) < exact or number in (0, 1) else None for number in numbers]

        return {
            "type": "box",
            "dtype": box_dtype(space.dtype).name,
            "shape": list(space.shape),
            "low": bounds(space.low),
            "high": bounds(space.high),
        }

    def put(self, rows, lane, value):
        value = np.asarray(value)
        if value.shape != self.shape:
            raise ValueError(f"the observation has the shape {value.shape}, its space {self.shape}")
        if value.dtype != self.own and not np.can_cast(value.dtype, self.own, "same_kind"):
            raise TypeError(f"the observation is an array of {value.dtype}, its space one of {self.own}")
        check_unchanged(value, rows)
        rows[lane] = value

    def take(self, rows, lane):
        return rows[lane].astype(self.own)


class Discrete:
    dtype, shape = "<i8", ()

    def __init__(self, space):
        self.start, self.n = int(space.start), int(space.n)

    @staticmethod
    def form(space):
        return {"type": "discrete", "n": int(space.n)}

    def put(self, rows, lane, value):
        value = int(value) - self.start
        if not 0 <= value < self.n:
            raise ValueError(f"the observation {value + self.start} is not in Discrete({self.n}, start={self.start})")
        rows[lane] = value

    def take(self, rows, lane):
        return rows[lane] + self.start


class MultiDiscrete:
    dtype = "<i8"

    def __init__(self, space):
        self.own, self.full, self.shape = space.dtype, space.shape, (int(np.prod(space.shape)),)
        self.start, self.nvec = np.ravel(space.start).astype("<i8"), np.ravel(space.nvec).astype("<i8")

    @staticmethod
    def form(space):
        return {"type": "multi_discrete", "nvec": [int(n) for n in np.ravel(space.nvec)]}

    def put(self, rows, lane, value):
        value = np.asarray(value)
        if value.shape != self.full:
            raise ValueError(f"the observation has the shape {value.shape}, its space {self.full}")
        value = np.ravel(value).astype("<i8", casting="same_kind") - self.start
        if (value < 0).any() or (value >= self.nvec).any():
            raise ValueError(f"the observation {value + self.start} is not in MultiDiscrete({self.nvec})")
        rows[lane] = value

    def take(self, rows, lane):
        return (rows[lane] + self.start).reshape(self.full).astype(self.own)


class MultiBinary(MultiDiscrete):
    dtype = "u1"

    def __init__(self, space):
        self.own, self.full, self.shape = space.dtype, space.shape, (int(np.prod(space.shape)),)
        self.start, self.nvec = 0, 2

    @staticmethod
    def form(space):
        return {"type": "multi_binary", "n": int(np.prod(space.shape))}

    def take(self, rows, lane):
        return rows[lane].reshape(self.full).astype(self.own)


def parts_of(space):
    """Returns the parts of a Dict or Tuple, including nested ones, in order."""
    if isinstance(space, spaces.Dict):
        return [part for inner in space.spaces.values() for part in parts_of(inner)]
    if isinstance(space, spaces.Tuple):
        return [part for inner in space.spaces for part in parts_of(inner)]
    return [space]


def has_mask(space):
    """Returns whether observations are a Dict of an action mask and the rest, as rollmesh's MaskedObs has them."""
    names = set(space.spaces) if isinstance(space, spaces.Dict) else set()
    return len(names) == 2 and "action_mask" in names and bool(names & {"observations", "obs", "observation"})


def points_of(space, value):
    """Returns the points of the parts of a Dict or Tuple, in the order of `parts_of`."""
    if isinstance(space, spaces.Dict):
        return [point for name, inner in space.spaces.items() for point in points_of(inner, value[name])]
    if isinstance(space, spaces.Tuple):
        return [point for inner, own in zip(space.spaces, value, strict=True) for point in points_of(inner, own)]
    return [value]


def is_single(part):
    """Returns whether floats of 32 bits hold all numbers of a part: choices are zeros and ones."""
    if not isinstance(part, spaces.Box) or np.can_cast(part.dtype, np.float32):
        return True
    return part.dtype.kind in "iu" and bool((part.low >= -(2**24)).all() and (part.high <= 2**24).all())


class FlatObservation:
    """A Dict or Tuple as one flat box, with the numbers of gymnasium.spaces.flatten; of a Dict with an action mask, the mask and
    the rest as one flat box each, in the order of their names."""

    def __init__(self, space):
        # A Dict may be in another order.
        self.space = spaces.Dict(dict(sorted(space.spaces.items()))) if has_mask(space) else space
        self.dtype, self.parts, at = self.elements(space), [], 0
        for part in parts_of(self.space):
            kind, end = kind_of(part)(part), at + spaces.flatdim(part)
            sizes = getattr(kind, "nvec", None) if type(kind) is MultiDiscrete else getattr(kind, "n", None)
            # Of choices the places of their first values.
            firsts = None if sizes is None else at + np.cumsum(np.append(0, sizes))[:-1]
            self.parts.append((kind, np.empty((1, *kind.shape), kind.dtype), slice(at, end), firsts))
            at = end
        self.shape = (at,)

    @staticmethod
    def elements(space):
        """Returns floats of 32 bits if they hold all numbers of the parts, else integers if all parts have them, else floats of
        64 bits."""
        parts = parts_of(space)
        if all(map(is_single, parts)):
            return np.dtype("float32")
        is_whole = all(part.dtype.kind in "iub" for part in parts) and not has_mask(space)
        return np.dtype("int64" if is_whole else "float64")

    @staticmethod
    def box(space, dtype):
        def bounds(side, of_choices):
            for part in parts_of(space):
                own = getattr(part, side) if isinstance(part, spaces.Box) else np.full(spaces.flatdim(part), of_choices)
                yield np.ravel(np.minimum(own, 2**63 - 1) if own.dtype == np.uint64 else own).astype(dtype)

        return spaces.Box(*(np.concatenate([*bounds(*side)]) for side in (("low", 0), ("high", 1))), dtype=dtype)

    @classmethod
    def form(cls, space):
        for part in parts_of(space):
            kind_of(part)
        dtype = cls.elements(space)
        if has_mask(space):
            return {"type": "dict", "spaces": {name: Box.form(cls.box(part, dtype)) for name, part in space.spaces.items()}}
        return Box.form(cls.box(space, dtype))

    def put(self, rows, lane, value):
        row = rows[lane]
        row[:] = 0
        for (kind, own, place, firsts), point in zip(self.parts, points_of(self.space, value)):
            kind.put(own, 0, point)
            if firsts is None:
                check_unchanged(own, rows)
                row[place] = own.reshape(-1)
            else:
                row[firsts + own[0]] = 1


class JoinedAction:
    """A Dict or Tuple of integers as one MultiDiscrete, of boxes of one element type as one Box, and else as a tuple of its
    innermost parts in rows of floats."""

    def __init__(self, space):
        self.space = space
        parts = parts_of(space)
        self.kinds = [kind_of(part)(part) for part in parts]
        self.lengths = [int(np.prod(kind.shape)) for kind in self.kinds]
        self.shape = (sum(self.lengths),)
        self.dtype = self.joined(space)[0]

    @staticmethod
    def joined(space):
        parts = parts_of(space)
        if all(isinstance(part, spaces.Box) for part in parts) and len({part.dtype for part in parts}) == 1:
            low, high = (np.concatenate([np.ravel(getattr(part, side)) for part in parts]) for side in ("low", "high"))
            return box_dtype(parts[0].dtype), Box.form(spaces.Box(low, high, dtype=parts[0].dtype))
        sizes = {
            spaces.Discrete: lambda part: [int(part.n)],
            spaces.MultiDiscrete: lambda part: [int(n) for n in np.ravel(part.nvec)],
            spaces.MultiBinary: lambda part: [2] * int(np.prod(part.shape)),
        }
        if all(type(part) in sizes for part in parts):
            return "<i8", {"type": "multi_discrete", "nvec": [n for part in parts for n in sizes[type(part)](part)]}
        return "<f4", {"type": "tuple", "spaces": [kind_of(part).form(part) for part in parts]}

    @classmethod
    def form(cls, space):
        return cls.joined(space)[1]

    def take(self, rows, lane):
        row, actions, at = rows[lane], [], 0
        for kind, length in zip(self.kinds, self.lengths):
            actions.append(kind.take(row[at : at + length].astype(kind.dtype).reshape((1, *kind.shape)), 0))
            at += length
        actions = iter(actions)

        def nested(space):
            if isinstance(space, spaces.Dict):
                return {name: nested(part) for name, part in space.spaces.items()}
            if isinstance(space, spaces.Tuple):
                return tuple(nested(part) for part in space.spaces)
            return next(actions)

        return nested(self.space)


def kind_of(space, compound=None):
    kinds = {
        spaces.Box: Box,
        spaces.Discrete: Discrete,
        spaces.MultiDiscrete: MultiDiscrete,
        spaces.MultiBinary: MultiBinary,
    }
    if compound:
        kinds |= {spaces.Dict: compound, spaces.Tuple: compound}
    for own, kind in kinds.items():
        if isinstance(space, own):
            return kind
    raise Refused("rollmesh has no such space")


def starts_of(space):
    """Returns the numbers from which the components of a discrete space count, unless all are 0."""
    starts = np.ravel(space.start) if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)) else []
    return [int(start) for start in starts] if np.any(starts) else []


def translated(what, space, compound):
    """Returns the kind of a space, its rollmesh form, and the element type of its rows."""
    try:
        kind = kind_of(space, compound)
        form, kind = kind.form(space), kind(space)
        return kind, form, np.dtype(kind.dtype).name
    except Refused as error:
        raise Refused(f"the {what} space {str(space)[:100]} cannot be translated: {error}") from None
