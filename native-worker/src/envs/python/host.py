"""The host of Python environments: makes and steps them for the rollmesh program that started it.

Messages are those of rollmesh's environment processes: number (8 bytes), length of the body (4), kind (1), three zeros, body.
An order (MAKE) makes environments of one kind, its lanes, or a game of PettingZoo. RESET and STEP name an order and lanes; rows
are little-endian. Actions and turns of a game are in the form that rollmesh's core gives rows and turns of several agents.
What environments print goes to standard error.
"""

import contextlib
import faulthandler
import fcntl
import importlib
import json
import os
import re
import select
import signal
import struct
import sys
import traceback

HEAD = struct.Struct("<QIB3x")
MAKE, RESET, STEP, RENDER, STOP, CLOSE = range(1, 7)
MADE, TURN, PICTURE, FAILED = range(1, 5)
# Element types that rows do not support, with wider ones that hold all their values.
WIDER = {"float16": "float32", "int8": "int32", "int16": "int32", "uint16": "int32", "uint32": "int64"}
SAME = {"float32", "float64", "int32", "int64", "uint8", "bool"}
# Their numbers in rows of several agents.
NUMBERS = {"float32": 1, "float64": 2, "int32": 3, "int64": 4, "uint8": 5, "bool": 6}
TERMINATED, TRUNCATED = 1, 2


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


class Box:
    def __init__(self, space):
        self.own, self.dtype, self.shape = space.dtype, box_dtype(space.dtype), space.shape

    @staticmethod
    def form(space):
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


class FlatObservation:
    """A Dict or Tuple as one flat box of floats, like gymnasium.spaces.flatten; of a Dict with an action mask, the mask and
    the rest as one flat box each, in the order of their names."""

    dtype = "<f4"

    def __init__(self, space):
        # A Dict may be in another order.
        self.space = spaces.Dict(dict(sorted(space.spaces.items()))) if has_mask(space) else space
        self.shape = self.box(self.space).shape

    @staticmethod
    def box(space):
        for part in parts_of(space):
            kind_of(part)
        flat = spaces.flatten_space(space)
        low, high = flat.low.astype(np.float32), flat.high.astype(np.float32)
        return spaces.Box(low, high, dtype=np.float32)

    @classmethod
    def form(cls, space):
        if has_mask(space):
            return {"type": "dict", "spaces": {name: Box.form(cls.box(part)) for name, part in space.spaces.items()}}
        return Box.form(cls.box(space))

    def put(self, rows, lane, value):
        value = spaces.flatten(self.space, value)
        if value.shape != self.shape:
            raise ValueError(f"the observation has {value.size} elements, its space {self.shape[0]}")
        rows[lane] = value


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


def translated(what, space, compound):
    """Returns the kind of a space, its rollmesh form, and the element type of its rows."""
    try:
        kind = kind_of(space, compound)
        form, kind = kind.form(space), kind(space)
        return kind, form, np.dtype(kind.dtype).name
    except Refused as error:
        raise Refused(f"the {what} space {str(space)[:100]} cannot be translated: {error}") from None


def factory_of(name, config):
    """Returns the function that makes an environment of this name, which is called once per lane."""
    kind, _, rest = name.partition(":")
    here = f"on this machine ({sys.executable}, Python {sys.version.split()[0]})"
    try:
        if kind == "gym":
            error = gymnasium.error
            missing = (ImportError, error.UnregisteredEnv, error.DependencyNotInstalled)
            if rest.startswith("ALE/"):
                # Registers them.
                importlib.import_module("ale_py")
            return lambda: gymnasium.make(rest, **{"disable_env_checker": True, **config}), missing, here
        module, _, factory = rest.partition(":")
        if kind == "pettingzoo" and not factory:
            if not re.fullmatch(r"\w+/\w+", rest):
                raise Unavailable(f"{name} is no game of PettingZoo: write it as pettingzoo:classic/tictactoe_v3")
            module = importlib.import_module(f"pettingzoo.{rest.replace('/', '.')}")
            make = getattr(module, "parallel_env", None) or module.env
            return lambda: make(**config), ImportError, here
        made = getattr(importlib.import_module(module), factory)
        # Only what the module itself defines: permission for a module must not permit what it imports, such as subprocess.
        home = getattr(made, "__module__", None) or ""
        # A game that acts at once is made of one that acts in turn by a function of PettingZoo's.
        homes = {module.partition(".")[0]} | ({"pettingzoo"} if kind == "pettingzoo" else set())
        if factory.startswith("_") or home.partition(".")[0] not in homes:
            raise Unavailable(
                f"{name} is no factory of {module}: it is defined in {home or 'no module'}; "
                "write a function in your own module that makes the environment"
            )
        return lambda: made(**config), ImportError, here
    except (ImportError, AttributeError) as error:
        raise Unavailable(f"{name} cannot be made {here}: {described(error)}") from error


