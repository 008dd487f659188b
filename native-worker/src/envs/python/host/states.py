

# --- States of open episodes, and what tells whether two machines compute the same bits ---


class Arcade:
    """The state of an emulator, with its random numbers."""

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
    """What MuJoCo integrates, and what its last step has left that environments read before the next one."""

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
        values[:], at = np.frombuffer(state, "<f8", values.size), values.nbytes
        mujoco.mj_setState(env.model, env.data, values, kind)
        for name in cls.LEFT:
            left = getattr(env.data, name)
            left.reshape(-1)[:] = np.frombuffer(state, "<f8", left.size, at)
            at += left.nbytes


def simulator_of(env):
    """Returns how the state of an environment is saved, None for one whose wrappers or simulator may keep more than that.

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


def save(simulator, env):
    steps = [limit._elapsed_steps for limit in time_limits(env)]
    return struct.pack(f"<{len(steps)}Q", *steps) + simulator.save(env.unwrapped)


def restore(simulator, env, state):
    limits = time_limits(env)
    # An environment may be restored before its first reset.
    env.reset(seed=0)
    simulator.restore(env.unwrapped, state[8 * len(limits) :])
    for limit, steps in zip(limits, struct.unpack_from(f"<{len(limits)}Q", state)):
        limit._elapsed_steps = steps


def is_proven(simulator, env):
    """Returns whether an environment continues bit-identically from its state."""
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(16)]

    def steps(actions):
        return [(np.asarray(obs).tobytes(), reward, ends) for obs, reward, *ends, _ in map(env.step, actions)]

    env.reset(seed=1)
    steps(actions[:8])
    state = save(simulator, env)
    wanted = steps(actions[8:])
    env.reset(seed=2)
    steps(actions[:3])
    restore(simulator, env, state)
    return steps(actions[8:]) == wanted


def episodes_hash(order):
    """Returns the hash of some steps with random actions: observations, rewards and ends, as rows hold them."""
    digest = hashlib.blake2b(digest_size=8)
    try:
        digest.update(order.reset(0, 1))
        for step in range(GOLDEN_STEPS):
            turn, is_over = order.random_step(step)
            digest.update(turn)
            if is_over:
                digest.update(order.reset(0, 2 + step))
    except Exception as error:
        # Such as for actions that a mask forbids: the same on every machine.
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


def fingerprint_of(order):
    """Names what decides the bits of an environment: versions of packages, and the hash of random episodes."""
    versions = {"Python": sys.version.split()[0]}
    for env in order.layers():
        versions |= packages_of(env)
    text = ", ".join(f"{name} {versions[name]}" for name in sorted(versions, key=str.lower))
    return text if order.made.get("state") == "opaque" else f"{text}, random episodes {episodes_hash(order)}"
