"""Environments in Rust under the vector interface of Stable-Baselines3, which this module imports."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv as Base

from . import _native
from ._vector import VectorEnv


class VecEnv(Base):
    """Environments in Rust, stepped together, for the algorithms of Stable-Baselines3."""

    def __init__(self, id: str, n_envs: int = 1, env_config: Mapping[str, Any] | None = None, seed: int | None = None):
        try:
            self.envs = VectorEnv(id, n_envs, env_config, "rgb_array")
        except _native.Error:
            # Some of Gymnasium's environments have no pictures.
            self.envs = VectorEnv(id, n_envs, env_config)
        # Stable-Baselines3's policies count from 0.
        self.envs._set_spaces(self.envs._lanes.spaces())
        self.render_mode = self.envs.render_mode
        super().__init__(n_envs, self.envs.single_observation_space, self.envs.single_action_space)
        self.seed(seed)

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Sets the seed of the next reset."""
        self._seed = seed
        return [seed] * self.num_envs

    def reset(self) -> np.ndarray:
        obs, _ = self.envs.reset(seed=self._seed)
        self._seed = None
        self._returns, self._lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=int)
        return np.array(obs)

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        obs, rewards, terminateds, truncateds, ended = self.envs.step(self._actions)
        dones = terminateds | truncateds
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        self._returns += rewards
        self._lengths += 1
        for lane in np.flatnonzero(dones).tolist():
            infos[lane] = {
                "terminal_observation": np.array(ended["final_obs"][lane]),
                "TimeLimit.truncated": bool(truncateds[lane] and not terminateds[lane]),
                # The entry that its `VecMonitor` would add.
                "episode": {"r": float(self._returns[lane]), "l": int(self._lengths[lane])},
            }
        self._returns[dones] = 0
        self._lengths[dones] = 0
        return np.array(obs), rewards.astype(np.float32), dones, infos

    def close(self) -> None:
        self.envs.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        return self.envs.render() or []

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self.envs, attr_name)] * len(self._get_indices(indices))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise AttributeError(f"'{attr_name}' cannot be set: environments in Rust have settings, see env_config")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise AttributeError(f"environments in Rust have no method '{method_name}'")

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        return [False] * len(self._get_indices(indices))
