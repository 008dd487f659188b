

# --- States of open episodes, and the fingerprint by which two machines compare their bits ---


class Arcade:
    """The state of an emulator, with its random numbers."""

    PACKAGE = "ale_py"

    @staticmethod
    def save(env):
        return env.clone_state(include_rng=True).__getstate__()

    @staticmethod
    def restore(env, state):
        kind = type(env.clone_state())
        made = kind.__new__(kind)
        made.__setstate__(bytes(state))
        env.restore_state(made)


class Mujoco:
    """The state that MuJoCo integrates, and results of its last step that environments read before the next one."""

    PACKAGE = "mujoco"
    LEFT = ("xpos", "xquat", "xmat", "xipos", "ximat", "geom_xpos", "geom_xmat", "site_xpos", "site_xmat")
    LEFT += ("subtree_com", "cinert", "cvel", "cfrc_ext", "qfrc_actuator", "sensordata")

    @staticmethod
    def integrated(env):
        mujoco = sys.modules["mujoco"]
        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        return mujoco, kind, np.empty(mujoco.mj_stateSize(env.model, kind))

    @classmethod
    def save(cls, env):
        mujoco, kind, values = cls.integrated(env)
        mujoco.mj_getState(env.model, env.data, values, kind)
        return b"".join([values.tobytes(), *(getattr(env.data, name).tobytes() for name in cls.LEFT)])

    @classmethod
    def restore(cls, env, state):
        mujoco, kind, values = cls.integrated(env)
        length = values.nbytes + sum(getattr(env.data, name).nbytes for name in cls.LEFT)
        if len(state) != length:
            raise ValueError(f"the state has {len(state)} bytes, this model's have {length}")
        values[:], at = np.frombuffer(state, "<f8", values.size), values.nbytes
        mujoco.mj_setState(env.model, env.data, values, kind)
        for name in cls.LEFT:
            left = getattr(env.data, name)
            left.reshape(-1)[:] = np.frombuffer(state, "<f8", left.size, at)
            at += left.nbytes


def simulator_of(env):
    """Returns the simulator that saves an environment's state, None if wrappers or simulator may have further state.

    ALE leaves out the last action, which sticky actions repeat.
    """
    wrappers = gymnasium.wrappers
    while isinstance(env, gymnasium.Wrapper):
        if type(env) not in (wrappers.TimeLimit, wrappers.OrderEnforcing, wrappers.PassiveEnvChecker):
            return None
        env = env.env
    module = type(env).__module__
    if module.startswith("gymnasium.envs.mujoco."):
        return Mujoco
    if module.startswith("ale_py.") and isinstance(getattr(env, "_frameskip", None), int):
        return Arcade if env.ale.getFloat("repeat_action_probability") == 0 else None
    return None


def time_limits(env):
    limits = []
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            limits.append(env)
        env = env.env
    return limits


def origin_of(simulator):
    """Returns the name of the simulator and its version, whose states other versions may read as something else."""
    return f"{simulator.PACKAGE} {sys.modules[simulator.PACKAGE].__version__}".encode()


def save(simulator, env):
    """Returns the state of an environment: the simulator and its version, lengths, steps of time limits, the simulator's state."""
    steps = [limit._elapsed_steps for limit in time_limits(env)]
    origin, state = origin_of(simulator), simulator.save(env.unwrapped)
    return struct.pack(f"<BBI{len(steps)}Q", len(origin), len(steps), len(state), *steps) + origin + state


def restore(simulator, env, state):
    """Continues from a state of this simulator, and checks that the environment then has exactly that state."""
    state, limits, origin = bytes(state), time_limits(env), origin_of(simulator)
    layout = struct.Struct(f"<BBI{len(limits)}Q")
    if len(state) < layout.size:
        raise ValueError(f"the state of a simulator has {len(state)} bytes, at least {layout.size} are needed")
    named, count, length, *steps = layout.unpack_from(state)
    found, rest = state[layout.size :][:named], state[layout.size + named :]
    if count != len(limits) or found != origin:
        raise ValueError(
            f"the state is of {found[:80]!r} with {count} time limits, here are {origin.decode()} and {len(limits)}"
        )
    # An environment may be restored before its first reset.
    env.reset(seed=0)
    if len(rest) != length:
        raise ValueError(f"the state of the simulator has {len(rest)} bytes of {length}")
    simulator.restore(env.unwrapped, rest)
    for limit, elapsed in zip(limits, steps):
        limit._elapsed_steps = elapsed
    if save(simulator, env) != state:
        raise ValueError("the simulator has another state than the one that it was given")


def is_proven(simulator, env):
    """Returns whether an environment continues bit-identically from its state, to the same observations and the same state."""
    try:
        return continues(simulator, env)
    except Exception:
        # For example a simulator without the functions that this needs: its episodes are replayed.
        return False


def continues(simulator, env):
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(16)]

    def steps(actions):
        return [(np.asarray(obs).tobytes(), reward, ends) for obs, reward, *ends, _ in map(env.step, actions)]

    env.reset(seed=1)
    steps(actions[:8])
    state = save(simulator, env)
    wanted = steps(actions[8:]), save(simulator, env)
    env.reset(seed=2)
    steps(actions[:3])
    restore(simulator, env, state)
    return (steps(actions[8:]), save(simulator, env)) == wanted


def episodes_hash(group):
    """Returns the hash of some steps with random actions: observations, rewards and ends, as rows hold them."""
    digest = hashlib.blake2b(digest_size=8)
    try:
        digest.update(group.reset(0, 1))
        for step in range(GOLDEN_STEPS):
            turn, is_over = group.random_step(step)
            digest.update(turn)
            if is_over:
                digest.update(group.reset(0, 2 + step))
    except Exception as error:
        # For example for actions that a mask forbids: the same error on every machine.
        digest.update(type(error).__name__.encode())
    return digest.hexdigest()


def packages_of(env):
    """Returns the versions of the distributions that an environment's own modules belong to or import."""
    used = {"numpy", "gymnasium"}
    for module in {kind.__module__ for kind in type(env).__mro__} - {"builtins", "typing", "gymnasium.core"}:
        imported = (value.__name__ for value in vars(sys.modules[module]).values() if inspect.ismodule(value))
        used |= {name.partition(".")[0] for name in (module, *imported)}
    versions = {}
    for name in used:
        # A module without a distribution has no version; its episodes show what it computes.
        with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError):
            versions[name] = importlib.metadata.version(name)
    return versions


def fingerprint_of(group, twin):
    """Returns the fingerprint of an environment: versions of packages, and the hash of random episodes.

    The hash is left out if the twin, which was made like it, plays other episodes: it would differ on every machine.
    """
    versions = {"Python": sys.version.split()[0]}
    for env in group.layers():
        versions |= packages_of(env)
    text = ", ".join(f"{name} {versions[name]}" for name in sorted(versions, key=str.lower))
    if group.made.get("state") == "opaque":
        return text
    found = episodes_hash(group)
    return f"{text}, random episodes {found}" if episodes_hash(twin) == found else text
