"""Environments for the tests: correct ones, and ones with every kind of failure."""

import os
import sys
import time
from collections import OrderedDict
from types import ModuleType, SimpleNamespace

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv


class CartPoleFrom(CartPoleEnv):
    """CartPole whose episodes begin in a given state."""

    def __init__(self, state):
        super().__init__()
        self.first = state

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = np.array(self.first, dtype=np.float64)
        return np.array(self.state, dtype=np.float32), {}


def cart_pole_from(state):
    return CartPoleFrom(state)


class Echo(gymnasium.Env):
    """Observes its action."""

    def __init__(self, space):
        self.observation_space = self.action_space = space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        action = clipped(self.action_space, action)
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        return action, float(np.sum(spaces.flatten(self.action_space, action))), False, False, {}


def clipped(space, action):
    """Boxes may be sent numbers beyond their bounds, of the right type and shape."""
    if isinstance(space, spaces.Dict):
        return {name: clipped(part, action[name]) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Box):
        assert action.dtype == space.dtype and action.shape == space.shape
        return np.clip(action, space.low, space.high)
    return action


SPACES = {
    "discrete": spaces.Discrete(3, start=-1),
    "multi_discrete": spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 1], [0, -2]]),
    "multi_binary": spaces.MultiBinary([2, 2]),
    "float64": spaces.Box(-1.5, 2.5, (2, 3), np.float64),
    "float16": spaces.Box(-1, 1, (2,), np.float16),
    "uint8": spaces.Box(0, 255, (2, 2, 3), np.uint8),
    "int8": spaces.Box(-100, 100, (), np.int8),
    "int64": spaces.Box(-(2**62), 2**62, (2,), np.int64),
    "tuple": spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2), spaces.MultiDiscrete([4, 2])]),
    "dict": spaces.Dict({"b": spaces.Box(0, 1, (2,), np.float32), "a": spaces.Box(-1, 0, (1,), np.float32)}),
    "mixed": spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(0, 1, (2,), np.float32)}),
    "text": spaces.Text(5),
    "graph": spaces.Graph(spaces.Box(0, 1, (1,)), None),
    "uint64": spaces.Box(0, 10, (1,), np.uint64),
    "long_double": spaces.Box(0, 1, (1,), np.longdouble),
    "long_doubles": spaces.Dict({"a": spaces.Box(0, 1, (1,), np.longdouble)}),
}


def echo(space):
    return Echo(SPACES[space])


class Given(gymnasium.Env):
    """Observes one point."""

    action_space = spaces.Discrete(2)

    def __init__(self, observation_space, point):
        self.observation_space, self.point = observation_space, point

    def reset(self, *, seed=None, options=None):
        return self.point, {}

    def step(self, action):
        return self.point, 0.0, False, False, {}


LARGE = spaces.Box(-(2**62), 2**62, (1,), np.int64)
SMALL = spaces.Box(0, 1, (1,), np.float32)
DOUBLE = spaces.Box(0, 1, (1,), np.float64)
POINTS = {
    "whole": (spaces.Dict({"a": LARGE, "b": spaces.Discrete(3, start=5)}), {"a": np.array([2**53 + 1]), "b": 6}),
    "double": (spaces.Tuple([DOUBLE, spaces.MultiBinary(2)]), (np.array([0.1]), np.array([0, 1], np.int8))),
    "mixed": (spaces.Dict({"a": LARGE, "b": SMALL}), {"a": np.array([-(2**53)]), "b": np.array([0.5], np.float32)}),
    "masked": (spaces.Dict({"action_mask": spaces.MultiBinary(2), "obs": DOUBLE}), {"action_mask": [0, 1], "obs": [0.1]}),
    "too_large": (spaces.Dict({"a": LARGE, "b": SMALL}), {"a": np.array([2**53 + 1]), "b": np.zeros(1, np.float32)}),
    "beyond": (spaces.Tuple([spaces.Box(0, 9, (1,), np.int64), SMALL]), (np.array([2**24 + 1]), np.zeros(1, np.float32))),
    "unsigned": (SPACES["uint64"], np.array([2**63], np.uint64)),
    "fraction": (spaces.Dict({"a": LARGE}), {"a": np.array([0.5])}),
    "no_choice": (spaces.Tuple([spaces.Discrete(3, start=1)]), (0,)),
}