def made_by(order):
    """The environments of an order."""
    make, missing, here = factory_of(order["env"], order["config"])
    try:
        return [make() for _ in range(order["lanes"])]
    except missing as error:
        raise Unavailable(f"{order['env']} cannot be made {here}: {described(error)}") from error


def picture_of(env):
    """Width, height and pixels of an environment that was made to render arrays, else nothing."""
    if getattr(getattr(env, "unwrapped", env), "render_mode", None) != "rgb_array":
        return b""
    picture = np.asarray(env.render())
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        return b""
    return struct.pack("<II", picture.shape[1], picture.shape[0]) + picture.tobytes()


class Order:
    """Environments of one kind."""

    def __init__(self, order):
        self.envs = made_by(order)
        env = self.envs[0]
        if isinstance(env, gymnasium.vector.VectorEnv) or not hasattr(env, "step"):
            raise Refused(f"{type(env).__name__} is not a single environment with reset and step")
        self.obs, obs, obs_type = translated("observation", env.observation_space, FlatObservation)
        self.act, act, act_type = translated("action", env.action_space, JoinedAction)
        self.act_size = int(np.prod(self.act.shape)) * np.dtype(self.act.dtype).itemsize
        spec = getattr(env, "spec", None)
        self.made = {
            "spaces": {
                "agent": {"Index": 0},
                "observation": obs,
                "observation_type": obs_type,
                "action": act,
                "action_type": act_type,
            },
            "is_opaque": bool(getattr(spec, "nondeterministic", False)),
        }

    def rows(self, count):
        return np.empty((count, *self.obs.shape), self.obs.dtype)

    def reset(self, lane, seed):
        rows = self.rows(1)
        obs = self.envs[lane].reset(seed=seed)
        if not (isinstance(obs, tuple) and len(obs) == 2):
            raise TypeError("reset has to return an observation and an info, as in Gymnasium")
        self.obs.put(rows, 0, obs[0])
        return rows.tobytes()

    def step(self, first, count, actions):
        rows, put, take = self.rows(count), self.obs.put, self.act.take
        actions = np.frombuffer(actions, self.act.dtype).reshape((count, *self.act.shape))
        rewards, ends = [0.0] * count, bytearray(count)
        for at in range(count):
            env = self.envs[first + at]
            try:
                turn = env.step(take(actions, at))
                if len(turn) != 5:
                    raise TypeError(f"step returned {len(turn)} values, not 5 as in Gymnasium since 0.26")
                obs, reward, terminated, truncated, _ = turn
                put(rows, at, obs)
                rewards[at], ends[at] = float(reward), bool(terminated) | bool(truncated) << 1
            except BaseException as error:
                error.lane = first + at
                raise
        return rows.reshape(-1).view(np.uint8), struct.pack(f"<{count}d", *rewards), ends

    def render(self, lane):
        return picture_of(self.envs[lane])

    def close(self):
        for env in self.envs:
            close = getattr(env, "close", None)
            if close:
                close()


