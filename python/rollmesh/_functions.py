"""Policies, callbacks, mapping and observation functions in Python, as the threads of workers call them."""

import json
import os
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import _json, _native
from ._batch import Array, SampleBatch, of_native, to_column, to_native, view
from ._policy import of_tensors, to_tensors

Agent = int | str


class Worker:
    """The worker that calls a function."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        self.worker_index: int = about["worker_index"]
        self.num_workers: int = about["num_workers"]
        self.recreated_worker: bool = about["recreated_worker"]
        self.policy_config: dict[str, Any] = about["config"]


class Episode:
    """An episode in progress. Hooks may change `custom_metrics`, `hist_data`, and `user_data`, which is written as JSON."""

    def __init__(self, about: Mapping[str, Any], rows: list | None = None, outcomes: list | None = None) -> None:
        self.episode_id: int = about["episode_id"]
        self.env_index: int = about["env_index"]
        self.length: int = about["length"]
        self.total_reward: float = about["total_reward"]
        self.agent_rewards: dict[tuple[Agent, str], float] = {(agent, id): sum_ for agent, id, sum_ in about["agents"]}
        self.custom_metrics: dict[str, float] = about["custom_metrics"]
        self.hist_data: dict[str, list[float]] = about["hist_data"]
        self.user_data: dict[str, Any] = {name: json.loads(text) for name, text in about["user_data"].items()}
        self._policies = {agent: id for agent, id, _ in about["agents"]}
        self._obs = agents_rows(rows or [])
        self._outcomes = {agent: outcome for agent, *outcome in outcomes or []}

    def get_agents(self) -> list[Agent]:
        """Returns the agents in order of appearance."""
        return list(self._policies)

    def policy_for(self, agent_id: Agent = 0) -> str | None:
        """Returns the policy of an agent that has appeared."""
        return self._policies.get(agent_id)

    def last_observation_for(self, agent_id: Agent = 0) -> Array | None:
        """Returns the agent's observation of the latest step."""
        return self._obs.get(agent_id)

    def last_reward_for(self, agent_id: Agent = 0) -> float:
        """Returns the agent's reward of the latest step."""
        return self._outcomes.get(agent_id, (0.0,))[0]

    def is_terminated(self, agent_id: Agent = 0) -> bool:
        return self._outcomes.get(agent_id, (0.0, False, False))[1]

    def is_truncated(self, agent_id: Agent = 0) -> bool:
        return self._outcomes.get(agent_id, (0.0, False, False))[2]

    def _written(self) -> str:
        """Returns the values that a hook may have changed."""
        numbers = {name: float(value) for name, value in self.custom_metrics.items()}
        lists = {name: [float(value) for value in values] for name, values in self.hist_data.items()}
        texts = {name: _json.dumps(value, f"user_data.{name}", allow_nan=True) for name, value in self.user_data.items()}
        return json.dumps({"custom_metrics": numbers, "hist_data": lists, "user_data": texts}, allow_nan=False)


class Callbacks:
    """Hooks of sampling and learning, which a subclass overrides: RLlib's `DefaultCallbacks`.

    They are called with keyword arguments: declare the ones that you need, and `**kwargs`.
    """

    def on_episode_created(self, *, episode: Episode, worker: Worker, env_index: int, **kwargs: Any) -> None:
        """Called before an episode begins."""

    def on_episode_start(self, *, episode: Episode, worker: Worker, env_index: int, **kwargs: Any) -> None:
        """Called with the first observations of an episode."""

    def on_episode_step(self, *, episode: Episode, worker: Worker, env_index: int, **kwargs: Any) -> None:
        """Called after each step of an episode."""

    def on_episode_end(
        self, *, episode: Episode, worker: Worker, env_index: int, error: str | None, **kwargs: Any
    ) -> None:
        """Called when an episode has ended, or was lost to an error of its environment."""

    def on_postprocess_trajectory(
        self,
        *,
        episode: Episode,
        worker: Worker,
        agent_id: Agent,
        policy_id: str,
        postprocessed_batch: SampleBatch,
        **kwargs: Any,
    ) -> SampleBatch | None:
        """Called with an agent's rows before they join a sample; may return others, or change those."""

    def on_sample_end(self, *, worker: Worker, samples: Any, **kwargs: Any) -> Any:
        """Called with every sample; may return another one, or change it."""

    def on_learn_on_batch(self, *, policy_id: str, train_batch: SampleBatch, **kwargs: Any) -> SampleBatch | None:
        """Called before a policy learns; may return other rows, or change those."""