def given(name):
    return Given(*POINTS[name])


class Masked(gymnasium.Env):
    """Forbids an action at each step, by a mask that comes last in its observations."""

    action_space = spaces.Discrete(3)

    def __init__(self, name):
        self.name = name
        mask = ("action_mask", spaces.MultiBinary(3))
        self.observation_space = spaces.Dict(OrderedDict([(name, spaces.Discrete(4)), mask]))

    def seen(self):
        mask = np.ones(3, np.int8)
        mask[self.t % 3] = 0
        return {self.name: self.t % 4, "action_mask": mask}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.seen(), {}

    def step(self, action):
        assert action != self.t % 3, "a mask forbids this action"
        self.t += 1
        return self.seen(), 1.0, False, False, {}


def masked(name):
    return Masked(name)


class Faulty(gymnasium.Env):
    """Counts its steps, and fails at the fourth."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, fault):
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        obs = np.full(1, self.t, np.float32)
        if self.t == 4:
            if self.fault == "raise":
                self.look_up(3)
            elif self.fault == "recursion":
                self.look_up(10**6)
            elif self.fault == "exit":
                os._exit(7)
            elif self.fault == "crash":
                os.abort()
            elif self.fault == "hang":
                time.sleep(3600)
            elif self.fault == "nan":
                obs[0] = np.nan
            elif self.fault == "shape":
                obs = np.zeros((2, 1), np.float32)
            elif self.fault == "old":
                return obs, 0.0, False, {}
        return obs, 1.0, False, False, {}

    def look_up(self, calls):
        return self.lose_the_key() if calls == 0 else self.look_up(calls - 1)

    def lose_the_key(self):
        raise KeyError("the key is lost")


def faulty(fault):
    return Faulty(fault)


class Here(gymnasium.Env):
    """Observes the process that it runs in."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(0, 2**40, (3,), np.float64)

    def reset(self, *, seed=None, options=None):
        print("what is printed is no answer", flush=True)
        return self.seen(seed), {}

    def step(self, action):
        return self.seen(0), 0.0, False, False, {}

    def seen(self, seed):
        return np.array([os.getpid(), "ROLLMESH_TOKEN" in os.environ, seed], np.float64)


class NotDeterministic(Here):
    spec = gymnasium.envs.registration.EnvSpec("Here-v0", nondeterministic=True)


gymnasium.register("Mine-v0", entry_point=lambda: Here())