class Game:
    """An environment of PettingZoo, whose agents act at once (`ParallelEnv`) or in turn (`AECEnv`)."""

    def __init__(self, order):
        (self.env,) = made_by(order)
        if not hasattr(self.env, "possible_agents") or not hasattr(self.env, "step"):
            raise Refused(f"{type(self.env).__name__} is no environment of PettingZoo with possible_agents, reset and step")
        self.acts_in_turn = hasattr(self.env, "observe")
        self.agents = {str(agent): agent for agent in self.env.possible_agents}
        self.obs, self.act, self.ended, self.is_over, told = {}, {}, set(), True, []
        for name, agent in self.agents.items():
            obs_space, act_space = self.env.observation_space(agent), self.env.action_space(agent)
            self.obs[name], obs, obs_type = translated(f"{name} observation", obs_space, FlatObservation)
            self.act[name], act, act_type = translated(f"{name} action", act_space, JoinedAction)
            told.append(
                {
                    "agent": {"Name": name},
                    "observation": obs,
                    "observation_type": obs_type,
                    "action": act,
                    "action_type": act_type,
                }
            )
        self.made = {"agents": told}

    def reset(self, _lane, seed):
        self.ended = set()
        made = self.env.reset(seed=seed)
        if self.acts_in_turn:
            agent = self.env.agent_selection
            return self.turn({agent: self.env.observe(agent)}, {})
        if not (isinstance(made, tuple) and len(made) == 2):
            raise TypeError("reset has to return observations and infos, as in PettingZoo")
        return self.turn(made[0], {})

    def step(self, _first, _count, actions):
        if self.is_over:
            raise RuntimeError("the episode is over, or none has begun: reset first")
        actions = self.actions(actions)
        return self.turn(*(self.one_acts(actions) if self.acts_in_turn else self.all_act(actions)))

    def all_act(self, actions):
        obs, rewards, terminateds, truncateds, _ = self.env.step(actions)
        agents = [agent for agent in self.agents.values() if agent in rewards]
        return obs, {agent: (rewards[agent], terminateds.get(agent), truncateds.get(agent)) for agent in agents}

    def one_acts(self, actions):
        env = self.env
        if list(actions) != [env.agent_selection]:
            raise ValueError(f"agent {env.agent_selection} acts next, and there are actions of {list(actions)}")
        env.step(actions[env.agent_selection])
        obs, outcomes = {}, {}
        for agent in env.agents:
            # A reward is that of this step alone; an agent that has ended says so once, and sees what it ended with.
            is_new = agent not in self.ended
            if not is_new and not env.rewards[agent]:
                continue
            ends = (env.terminations[agent] and is_new, env.truncations[agent] and is_new)
            outcomes[agent] = (env.rewards[agent], *ends)
            if any(ends):
                self.ended.add(agent)
                obs[agent] = env.observe(agent)
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)
        if env.agents:
            obs[env.agent_selection] = env.observe(env.agent_selection)
        return obs, outcomes

    def turn(self, obs, outcomes):
        """Observations and outcomes of agents, in the form of the core's turns."""
        self.is_over = is_over = not self.env.agents
        terminated = any(ends[1] for ends in outcomes.values()) or not any(ends[2] for ends in outcomes.values())
        parts = [bytes([(TERMINATED if terminated else TRUNCATED) if is_over else 0])]
        known = [(name, agent) for name, agent in self.agents.items() if agent in obs]
        parts.append(struct.pack("<I", len(known)))
        for name, agent in known:
            kind = self.obs[name]
            rows = np.empty((1, *kind.shape), kind.dtype)
            try:
                kind.put(rows, 0, obs[agent])
            except (TypeError, ValueError) as error:
                raise type(error)(f"agent {name}: {error}") from error
            parts += [self.tag(name), struct.pack("<BI", NUMBERS[rows.dtype.name], rows.size), rows.tobytes()]
        parts.append(struct.pack("<I", len(outcomes)))
        for agent, (reward, *ends) in outcomes.items():
            flags = (TERMINATED if ends[0] else 0) | (TRUNCATED if ends[1] else 0)
            parts += [self.tag(str(agent)), struct.pack("<dB", float(reward), flags)]
        # No infos.
        return b"".join([*parts, struct.pack("<I", 0)])

    @staticmethod
    def tag(name):
        name = name.encode()
        return struct.pack("<BI", 1, len(name)) + name

    def actions(self, body):
        """Actions of agents, from the form of the core's rows."""
        (count,), at, actions = struct.unpack_from("<I", body), 4, {}
        for _ in range(count):
            _, length = struct.unpack_from("<BI", body, at)
            name = bytes(body[at + 5 : at + 5 + length]).decode()
            at += 5 + length
            _, size = struct.unpack_from("<BI", body, at)
            kind, at = self.act[name], at + 5
            rows = np.frombuffer(body, kind.dtype, size, at).reshape((1, *kind.shape))
            actions[self.agents[name]] = kind.take(rows, 0)
            at += rows.nbytes
        return actions

    def render(self, _lane):
        return picture_of(self.env)

    def close(self):
        close = getattr(self.env, "close", None)
        if close:
            close()


