"""Environments for the tests, which their processes find in PYTHONPATH."""

import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Slow(gymnasium.Env):
    """An environment in which every step takes five seconds."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        time.sleep(5)
        return np.zeros(2, np.float32), 0.0, False, False, {}


class Empty(Slow):
    observation_space = spaces.Box(-1, 1, (0,), np.float32)


class Endless(Slow):
    action_space = spaces.Box(0, np.iinfo(np.int64).max, (1,), np.int64)


class Lift(Slow):
    """A lift that moves by -1, 0 or 1 from the ground floor to one of the floors -2 to 2, which it observes."""

    observation_space = spaces.Discrete(5, start=-2)
    action_space = spaces.Discrete(3, start=-1)

    def reset(self, *, seed=None, options=None):
        self.floor = 0
        return self.floor, {}

    def step(self, action):
        self.floor += int(action)
        return self.floor, float(action), abs(self.floor) == 2, False, {}


class Screen(gymnasium.Env):
    """A coloured screen, which workers wrap as DeepMind does for games."""

    observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.low, {}

    def step(self, action):
        return np.full((64, 64, 3), 100 + int(action), np.uint8), 0.3, False, False, {}


class Picture(Slow):
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def render(self):
        return np.zeros((4, 5, 3), np.uint8)


class Undrawn(gymnasium.Env):
    """An environment with pictures, but without the package that draws them."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"

    def __init__(self, render_mode=None):
        pass

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, 0.0, False, False, {}

    def render(self):
        raise gymnasium.error.DependencyNotInstalled("pygame is not installed")


class Fragile(gymnasium.Env):
    """An environment in which one in ten steps fails."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        if self.np_random.random() < 0.1:
            raise RuntimeError("worn out")
        return np.full(1, self.t, np.float32), 1.0, self.t == 3, False, {}
