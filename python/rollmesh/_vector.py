"""Environments in Rust as a Gymnasium vector environment."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from . import _native, _program
from ._batch import Array, to_column, view


def space(described: Mapping[str, Any], dtype: str, starts: Sequence[int] = ()) -> gymnasium.Space:
    """Returns a space of Gymnasium from its description, and the first numbers of its components."""
    kind = described["type"]
    if kind == "box":
        shape = tuple(described["shape"])
        limits = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else None
        ends = (-np.inf, np.inf) if limits is None else (limits.min, limits.max)
        bounds = []
        for name, unbounded in zip(("low", "high"), ends):
            values = np.array([unbounded if value is None else value for value in described[name]], dtype=dtype)
            # If all components have the same bound, the description has it once.
            bounds.append(np.full(shape, values[0]) if values.size == 1 else values.reshape(shape))
        return gymnasium.spaces.Box(*bounds, shape=shape, dtype=np.dtype(dtype).type)
    if kind == "discrete":
        return gymnasium.spaces.Discrete(described["n"], start=starts[0] if starts else 0)
    if kind == "multi_discrete":
        return gymnasium.spaces.MultiDiscrete(described["nvec"], start=list(starts) or None)
    if kind == "multi_binary":
        return gymnasium.spaces.MultiBinary(described["n"])
    raise _native.EnvError(f"spaces of the type '{kind}' have no arrays of one shape: use rollmesh.RolloutWorker")


class VectorEnv(gymnasium.vector.VectorEnv):
    """Environments in Rust, stepped together.

    An environment whose episode ends begins the next one in the same step (`AutoresetMode.SAME_STEP`);
    `infos["final_obs"]` has the last observations of episodes, where `infos["_final_obs"]` is true. Its random numbers are those
    of a `RolloutWorker` with the same seed. It may be used from any thread, and ends with `close`, as do the processes of
    environments in Python.
    """

    def __init__(
        self,
        id: str,
        num_envs: int = 1,
        env_config: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise _native.ConfigError(f"render_mode is '{render_mode}'; it is None or 'rgb_array'")
        _program.prepare(id)
        config = dict(env_config or {})
        if render_mode is not None and id.startswith(("gym:", "py:")):
            # Environments in Python need the render mode for pictures.
            config.setdefault("render_mode", render_mode)
        self._lanes = _native.Lanes(id, num_envs, config)
        self._is_reset = False
        self.num_envs, self.render_mode = num_envs, render_mode
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": ["rgb_array"]}
        described = self._lanes.spaces()
        self._set_spaces(described, **described["starts"])

    def _set_spaces(self, described: Mapping[str, Any], observation: Sequence[int] = (), action: Sequence[int] = ()) -> None:
        """Sets the spaces, whose discrete components count from these numbers, as those of some environments in Python do."""
        self._action_type = described["action_type"]
        self.single_observation_space = space(described["observation"], described["observation_type"], observation)
        self.single_action_space = space(described["action"], self._action_type, action)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        # Rows count from 0. One number belongs to a space without components.
        self._observation_starts = np.reshape(np.array(observation, int), self.single_observation_space.shape) if observation else None
        self._action_starts = np.reshape(np.array(action, int), self.single_action_space.shape) if action else None

    def _observations(self, column: Any) -> Array:
        rows = view(column)
        return rows if self._observation_starts is None else rows + self._observation_starts

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begins an episode of every environment. Without a seed the first one is random.

        Seeds of single environments are numbers below 2**32: environment `i` then equals environment `seed[i]` with
        seed 0, at any index.
        """
        if "reset_mask" in (options or {}):
            raise _native.EnvError("options has 'reset_mask', but all environments are reset together: leave it out")
        seeds = None
        if isinstance(seed, Sequence | np.ndarray):
            seeds, seed = [operator.index(number) for number in seed], None
            if wrong := [number for number in seeds if not 0 <= number < 2**32]:
                raise _native.EnvError(f"seed has {wrong[0]}: seeds of single environments are from 0 to 2**32 - 1")
        elif seed is None and not self._is_reset:
            seed = int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
        if seed is not None:
            seed = operator.index(seed)
            if not 0 <= seed < 2**64:
                raise _native.EnvError(f"seed is {seed}: it is from 0 to 2**64 - 1")
            self._np_random, self._np_random_seed = gymnasium.utils.seeding.np_random(seed)
        obs = self._observations(self._lanes.reset(seed, seeds))
        self._is_reset = True
        return obs, {}

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Takes a step of every environment."""
        if not self._is_reset:
            raise gymnasium.error.ResetNeeded("call reset before step")
        actions = self._as_actions(actions)
        if self._action_starts is not None:
            actions = actions - self._action_starts
        obs, *arrays, last = self._lanes.step(to_column("actions", actions))
        rewards, terminateds, truncateds = map(view, arrays)
        infos = {} if last is None else {"final_obs": self._observations(last), "_final_obs": terminateds | truncateds}
        return self._observations(obs), rewards, terminateds, truncateds, infos

    def _as_actions(self, actions: Any) -> Array:
        """Converts actions to the type of the action space: integers unchanged, numbers to the nearest floats."""
        given = np.asarray(actions)
        if given.dtype == self._action_type:
            return given
        is_whole = given.dtype.kind in "biu" and np.dtype(self._action_type).kind in "biu"
        if is_whole or np.can_cast(given.dtype, self._action_type, "same_kind"):
            cast = given.astype(self._action_type)
            if not is_whole or (cast == given).all():
                return cast
        raise _native.EnvError(f"actions of {given.dtype} are none of {self.single_action_space}: convert them to {self._action_type}")

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the environments."""
        self._lanes.close()

    def __del__(self) -> None:
        """Environments that were not closed end once their step has ended, which is not waited for."""

    def render(self) -> tuple[Array, ...] | None:
        """Returns the picture of every environment, (height, width, 3) of `uint8`; None without `render_mode`.

        Raises an `EnvError` if there is none, for example because a package is missing. The environments can still be stepped.
        """
        if self.render_mode is None:
            return None
        pictures = [self._lanes.render(lane) for lane in range(self.num_envs)]
        if None in pictures:
            raise _native.EnvError("the environment has no pictures")
        return tuple(np.frombuffer(rgb, np.uint8).reshape(height, width, 3) for height, width, rgb in pictures)


def make_vec(id: str, num_envs: int = 1, **env_config: Any) -> VectorEnv:
    """Makes environments of a registered name; keyword arguments are `render_mode` and the environment's settings."""
    render_mode = env_config.pop("render_mode", None)
    return VectorEnv(id, num_envs, env_config, render_mode)