_CALLBACKS = "give a subclass of rollmesh.Callbacks, an object of one, or a function that returns one"
_HOOKS = [name for name in vars(Callbacks) if name.startswith("on_")]


class Hooks:
    """A user's callbacks, as the extension module calls them."""

    def __init__(self, callbacks: Any) -> None:
        if not isinstance(callbacks, Callbacks):
            raise TypeError(f"callbacks are of {type(callbacks).__name__}: {_CALLBACKS}")
        if unknown := [name for name in dir(callbacks) if name.startswith("on_") and name not in _HOOKS]:
            raise TypeError(f"there is no hook '{unknown[0]}': there are {', '.join(_HOOKS)}")
        self.callbacks = callbacks
        own = {name: getattr(callbacks, name) for name in _HOOKS}
        usual = (None, *(getattr(Callbacks, name) for name in _HOOKS))
        self.hooks = {name for name, hook in own.items() if getattr(hook, "__func__", hook) not in usual}

    def episode(self, name: str, about: str, worker: str, rows: list, outcomes: str, error: str | None) -> str:
        episode = Episode(json.loads(about), rows, json.loads(outcomes))
        more = {"error": error} if name == "on_episode_end" else {}
        hook = getattr(self.callbacks, name)
        hook(episode=episode, worker=Worker(json.loads(worker)), env_index=episode.env_index, **more)
        return episode._written()

    def rows(self, name: str, batch: _native.Batch, arguments: str) -> _native.Batch:
        given = json.loads(arguments)
        for key, kind in (("worker", Worker), ("episode", Episode)):
            if key in given:
                given[key] = kind(given[key])
        argument = {"on_sample_end": "samples", "on_learn_on_batch": "train_batch"}.get(name, "postprocessed_batch")
        rows = of_native(batch)
        changed = getattr(self.callbacks, name)(**{argument: rows}, **given)
        return to_native(rows if changed is None else changed)


