

# --- Environments of one agent ---


def factory_of(name, config, lanes):
    """Returns the function that makes an environment of this name: once per lane, or with `lanes` a vector of
    that many lanes."""
    kind, _, rest = name.partition(":")
    here = f"on this machine ({sys.executable}, Python {sys.version.split()[0]})"
    try:
        if kind == "gym":
            error = gymnasium.error
            missing = (ImportError, error.UnregisteredEnv, error.DependencyNotInstalled)
            if rest.startswith("ALE/"):
                # Registers them.
                importlib.import_module("ale_py")
            if lanes:
                return lambda: native_vector(rest, config, lanes), missing, here
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
        # A game with simultaneous actions is made of one whose agents act sequentially by a function of PettingZoo's.
        homes = {module.partition(".")[0]} | ({"pettingzoo"} if kind == "pettingzoo" else set())
        if factory.startswith("_") or home.partition(".")[0] not in homes:
            raise Unavailable(
                f"{name} is no factory of {module}: it is defined in {home or 'no module'}; "
                "write a function in your own module that makes the environment"
            )
        config = {"num_envs": lanes, **config} if lanes else config
        return lambda: made(**config), ImportError, here
    except (ImportError, AttributeError) as error:
        is_own = isinstance(error, ModuleNotFoundError) and kind == "py" and error.name == module.partition(".")[0]
        hint = "; name the folder of the module in PYTHONPATH, or install its package" if is_own else ""
        raise Unavailable(f"{name} cannot be made {here}: {described(error)}{hint}") from error


def native_vector(id, config, lanes):
    """Makes the vector environment that an environment of Gymnasium registers, so that no final observation is lost."""
    entry = gymnasium.spec(id).vector_entry_point
    if entry is None:
        raise Refused(f"gym:{id} has no vector environment of its own: leave vectorize out")
    entry = entry if callable(entry) else gymnasium.envs.registration.load_env_creator(entry)
    if "autoreset_mode" in inspect.signature(entry).parameters:
        config = {"autoreset_mode": "SameStep", **config}
    return gymnasium.make_vec(id, num_envs=lanes, vectorization_mode="vector_entry_point", **config)


def made_by(request):
    """Returns the environments of a request, one vector environment if its settings say so."""
    config = {name: value for name, value in request["config"].items() if name not in HOST_SETTINGS}
    if request["config"].get("host_pictures") and "render_mode" not in config:
        # An environment that cannot be made with this mode has no pictures; other errors recur without it.
        with contextlib.suppress(Exception):
            return made_with(request, {**config, "render_mode": "rgb_array"})
    return made_with(request, config)


def made_with(request, config):
    lanes = request["lanes"] if is_native(request) else None
    make, missing, here = factory_of(request["env"], config, lanes)
    try:
        return [make() for _ in range(1 if lanes else request["lanes"])]
    except missing as error:
        raise Unavailable(f"{request['env']} cannot be made {here}: {described(error)}") from error


def key_of(request):
    """Returns the key of environments with the same bits: their name and settings."""
    config = {name: value for name, value in request["config"].items() if name not in ("host_fingerprint", "host_pictures")}
    return request["env"], json.dumps(config, sort_keys=True)


def is_native(request):
    vectorize = request["config"].get("vectorize")
    if vectorize not in (None, "native"):
        raise Refused(f'vectorize is {vectorize!r}: it is "native", or left out')
    return vectorize == "native"


def narrowed(space, dtype):
    """Returns a space with boxes of 32-bit floats, which normalising filters take, for those of 64-bit floats."""
    narrow = in_single(space)
    if dtype != "float32" or narrow == space:
        found = f"observation_dtype is {dtype!r}: it is \"float32\", for boxes of float64, and the space is {str(space)[:100]}"
        raise Refused(found)
    return narrow


def in_single(space):
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: in_single(part) for name, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([in_single(part) for part in space.spaces])
    if isinstance(space, spaces.Box) and space.dtype == np.float64:
        return spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
    return space


def picture_of(env):
    """Returns width, height and pixels of an environment that was made to render arrays, else nothing."""
    if getattr(getattr(env, "unwrapped", env), "render_mode", None) != "rgb_array":
        return b""
    return framed(env.render())


def framed(picture):
    picture = np.asarray(picture)
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        return b""
    return struct.pack("<II", picture.shape[1], picture.shape[0]) + picture.tobytes()


