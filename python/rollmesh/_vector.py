"""Environments in Rust as a Gymnasium vector environment."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from . import _native, _program
from ._batch import Array, to_column, view


def space(described: Mapping[str, Any], dtype: str) -> gymnasium.Space:
    """Returns a space of Gymnasium from its description."""
    kind = described["type"]
    if kind == "box":
        shape = tuple(described["shape"])
        bounds = []
        for name, unbounded in (("low", -np.inf), ("high", np.inf)):
            values = np.array([unbounded if value is None else value for value in described[name]], dtype=dtype)
            # Where all components have the same bound, it stands there once.
            bounds.append(np.full(shape, values[0]) if values.size == 1 else values.reshape(shape))
        return gymnasium.spaces.Box(*bounds, shape=shape, dtype=np.dtype(dtype).type)
    if kind == "discrete":
        return gymnasium.spaces.Discrete(described["n"])
    if kind == "multi_discrete":
        return gymnasium.spaces.MultiDiscrete(described["nvec"])
    if kind == "multi_binary":
        return gymnasium.spaces.MultiBinary(described["n"])
    raise _native.EnvError(f"spaces of the type '{kind}' have no arrays of one shape: use rollmesh.RolloutWorker")


class VectorEnv(gymnasium.vector.VectorEnv):
    """Environments in Rust, stepped together.

    An environment whose episode ends begins the next one in the same step (`AutoresetMode.SAME_STEP`);
    `infos["final_obs"]` has the last observations of episodes, where `infos["_final_obs"]` is true. Its random numbers are those of a `RolloutWorker` with
    the same seed.
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
        self._lanes = _native.Lanes(id, num_envs, dict(env_config or {}))
        described = self._lanes.spaces()
        self._action_type = described["action_type"]
        self.num_envs, self.render_mode = num_envs, render_mode
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": ["rgb_array"]}
        self.single_observation_space = space(described["observation"], described["observation_type"])
        self.single_action_space = space(described["action"], self._action_type)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begins an episode of every environment. Without a seed the first one is random."""
        if "reset_mask" in (options or {}):
            raise _native.EnvError("options has 'reset_mask', but all environments are reset together: leave it out")
        if seed is None and self._np_random_seed is None:
            seed = int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
        if seed is not None:
            self._np_random_seed = seed
        return view(self._lanes.reset(seed)), {}

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Takes a step of every environment."""
        if self._np_random_seed is None:
            raise gymnasium.error.ResetNeeded("call reset before step")
        *arrays, last = self._lanes.step(to_column("actions", np.asarray(actions, dtype=self._action_type)))
        obs, rewards, terminateds, truncateds = map(view, arrays)
        infos = {} if last is None else {"final_obs": view(last), "_final_obs": terminateds | truncateds}
        return obs, rewards, terminateds, truncateds, infos

    def render(self) -> tuple[Array, ...] | None:
        """Returns the picture of every environment."""
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