class Shifted(gymnasium.Env):
    """Observes something that differs between machines."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.seen(), {}

    def step(self, action):
        self.t += 1
        return self.seen(), 1.0, self.t == 10, False, {}

    def seen(self):
        return np.full(1, self.t + float(os.environ.get("LAB_SHIFT", 0)), np.float32)


def shifted():
    return Shifted()


class Counter(Shifted):
    """Counts its steps to a number, in lanes of a vector environment."""

    def __init__(self, last, render_mode="rgb_array"):
        self.last, self.render_mode = last, render_mode

    def step(self, action):
        self.t += 1
        return self.seen(), float(action), self.t == self.last, False, {}

    def render(self):
        return np.full((4, 6, 3), 40 * self.t, np.uint8)


class Unseen(Counter):
    """Has pictures, but not the package that draws them."""

    def render(self):
        raise gymnasium.error.DependencyNotInstalled("pygame is not installed")


def counters(num_envs, mode, **told):
    makers = [lambda last=last: Counter(last) for last in range(3, 3 + num_envs)]
    vector = gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode)
    vector.metadata = {"autoreset_mode": told["told"]} if told else vector.metadata
    return vector


def counter():
    return Counter(5)


def unseen():
    return Unseen(5)


def screen(render_mode=None):
    return Counter(5, render_mode)


class Noisy(Shifted):
    """Observes noise that does not follow from its seed, and does not say so."""

    def seen(self):
        return np.random.default_rng().random(1, np.float32)


def noisy():
    return Noisy()


class Numbered(Shifted):
    """Observes how many of its kind its process has made."""

    made = 0

    def __init__(self):
        Numbered.made += 1
        self.number = Numbered.made

    def seen(self):
        return np.full(1, self.number, np.float32)


def numbered():
    return Numbered()


class Simulated(Shifted):
    """Stands for an environment of MuJoCo: its simulator counts steps, and something that no observation shows."""

    resets = 0

    def __init__(self, fault):
        self.fault, self.model, self.data = fault, self, SimulatorData()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        self.data.values[:] = 0, float(seed or 0)
        return self.seen(), {}

    def step(self, action):
        # Sums whose last bits follow from the number of resets.
        self.data.values += 1, 0.1 * (self.resets if self.fault == "drifts" else 1)
        return self.seen(), float(action), False, False, {}

    def seen(self):
        return np.full(1, self.data.values[0], np.float32)


Simulated.__module__ = "gymnasium.envs.mujoco.lab"


class SimulatorData:
    """The data of a simulator, whose other arrays stay as they are."""

    def __init__(self):
        self.values = np.zeros(2)

    def __getattr__(self, name):
        return np.zeros(1)


def simulator():
    """Returns a module with the functions of MuJoCo that move states."""
    made = ModuleType("mujoco")
    made.__version__ = "lab"
    made.mjtState = SimpleNamespace(mjSTATE_INTEGRATION=0)
    made.mj_stateSize = lambda model, kind: 2

    def get_state(model, data, values, kind):
        if model.fault == "raises" or model.fault == "fails" and data.values[0] > 30:
            raise RuntimeError("the simulator cannot tell its state")
        values[:] = data.values

    def set_state(model, data, values, kind):
        data.values[:] = (values[0], 0) if model.fault == "forgets" else values

    made.mj_getState, made.mj_setState = get_state, set_state
    return made


def simulated(fault=None):
    sys.modules["mujoco"] = simulator()
    return Simulated(fault)


class AtOnce:
    """A game in the form of PettingZoo's parallel environments: an agent that guesses the other's number gets a point."""

    possible_agents = ["guesser", "hider", "watcher"]
    rounds = 6

    def observation_space(self, agent):
        return spaces.Box(-1, 3, (2,), np.float32) if agent == "watcher" else spaces.Discrete(4, start=-1)

    def action_space(self, agent):
        return spaces.Box(0, 1, (1,), np.float32) if agent == "watcher" else spaces.Discrete(3)

    def seen(self):
        last = {"guesser": self.last[1], "hider": self.last[0], "watcher": np.array(self.last, np.float32)}
        return {agent: last[agent] for agent in self.agents}

    def reset(self, seed=None, options=None):
        self.agents, self.t = list(self.possible_agents), 0
        self.last = [-1, int(np.random.default_rng(seed).integers(3))]
        return self.seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.t += 1
        self.last = [int(actions["guesser"]), int(actions["hider"])]
        point = float(self.last[0] == self.last[1])
        rewards = {"guesser": point, "hider": -point, "watcher": float(actions.get("watcher", [0])[0])}
        # The watcher leaves earlier than the others.
        ends = {agent: agent == "watcher" and self.t == 3 for agent in self.agents}
        stops = {agent: self.t == self.rounds for agent in self.agents}
        seen, rewards = self.seen(), {agent: rewards[agent] for agent in self.agents}
        self.agents = [agent for agent in self.agents if not ends[agent] and not stops[agent]]
        return seen, rewards, ends, stops, {agent: {} for agent in seen}


class InTurn:
    """A game in the form of PettingZoo's AEC environments: players count to a number, and the player who reaches it wins."""

    possible_agents = ["ada", "bob", "cleo"]

    def observation_space(self, agent):
        return spaces.Discrete(40)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.count = list(self.possible_agents), int(np.random.default_rng(seed).integers(5))
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.agent_selection = self.agents[0]

    def observe(self, agent):
        return self.count

    def step(self, action):
        agent = self.agent_selection
        after = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        if self.terminations[agent] or self.truncations[agent]:
            assert action is None, "an agent that has ended takes no action"
            self.agents.remove(agent)
            for ends in (self.rewards, self.terminations, self.truncations):
                del ends[agent]
        else:
            self.count += 1 + int(action)
            if self.count >= 20:
                for player in self.agents:
                    self.rewards[player] = 0.0 if self.terminations[player] else 1.0 if player == agent else -1.0
                self.terminations = dict.fromkeys(self.agents, True)
            elif agent == "cleo" and self.count > 10:
                self.terminations[agent] = True
        self.agent_selection = after


def at_once(rounds=6):
    game = AtOnce()
    game.rounds = rounds
    return game


def in_turn():
    return InTurn()