class SharedRows:
    """Memory that the program reads and writes, too: rows of observations, rewards, ends and actions of all lanes.

    A file without a name, which ends with the processes that have it open.
    """

    def __init__(self, lanes, obs, act):
        sizes = [(obs, (lanes, *obs.shape)), ("<f8", (lanes,)), ("u1", (lanes,)), (act, (lanes, *act.shape))]
        sizes = [(np.dtype(getattr(kind, "dtype", kind)), shape) for kind, shape in sizes]
        self.places, end = [], 0
        for dtype, shape in sizes:
            self.places.append(end)
            end += -(-int(np.prod(shape)) * dtype.itemsize // 64) * 64
        # By its random part the program recognises the file among those of other processes.
        self.name = f"rollmesh-rows-{secrets.token_hex(8)}"
        self.file = os.memfd_create(self.name)
        try:
            os.truncate(self.file, max(end, 64))
            self.memory = mmap.mmap(self.file, max(end, 64))
        except OSError:
            os.close(self.file)
            raise
        arrays = (np.ndarray(*size[::-1], self.memory, at) for size, at in zip(sizes, self.places))
        self.obs, self.rewards, self.ends, self.actions = arrays

    def description(self):
        return {"pid": os.getpid(), "file": self.file, "name": self.name, "places": self.places}

    def close(self):
        # The memory ends with its last array.
        os.close(self.file)


class LaneGroup:
    """Environments of one kind, one per lane."""

    def __init__(self, request):
        self.envs = made_by(request)
        env, self.lanes = self.envs[0], request["lanes"]
        if isinstance(env, gymnasium.vector.VectorEnv) or not hasattr(env, "step"):
            raise Refused(f"{type(env).__name__} is not a single environment with reset and step")
        spec = getattr(env, "spec", None)
        self.simulator = simulator_of(env)
        if self.simulator:
            key = key_of(request)
            if key not in PROVEN:
                PROVEN[key] = is_proven(self.simulator, env)
            self.simulator = self.simulator if PROVEN[key] else None
        state = "opaque" if getattr(spec, "nondeterministic", False) else "snapshot" if self.simulator else "replay"
        self.translate(env.observation_space, env.action_space, state, request["config"].get("observation_dtype"))

    def translate(self, observation_space, action_space, state, dtype):
        if dtype is not None:
            observation_space = narrowed(observation_space, dtype)
        self.obs, obs, obs_type = translated("observation", observation_space, FlatObservation)
        self.act, act, act_type = translated("action", action_space, JoinedAction)
        self.action_space = action_space
        self.shared = None
        # Without memory to share, as in some sandboxes, rows go through pipes.
        with contextlib.suppress(AttributeError, OSError):
            self.shared = SharedRows(self.lanes, self.obs, self.act)
        self.made = {
            "starts": {"observation": starts_of(observation_space), "action": starts_of(action_space)},
            "spaces": {
                "agent": {"Index": 0},
                "observation": obs,
                "observation_type": obs_type,
                "action": act,
                "action_type": act_type,
            },
            "state": state,
            "shared": self.shared and self.shared.description(),
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
        """Steps lanes with the given actions; without any, takes actions from shared memory and puts the results there."""
        last = first + count
        if not actions and self.shared:
            shared = self.shared
            arrays = (shared.actions[first:last], shared.obs[first:last], shared.rewards[first:last], shared.ends[first:last])
            self.step_lanes(first, *arrays)
            return b""
        actions = np.frombuffer(actions, self.act.dtype).reshape((count, *self.act.shape))
        rows, rewards, ends = self.rows(count), np.empty(count, "<f8"), np.empty(count, "u1")
        self.step_lanes(first, actions, rows, rewards, ends)
        return rows.reshape(-1).view(np.uint8), rewards.tobytes(), ends.tobytes()

    def step_lanes(self, first, actions, rows, rewards, ends):
        put, take, count = self.obs.put, self.act.take, len(actions)
        earned, ended = [0.0] * count, bytearray(count)
        for at, env in enumerate(self.envs[first : first + count]):
            try:
                turn = env.step(take(actions, at))
                if len(turn) != 5:
                    raise TypeError(f"step returned {len(turn)} values, not 5 as in Gymnasium since 0.26")
                obs, reward, terminated, truncated, _ = turn
                put(rows, at, obs)
                earned[at], ended[at] = float(reward), bool(terminated) | bool(truncated) << 1
            except BaseException as error:
                error.lane = first + at
                raise
        rewards[:], ends[:] = earned, ended

    def random_step(self, step):
        """Steps the first lane with a random action; returns its result, and whether the episode is over."""
        if step == 0:
            self.action_space.seed(1)
        obs, reward, terminated, truncated, _ = self.envs[0].step(self.action_space.sample())
        rows = self.rows(1)
        self.obs.put(rows, 0, obs)
        return rows.tobytes() + struct.pack("<d??", reward, terminated, truncated), terminated or truncated

    def layers(self):
        """Returns the first environment, and those that it wraps, outermost first."""
        layers = [self.envs[0]]
        while isinstance(layers[-1], gymnasium.Wrapper):
            layers.append(layers[-1].env)
        return layers

    def save(self, lane):
        return save(self.simulator, self.envs[lane])

    def restore(self, lane, state):
        restore(self.simulator, self.envs[lane], state)
        return b""

    def render(self, lane):
        return picture_of(self.envs[lane])

    def close(self):
        if self.shared:
            self.shared.close()
        for env in self.envs:
            close = getattr(env, "close", None)
            if close:
                close()


def resets_in_same_step(env):
    """Returns whether a vector environment begins the next episode in the step that ends one, and not on request."""
    modes = gymnasium.vector.AutoresetMode
    mode = env.metadata.get("autoreset_mode")
    # Metadata may have the mode's value instead of the mode.
    with contextlib.suppress(ValueError):
        mode = modes(mode)
    if mode in (modes.SAME_STEP, modes.DISABLED):
        return mode == modes.SAME_STEP
    if mode == modes.NEXT_STEP:
        reason = (
            "begins an episode at the step after the last one's end (autoreset_mode NextStep), when the other lanes have moved on"
        )
    else:
        reason = f"does not tell when it begins an episode: its metadata has the autoreset_mode {mode!r}"
    raise Refused(
        f'{type(env).__name__} {reason}: let its autoreset_mode be "SameStep" or "Disabled", or leave vectorize out'
    )


class VectorLaneGroup(LaneGroup):
    """A vector environment of Gymnasium, whose lanes share a generator of random numbers."""

    def __init__(self, request):
        self.envs = made_by(request)
        (env,), self.lanes = self.envs, request["lanes"]
        if not isinstance(env, gymnasium.vector.VectorEnv):
            raise Refused(f'{type(env).__name__} is no gymnasium.vector.VectorEnv: leave vectorize out')
        self.is_same_step = resets_in_same_step(env)
        # First observations of episodes that rollmesh has not begun yet, by lane; None before the first episodes.
        self.begun = None
        dtype = request["config"].get("observation_dtype")
        self.translate(env.single_observation_space, env.single_action_space, "opaque", dtype)

    def rows_of(self, obs):
        return list(gymnasium.vector.utils.iterate(self.envs[0].observation_space, obs))

    def reset(self, lane, seed):
        env = self.envs[0]
        if self.begun is None:
            self.begun = dict(enumerate(self.rows_of(env.reset(seed=seed)[0])))
        if lane not in self.begun:
            mask = np.arange(self.lanes) == lane
            self.begun[lane] = self.rows_of(env.reset(options={"reset_mask": mask})[0])[lane]
        rows = self.rows(1)
        self.obs.put(rows, 0, self.begun.pop(lane))
        return rows.tobytes()

    def step_lanes(self, first, actions, rows, rewards, ends):
        env, space, lanes = self.envs[0], self.envs[0].single_action_space, range(self.lanes)
        if len(actions) != self.lanes:
            raise RuntimeError("the lanes of a vector environment are stepped together")
        utils = gymnasium.vector.utils
        batch = utils.create_empty_array(space, self.lanes)
        batch = utils.concatenate(space, [self.act.take(actions, lane) for lane in lanes], batch)
        obs, found, terminated, truncated, infos = env.step(batch)
        rewards[:], ends[:] = found, np.asarray(terminated, "u1") | np.asarray(truncated, "u1") << 1
        for lane, row in enumerate(self.rows_of(obs)):
            if ends[lane] and self.is_same_step:
                self.begun[lane], row = row, infos["final_obs"][lane]
            self.obs.put(rows, lane, row)

    def render(self, lane):
        env = self.envs[0]
        return framed(env.render()[lane]) if env.render_mode == "rgb_array" else b""