class PolicyHost:
    """A user's policy, as the extension module calls it."""

    def __init__(self, kind: Callable[..., Any], about: str) -> None:
        from ._vector import space

        description = json.loads(about)
        spaces = description["spaces"]
        obs_space = space(spaces["observation"], spaces["observation_type"])
        action_space = space(spaces["action"], spaces["action_type"])
        self.policy = kind(obs_space, action_space, description["config"])
        self.action_type = spaces["action_type"]
        initial = self._method("get_initial_state", list)()
        self.initial = [np.asarray(state, dtype="<f4").ravel() for state in initial]
        self.state_lens = [len(state) for state in self.initial]
        self.initial_state = joined(self.initial)
        self.postprocesses = hasattr(self.policy, "postprocess_trajectory")
        self.learns = hasattr(self.policy, "learn_on_batch")
        self.names: dict[str, str] = {}

    def _method(self, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        return getattr(self.policy, name, default)

    def act(self, obs: Any, state: bytes, explore: bool) -> tuple:
        rows = view(obs)
        states, at = [], 0
        flat = np.frombuffer(state, dtype="<f4").reshape(len(rows), sum(self.state_lens))
        for length in self.state_lens:
            states.append(flat[:, at : at + length])
            at += length
        actions, states, extras = self.policy.compute_actions(rows, states, explore=explore)
        numbers = (np.asarray(extras.get(name, np.zeros(len(rows)))) for name in ("action_logp", "vf_preds"))
        return to_column("actions", np.asarray(actions, dtype=self.action_type)), *map(bytes_of, numbers), joined(states)

    def tensors(self) -> list:
        own = self._method("get_weights", dict)()
        tensors, _ = to_tensors(own)
        # Layers are counted without gaps, and are returned under their original names.
        self.names = dict(zip(of_tensors(tensors), own, strict=True))
        return tensors

    def set_tensors(self, tensors: list) -> None:
        weights = of_tensors([(name, shape, bytes(values)) for name, shape, values in tensors])
        if unlike := set(weights) ^ set(self.names):
            raise ValueError(f"weights have or lack {', '.join(sorted(unlike))}: they are {', '.join(self.names) or 'none'}")
        if weights:
            self.policy.set_weights({self.names[name]: array for name, array in weights.items()})

    def postprocess(self, batch: _native.Batch) -> _native.Batch:
        return to_native(self.policy.postprocess_trajectory(of_native(batch)))

    def learn(self, batch: _native.Batch) -> dict[str, float]:
        learned = self.policy.learn_on_batch(of_native(batch)) or {}
        return {name: float(value) for name, value in learned.items()}


def joined(states: list) -> bytes:
    """Returns recurrent states, row by row, one after the other."""
    return bytes_of(np.concatenate(states, axis=-1)) if states else b""


def bytes_of(array: Any) -> bytes:
    return np.asarray(array, dtype="<f4").tobytes()


def agents_rows(rows: list) -> dict[Agent, Array]:
    return {agent: view(row)[0] for agent, row in rows}


def mapped_by(map: Callable[..., str]) -> Callable[..., str]:
    def mapped(agent: Agent, about: str, worker: str) -> str:
        policy = map(agent, Episode(json.loads(about)), worker=Worker(json.loads(worker)))
        if not isinstance(policy, str):
            raise TypeError(f"it returned {policy!r}, not the name of a policy")
        return policy

    return mapped


def rewritten_by(rewrite: Callable[..., Mapping[Agent, Any]]) -> Callable[..., tuple[str, list]]:
    def rewritten(rows: list, about: str, worker: str) -> tuple[str, list]:
        episode, obs = Episode(json.loads(about), rows), agents_rows(rows)
        new = rewrite({agent: row.copy() for agent, row in obs.items()}, worker=Worker(json.loads(worker)), episode=episode)
        columns = []
        for agent, old in obs.items():
            row = np.asarray(new[agent], dtype=old.dtype)
            if row.shape != old.shape:
                raise ValueError(f"the observation of agent {agent} has the shape {row.shape}; return one of {old.shape}")
            columns.append(to_column("obs", row[None]))
        return episode._written(), columns

    return rewritten


def named(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str, Any]]]:
    """Returns settings with names instead of Python functions and classes, and the functions by kind and name."""
    settings, functions = dict(settings), []

    def register(kind: str, function: Any, call: Any) -> str:
        name = getattr(function, "__qualname__", type(function).__qualname__)
        name = f"python:{name}:{len(functions)}"
        functions.append((kind, name, call))
        return name

    for kind, wrap in (("policy_mapping_fn", mapped_by), ("observation_fn", rewritten_by)):
        if callable(function := settings.get(kind)):
            settings[kind] = register(kind, function, wrap(function))
    callbacks = settings.get("callbacks") or []
    callbacks = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
    for at, given in enumerate(callbacks):
        if not isinstance(given, str):
            if not isinstance(given, Callbacks) and not callable(given):
                raise TypeError(f"callbacks are {given!r}: {_CALLBACKS}")
            make = (lambda own=given: own) if isinstance(given, Callbacks) else given
            callbacks[at] = register("callbacks", given, lambda make=make: Hooks(make()))
    if callbacks:
        settings["callbacks"] = callbacks
    if isinstance(policies := settings.get("policies"), Mapping):
        settings["policies"] = {
            id: {**spec, "policy": register("policies", kind, lambda about, kind=kind: PolicyHost(kind, about))}
            if isinstance(spec, Mapping) and callable(kind := spec.get("policy"))
            else spec
            for id, spec in policies.items()
        }
    return settings, functions


def described(error: BaseException) -> str:
    """Formats an exception in one line, with the user's innermost call."""
    here = os.path.dirname(__file__)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if os.path.dirname(frame.filename) != here]
    place = f" (at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def without_functions(owner: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings without Python functions, which runs and evaluations in other processes cannot call."""
    settings, functions = named(settings)
    if functions:
        names = ", ".join(name.split(":")[1] for _, name, _ in functions)
        raise _native.ConfigError(f"{owner} cannot call {names}: RolloutWorker and WorkerGroup call Python functions")
    return settings