def described(error):
    """Formats an exception in one line: its message and its traceback, innermost call first."""
    text = f"{type(error).__name__}: {str(error)[:240]}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    places = [f"{os.path.basename(frame.filename)}:{frame.lineno} in {frame.name}" for frame in reversed(frames[-3:])]
    return f"{text} (at {', called from '.join(places)})" if places else text


class Host:
    def __init__(self):
        self.requests = os.fdopen(os.dup(0), "rb", 1 << 16)
        self.replies = os.fdopen(os.dup(1), "wb", 1 << 16)
        with contextlib.suppress(AttributeError, OSError):
            # Large observations then need fewer exchanges with the program.
            fcntl.fcntl(self.replies, fcntl.F_SETPIPE_SZ, 1 << 20)
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)
        self.orders = {}

    def say(self, number, kind, *parts):
        self.replies.write(HEAD.pack(number, sum(map(len, parts)), kind))
        for part in parts:
            self.replies.write(part)
        self.replies.flush()

    def fail(self, number, error):
        traceback.print_exception(error)
        is_known = isinstance(error, (Refused, Unavailable))
        said = {
            "lane": getattr(error, "lane", None),
            "reason": str(error) if is_known else described(error),
            "is_unavailable": isinstance(error, Unavailable),
        }
        self.say(number, FAILED, json.dumps(said).encode())

    def make(self, body):
        order = json.loads(body)
        if order["memory_mb"] > 0:
            import resource

            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            limit = order["memory_mb"] << 20
            limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
        self.load()
        kind = Game if order["env"].startswith("pettingzoo:") else Order
        made = self.orders[order["order"]] = kind(order)
        return json.dumps(made.made).encode()

    @staticmethod
    def load():
        try:
            globals().update(np=importlib.import_module("numpy"), gymnasium=importlib.import_module("gymnasium"))
        except ImportError as error:
            reason = f"{described(error)}: install gymnasium for {sys.executable}, or name another interpreter with --python"
            raise Unavailable(reason) from error
        globals().update(spaces=gymnasium.spaces)

    def answer(self, kind, body):
        if kind == MAKE:
            return MADE, self.make(body)
        order, first = struct.unpack_from("<II", body)
        if kind == CLOSE:
            made = self.orders.pop(order, None)
            if made:
                made.close()
            return TURN, b""
        made = self.orders[order]
        if kind == RENDER:
            return PICTURE, made.render(first)
        (number,) = struct.unpack_from("<I", body, 8)
        if kind == RESET:
            try:
                return TURN, made.reset(first, number)
            except BaseException as error:
                error.lane = first
                raise
        turn = made.step(first, number, memoryview(body)[12:])
        return TURN, *(turn if isinstance(turn, tuple) else (turn,))

    def serve(self):
        while len(head := self.requests.read(HEAD.size)) == HEAD.size:
            number, length, kind = HEAD.unpack(head)
            body = self.requests.read(length)
            if kind == STOP:
                return
            try:
                reply = self.answer(kind, body)
            except (Exception, SystemExit) as error:
                self.fail(number, error)
            else:
                self.say(number, *reply)


def guard():
    """Starts a process that kills this process group when the program that started it has ended.

    A thread could not do that while an environment holds the interpreter's lock, and it would not run in a stopped process.
    The guard ends with the group, which the program kills when this process has ended.
    """
    if os.getpgrp() != os.getpid() or os.fork():
        return
    # An open output would hide the end of the host.
    os.closerange(1, 64)
    ends = select.poll()
    # No events are requested: a hang-up is always reported.
    ends.register(0, 0)
    ends.poll()
    os.killpg(0, signal.SIGKILL)


guard()
faulthandler.enable(all_threads=False)
Host().serve()
# Skips the exit handlers of libraries, which may hang.
sys.stderr.flush()
os._exit(0)
