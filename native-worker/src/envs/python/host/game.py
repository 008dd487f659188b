

# --- Games of PettingZoo ---


class Game:
    """An environment of PettingZoo, whose agents act simultaneously (`ParallelEnv`) or sequentially (`AECEnv`)."""

    def __init__(self, request):
        unused = sorted(name for name in VECTOR_SETTINGS if request["config"].get(name) is not None)
        if unused:
            raise Refused(f"{request['env']} is stepped by itself: remove {' and '.join(unused)} from env_config")
        (self.env,) = made_by(request)
        if not hasattr(self.env, "possible_agents") or not hasattr(self.env, "step"):
            raise Refused(f"{type(self.env).__name__} is no environment of PettingZoo with possible_agents, reset and step")
        self.acts_in_turn = hasattr(self.env, "observe")
        self.agents = {str(agent): agent for agent in self.env.possible_agents}
        self.obs, self.act, self.ended, self.is_over, described = {}, {}, set(), True, []
        for name, agent in self.agents.items():
            obs_space, act_space = self.env.observation_space(agent), self.env.action_space(agent)
            self.obs[name], obs, obs_type = translated(f"{name} observation", obs_space, FlatObservation)
            self.act[name], act, act_type = translated(f"{name} action", act_space, JoinedAction)
            described.append(
                {
                    "agent": {"Name": name},
                    "observation": obs,
                    "observation_type": obs_type,
                    "action": act,
                    "action_type": act_type,
                }
            )
        self.made = {"agents": described}

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
            # A reward is that of this step alone; an agent that has ended reports that once, with its last observation.
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
        """Returns observations and outcomes of agents, in the form of the core's turns."""
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
        """Returns the actions of agents, from the form of the core's rows."""
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

    def random_step(self, step):
        """Lets agents that may act do so at random; returns the turn that follows, and whether the episode is over."""
        env = self.env
        agents = [env.agent_selection] if self.acts_in_turn else env.agents
        if step == 0:
            # Kept, since a game may recreate its spaces at each call.
            self.action_spaces = {agent: env.action_space(agent) for agent in env.possible_agents}
            for at, space in enumerate(self.action_spaces.values()):
                space.seed(at)
        actions = {agent: self.action_spaces[agent].sample() for agent in agents}
        turn = self.turn(*(self.one_acts(actions) if self.acts_in_turn else self.all_act(actions)))
        return turn, self.is_over

    def layers(self):
        return [self.env, self.env.unwrapped] if hasattr(self.env, "unwrapped") else [self.env]

    def render(self, _lane):
        return picture_of(self.env)

    def close(self):
        close = getattr(self.env, "close", None)
        if close:
            close()
