"""Rollout workers and groups of them."""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from typing import Any, Literal, Self, TypeVar, overload

from . import _native, _program
from ._batch import Batch, Sampled, names_of, of_native, to_native
from ._functions import mapped_by, named
from ._policy import Policy, PolicyMap, Weights, of_policies, space_of, to_policies

T = TypeVar("T")


def settings(env: Any, config: Mapping[str, Any] | None, more: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings of a mapping and of keyword arguments, which take precedence. Infinity is no limit."""
    if isinstance(env, Mapping):
        if config is not None:
            raise TypeError("env and config are both mappings of settings: give one")
        config, env = env, None
    if config is not None and not isinstance(config, Mapping):
        raise TypeError(f"config is of {type(config).__name__}: it is a mapping of settings")
    merged = {**(config or {}), **more}
    if env is not None:
        merged["env"] = env
    if not isinstance(env := merged.get("env"), str | None):
        raise TypeError(f"env is {env!r}: it is a name, such as 'CartPole-v1', 'gym:CartPole-v1' or 'py:module:Class'")
    if isinstance(stop := merged.get("stop"), Mapping):
        merged["stop"] = _limited(stop)
    return _limited(merged)


def _limited(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings in which infinity means no limit."""
    no_limit = {"env_steps": 2**63 - 1}
    is_infinite = {name: isinstance(value, float) and value == math.inf for name, value in settings.items()}
    return {name: no_limit.get(name) if is_infinite[name] else value for name, value in settings.items()}


def seconds(timeout: float | None) -> float:
    """Returns a timeout for the extension module; None means no timeout."""
    return math.inf if timeout is None else timeout


def within(timeout: float | None, wait: Callable[[float], Any]) -> Any:
    """Calls a function that waits for some seconds until it has a result, a second at a time: after Ctrl-C it soon ends.

    The function returns early if it has nothing to wait for.
    """
    now = time.monotonic()
    deadline = now + seconds(timeout)
    while True:
        left, begun = deadline - now, now
        span = min(max(left, 0.0), 1.0)
        found, now = wait(span), time.monotonic()
        if found or left <= 1.0 or now - begun < span / 2:
            return found


class RolloutWorker:
    """Steps environments with policies and returns the experience as batches.

    The settings are those of `RolloutConfig` under RLlib's names, as keyword arguments or as a mapping. `policy_mapping_fn`,
    `observation_fn`, `callbacks` and the `policy` of an entry of `policies` may be functions and classes instead of names.
    """

    def __init__(self, env: str | Mapping[str, Any] | None = None, config: Mapping[str, Any] | None = None, **more: Any):
        _program.prepare(env)
        all_, functions = named(settings(env, config, more))
        self._begin(_native.Worker(all_, functions), Counter(), functions, f"{all_.get('env')!r}")

    def _begin(self, worker: _native.Worker, calls: Counter[str], functions: list, name: str) -> Self:
        self._worker, self._calls, self._functions, self._name = worker, calls, functions, name
        return self

    def __repr__(self) -> str:
        return f"RolloutWorker({self._name})"

    def sample(self) -> Sampled:
        """Returns the next sample. After Ctrl-C the next call continues the sample that has begun; a group's worker discards it."""
        return of_native(self._worker.sample())

    def sample_with_count(self) -> tuple[Sampled, int]:
        batch = self.sample()
        return batch, batch.env_steps()

    def sample_and_learn(self) -> dict[str, Any]:
        """Samples, and lets the policies learn from the sample."""
        return self.learn_on_batch(self.sample())

    def learn_on_batch(self, samples: Batch) -> dict[str, Any]:
        """Lets every policy that is trained learn from its rows; returns their metrics by policy."""
        return self._worker.learn_on_batch(to_native(samples))

    def get_filters(self) -> dict[str, dict[str, Any] | None]:
        """Returns the statistics of each policy's observations, None without an observation filter: `count`, `mean`, `std`."""
        return self._worker.get("filters")

    def get_metrics(self) -> dict[str, Any]:
        """Returns the episodes that have ended since the last call, and a summary of them."""
        return self._worker.get("metrics")

    @property
    def config(self) -> dict[str, Any]:
        return self._worker.get("config")

    def creation_args(self) -> dict[str, Any]:
        """Returns the settings."""
        return self.config

    def ping(self) -> str:
        """Returns "pong" once the worker has answered."""
        self._worker.get("ping")
        return "pong"

    def get_host(self) -> str:
        """Returns the name of the worker's machine."""
        return self._worker.get("hostname")

    def get_node_ip(self) -> str:
        """Returns the address of the worker's machine."""
        return self._worker.get("node_ip")

    @property
    def reproducible(self) -> bool:
        """False if the rows depend on Python functions, which may depend on anything."""
        return not self._functions

    @property
    def num_envs(self) -> int:
        return self.config["num_envs"]

    @property
    def policy_ids(self) -> list[str]:
        return list(self._worker.get("spaces"))

    @property
    def policy_map(self) -> PolicyMap:
        return PolicyMap(self)

    def get_policy(self, policy_id: str = "default_policy") -> Policy:
        return Policy(self._worker, policy_id, self._calls)

    def apply(self, func: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Calls a function with this worker."""
        return func(self, *args, **kwargs)

    def for_policy(self, func: Callable[..., T], policy_id: str = "default_policy", **kwargs: Any) -> T:
        """Calls a function with a policy."""
        return func(self.get_policy(policy_id), **kwargs)

    def foreach_policy(self, func: Callable[..., T], **kwargs: Any) -> list[T]:
        """Calls a function with each policy and its id."""
        return [func(policy, id, **kwargs) for id, policy in self.policy_map.items()]

    def foreach_policy_to_train(self, func: Callable[..., T], **kwargs: Any) -> list[T]:
        """Calls a function with each policy that is trained and its id."""
        return [func(self.get_policy(id), id, **kwargs) for id in sorted(self.get_policies_to_train())]

    def get_policies_to_train(self, batch: Batch | None = None) -> set[str]:
        """Returns the policies that are trained, on this batch if there is one."""
        return set(self._worker.policies_to_train(None if batch is None else to_native(batch)))

    def is_policy_to_train(self, policy_id: str, batch: Batch | None = None) -> bool:
        return policy_id in self.get_policies_to_train(batch)

    def set_is_policy_to_train(self, is_policy_to_train: Iterable[str] | None) -> None:
        """Sets the ids of the policies that are trained; None for all."""
        if callable(is_policy_to_train):
            raise TypeError(f"is_policy_to_train is {is_policy_to_train!r}: give the ids of the policies that are trained")
        ids = None if is_policy_to_train is None else names_of("is_policy_to_train", is_policy_to_train)
        self._worker.set_policies_to_train(ids)

    def set_policy_mapping_fn(self, policy_mapping_fn: Callable[..., str]) -> None:
        """Maps agents of episodes that begin from now on by `policy_mapping_fn(agent_id, episode, worker)`."""
        if not callable(policy_mapping_fn):
            raise TypeError(f"policy_mapping_fn is {policy_mapping_fn!r}: give a function that returns a policy's name")
        self._worker.set_policy_mapping_fn(mapped_by(policy_mapping_fn))
        self._functions.append(policy_mapping_fn)

    def add_policy(self, policy_id: str, kind: str, config: Mapping[str, Any] | None = None) -> Policy:
        """Adds a policy of a registered kind, for the spaces of the others."""
        self._worker.add_policy(policy_id, kind, dict(config or {}))
        return self.get_policy(policy_id)

    def remove_policy(self, policy_id: str) -> None:
        self._worker.remove_policy(policy_id)

    def export_policy(self, policy_id: str = "default_policy") -> bytes:
        """Returns a policy for `import_policy` of any worker: its kind, settings, weights and filter."""
        return self._worker.export_policy(policy_id)

    def import_policy(self, state: bytes, policy_id: str = "default_policy") -> Policy:
        """Imports a policy of `export_policy`: an existing one gets its weights and filter, a new one is added."""
        self._worker.import_policy(policy_id, state)
        return self.get_policy(policy_id)

    def get_weights(self, policies: Iterable[str] | None = None) -> dict[str, Weights]:
        """Returns the weights by policy, under PyTorch's names."""
        return of_policies(self._worker.weights(None if policies is None else names_of("policies", policies)))

    def set_weights(self, weights: Mapping[str, Any], global_vars: Mapping[str, int] | None = None) -> None:
        """Sets the weights by policy, or those of the default policy: of all or of none."""
        self._worker.set_weights(to_policies(weights, self._worker.weights), (global_vars or {}).get("timestep"))

    def get_state(self) -> bytes:
        """Returns policies, filters, progress, and the state of each environment."""
        return self._worker.get_state()

    def set_state(self, state: bytes) -> None:
        """Resumes from a state of `get_state`."""
        self._worker.set_state(state)

    def stop(self) -> None:
        """Ends the worker. A call that Ctrl-C has interrupted is waited for at most a second."""
        self._worker.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class WorkerGroup:
    """A local worker and others, commanded together: on threads, in processes, or wherever `rollmesh worker` runs.

    `num_workers` counts the workers besides the local one; without any the local one samples. Other settings are those of
    `RolloutConfig`, and of the group, as keyword arguments or in the mapping: `sampling_mode` ("synchronous",
    "asynchronous" with `batch_env_steps`, "deadline" with `deadline_s`; both with `max_staleness`),
    `restart_failed_env_runners`, `ignore_env_runner_failures`, `max_num_env_runner_restarts`,
    `delay_between_env_runner_restarts_s`, `env_runner_health_probe_timeout_s`, `env_runner_restore_timeout_s`,
    `in_evaluation`, `listen`, `dashboard` (true serves one at `dashboard_url`), `page` (the folder of the dashboard's
    page, whose tabs can join by the link of `invite`). The wheel has no page: `page` names the folder that
    `cargo xtask page` has written. `None` and infinity are no limit; the delay is a finite number.
    """

    _LIMITS = {
        "max_staleness": 2**64 - 1,
        "deadline_s": math.inf,
        "max_num_env_runner_restarts": 2**32 - 1,
        "env_runner_health_probe_timeout_s": math.inf,
        "env_runner_restore_timeout_s": math.inf,
    }
    _SETTINGS = (
        *_LIMITS,
        "sampling_mode",
        "batch_env_steps",
        "restart_failed_env_runners",
        "ignore_env_runner_failures",
        "delay_between_env_runner_restarts_s",
        "in_evaluation",
        "listen",
        "dashboard",
        "page",
    )

    def __init__(
        self,
        env: str | Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        num_workers: int | None = None,
        local_worker: bool | None = None,
        placement: Literal["threads", "processes", "remote"] | None = None,
        **more: Any,
    ) -> None:
        _program.prepare(env)
        all_, functions = named(settings(env, config, more))
        # An argument goes before the mapping's setting.
        in_config = all_.pop("num_workers", 0), all_.pop("local_worker", True), all_.pop("placement", "threads")
        num_workers = in_config[0] if num_workers is None else num_workers
        # Without other workers there is a local one in any case.
        self._has_local = num_workers == 0 or (in_config[1] if local_worker is None else local_worker)
        placement = placement or in_config[2]
        if functions and placement != "threads":
            names = ", ".join(name.split(":")[1] for _, name, _ in functions)
            raise _native.ConfigError(f"{names} can be called in this process only: set placement to 'threads'")
        own = {name: all_.pop(name) for name in self._SETTINGS if name in all_}
        own |= {name: most for name, most in self._LIMITS.items() if own.get(name, 0) is None}
        self._group = _native.Group(all_, num_workers, self._has_local, {**own, "placement": placement}, functions)
        self._functions = functions
        # Calls of `foreach_worker_async` that have not been fetched, with their workers' ids.
        self._thread, self._in_flight = futures.ThreadPoolExecutor(1, "foreach_worker_async"), list[tuple[int, futures.Future]]()
        self._calls: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._name = f"{all_.get('env')!r}, num_workers={num_workers}, placement={placement!r}"

    def __repr__(self) -> str:
        return f"WorkerGroup({self._name})"

    def _member(self, id: int) -> RolloutWorker:
        made, worker = RolloutWorker.__new__(RolloutWorker), self._group.worker(id)
        return made._begin(worker, self._calls[id], self._functions, f"worker {id} of {self!r}")

    def local_worker(self) -> RolloutWorker | None:
        """Returns the local worker; None if there is none."""
        return self._member(0) if self._has_local else None

    @property
    def local_env_runner(self) -> RolloutWorker | None:
        """The local worker; None if there is none."""
        return self.local_worker()

    def foreach_worker(
        self, func: Callable[[RolloutWorker], T], *, local_worker: bool = True, remote_worker_ids: Iterable[int] | None = None
    ) -> list[T]:
        """Calls a function with each healthy worker, one after the other, wherever these run: the local one first.

        The function runs in this process, and what it calls of a worker is executed by that worker.
        `synchronous_parallel_sample` lets all sample at the same time. `local_worker=False` leaves the local worker out. A
        worker that is lost meanwhile has no result, unless `remote_worker_ids` selects the other workers: then a
        `LostWorkerError` is raised.
        """
        return self.foreach_worker_with_id(
            lambda _, worker: func(worker), local_worker=local_worker, remote_worker_ids=remote_worker_ids
        )

    def foreach_worker_with_id(
        self, func: Callable[[int, RolloutWorker], T], *, local_worker: bool = True, remote_worker_ids: Iterable[int] | None = None
    ) -> list[T]:
        """Does the same as `foreach_worker`, with the worker's id, 0 for the local one."""
        ids = self.healthy_worker_ids() if remote_worker_ids is None else list(remote_worker_ids)
        results = []
        for id in [0, *ids] if local_worker and self._has_local else ids:
            try:
                results.append(func(id, self._member(id)))
            except _native.LostWorkerError:
                if remote_worker_ids is not None:
                    raise
        return results

    def foreach_worker_async(self, func: Callable[[RolloutWorker], Any], *, remote_worker_ids: Iterable[int] | None = None) -> int:
        """Begins to call a function with each healthy worker but the local one; returns the number of calls that began.

        A thread of this process makes the calls one after the other, in between those of other methods.
        `fetch_ready_async_reqs` returns their results. Workers with two calls that have not been fetched are left out.
        """
        healthy = self.healthy_worker_ids()
        ids = healthy if remote_worker_ids is None else list(remote_worker_ids)
        begun = Counter(id for id, _ in self._in_flight)
        free = [id for id in ids if begun[id] < 2]
        self._in_flight += [(id, self._thread.submit(func, self._member(id))) for id in free]
        return len(free)

    def fetch_ready_async_reqs(self, *, timeout_seconds: float | None = 0.0) -> list[tuple[int, Any]]:
        """Returns the workers' ids and results of the calls that have ended, in their order.

        With a timeout it waits until all have, with None for ever. A lost worker has no result. The error of another call is
        raised; results that are ready then are returned by the next `fetch_ready_async_reqs`.
        """
        futures.wait([call for _, call in self._in_flight], timeout_seconds)
        ready = [(id, call) for id, call in self._in_flight if call.done()]
        errors = {id_call: id_call[1].exception() for id_call in ready}
        for id_call, error in errors.items():
            if error is not None and not isinstance(error, _native.LostWorkerError):
                self._in_flight.remove(id_call)
                raise error
        self._in_flight = [id_call for id_call in self._in_flight if id_call not in errors]
        return [(id, call.result()) for (id, call), error in errors.items() if error is None]

    def num_in_flight_async_reqs(self) -> int:
        """Returns the number of calls of `foreach_worker_async` that have not been fetched."""
        return len(self._in_flight)

    def foreach_policy(self, func: Callable[..., T], **kwargs: Any) -> list[T]:
        """Calls a function with each policy of each worker and its id."""
        return sum(self.foreach_worker(lambda worker: worker.foreach_policy(func, **kwargs)), [])

    def foreach_policy_to_train(self, func: Callable[..., T], **kwargs: Any) -> list[T]:
        """Calls a function with each policy that a worker trains and its id, worker by worker."""
        return sum(self.foreach_worker(lambda worker: worker.foreach_policy_to_train(func, **kwargs)), [])

    def sample(self) -> list[Sampled]:
        """Returns the next batches, as the mode of sampling has it."""
        return [of_native(batch) for batch in self._group.sample()]

    @overload
    def synchronous_parallel_sample(
        self,
        *,
        max_agent_steps: int | None = None,
        max_env_steps: int | None = None,
        timeout_s: float | None = None,
        concat: Literal[True] = True,
    ) -> Sampled: ...

    @overload
    def synchronous_parallel_sample(
        self,
        *,
        max_agent_steps: int | None = None,
        max_env_steps: int | None = None,
        timeout_s: float | None = None,
        concat: Literal[False],
    ) -> list[Sampled]: ...

    def synchronous_parallel_sample(
        self,
        *,
        max_agent_steps: int | None = None,
        max_env_steps: int | None = None,
        timeout_s: float | None = None,
        concat: bool = True,
    ) -> Sampled | list[Sampled]:
        """Returns a sample of each healthy worker, joined or as a list: once, or until there are this many steps."""
        batches = self._group.synchronous_parallel_sample(max_agent_steps, max_env_steps, timeout_s)
        if concat:
            return of_native(_native.concat(batches))
        return [of_native(batch) for batch in batches]

    def sync_weights(
        self,
        weights: Mapping[str, Any] | None = None,
        *,
        policies: Iterable[str] | None = None,
        to_worker_indices: Iterable[int] | None = None,
        global_vars: Mapping[str, int] | None = None,
        timeout_seconds: float | None = 0.0,
    ) -> None:
        """Lets all healthy workers act with these weights, or with those of the local worker.

        With a timeout it waits until they do, with None for ever; in any case every worker has the weights before its next
        sample.
        """
        own = self._group.worker(0).weights if self._has_local else None
        given = None if weights is None else to_policies(weights, own)
        ids = None if policies is None else names_of("policies", policies)
        if ids is not None and (given is not None or own is not None):
            known = dict(own(ids) if given is None else given)
            if unknown := [id for id in ids if id not in known]:
                raise _native.PolicyError(f"there are no weights of policy '{unknown[0]}'")
        indices = None if to_worker_indices is None else list(to_worker_indices)
        timestep = (global_vars or {}).get("timestep")
        self._group.sync_weights(given, ids, indices, timestep, seconds(timeout_seconds))

    def sync_filters(
        self,
        *,
        use_worker_filter_stats: bool = True,
        update_worker_filter_stats: bool = True,
        env_steps_sampled: int | None = None,
        timeout_s: float | None = 60.0,
    ) -> None:
        """Merges what the other workers' observation filters have seen into the local worker's, and sends the result to all.

        Without it every worker normalises by its own observations. Statistics that come too late are merged the next time.
        """
        self._group.sync_filters(use_worker_filter_stats, update_worker_filter_stats, env_steps_sampled, seconds(timeout_s))

    def sync_env_runner_states(
        self, *, config: Mapping[str, Any] | None = None, env_steps_sampled: int | None = None
    ) -> None:
        """Does the same as `sync_filters`, with RLlib's settings of it in `config`.

        These are `use_worker_filter_stats`, `update_worker_filter_stats` and `sync_filters_on_rollout_workers_timeout_s`.
        """
        names = {name: name for name in ("use_worker_filter_stats", "update_worker_filter_stats")}
        names["sync_filters_on_rollout_workers_timeout_s"] = "timeout_s"
        given = {names[name]: value for name, value in (config or {}).items() if name in names}
        self.sync_filters(env_steps_sampled=env_steps_sampled, **given)

    def get_filters(self) -> list[dict[str, dict[str, Any] | None]]:
        """Returns what `RolloutWorker.get_filters` does, of all healthy workers: the local one's first, then by id."""
        return self.foreach_worker(RolloutWorker.get_filters)

    def get_weights(self, policies: Iterable[str] | None = None) -> dict[str, Weights]:
        """Returns the local worker's weights by policy, under PyTorch's names."""
        return self._member(0).get_weights(policies)

    def learn_on_batch(self, samples: Batch) -> dict[str, Any]:
        """Lets the local worker's policies learn; `sync_weights` sends the weights to the others."""
        return self._member(0).learn_on_batch(samples)

    def add_policy(self, policy_id: str, kind: str, config: Mapping[str, Any] | None = None) -> None:
        """Adds a policy of a registered kind to all workers, for the spaces of the others."""
        self._group.add_policy(policy_id, kind, dict(config or {}))

    def is_policy_to_train(self, policy_id: str, batch: Batch | None = None) -> bool:
        """Returns whether the local worker trains a policy, on this batch if there is one."""
        return self._member(0).is_policy_to_train(policy_id, batch)

    def get_spaces(self) -> dict[str, tuple[Any, Any]]:
        """Returns Gymnasium's spaces of the observations and actions of each policy."""
        spaces = self._group.spaces().items()
        return {id: (space_of(described, "observation"), space_of(described, "action")) for id, described in spaces}

    def remove_policy(self, policy_id: str) -> None:
        """Removes a policy from all workers."""
        self._group.remove_policy(policy_id)

    def get_policy(self, policy_id: str = "default_policy") -> Policy:
        """Returns a policy of the local worker; its `set_weights` sets those of all workers."""
        def set_weights(weights: list, timestep: int | None) -> None:
            self._group.sync_weights(weights, None, None, timestep, 0.0)

        return Policy(self._group.worker(0), policy_id, self._calls[0], set_weights)

    def get_metrics(self) -> dict[str, Any]:
        """Returns a summary of the episodes that have ended since the last call."""
        return self._group.metrics()

    def probe_unhealthy_workers(self) -> list[int]:
        """Probes unhealthy workers, restarts failed ones if that is set, and returns the ids of recovered workers."""
        return self._group.probe_unhealthy_workers()

    def wait_for_workers(self, number: int, timeout_s: float | None = 60.0) -> bool:
        """Waits until this many workers are healthy."""
        return within(timeout_s, lambda timeout: self._group.wait_for_workers(number, timeout))

    def add_workers(self, num_workers: int) -> None:
        self._group.add_workers(num_workers)

    def reset(self, num_workers: int) -> None:
        """Replaces the other workers by this many new ones; what the old ones have not handed over is lost."""
        self._group.reset(num_workers)

    def healthy_worker_ids(self) -> list[int]:
        return self._group.facts()["healthy_worker_ids"]

    def num_healthy_workers(self) -> int:
        return len(self.healthy_worker_ids()) + self._has_local

    def num_healthy_remote_workers(self) -> int:
        return len(self.healthy_worker_ids())

    def num_remote_workers(self) -> int:
        return self._group.facts()["num_remote_workers"]

    def num_remote_env_runners(self) -> int:
        """Does the same as `num_remote_workers`."""
        return self.num_remote_workers()

    @property
    def reproducible(self) -> bool:
        """False if the rows depend on Python functions, which may depend on anything."""
        return not self._functions

    @property
    def worker_pids(self) -> list[int]:
        """The processes of local worker processes."""
        return self._group.facts()["worker_pids"]

    @property
    def worker_address(self) -> tuple[str, str] | None:
        """Address and token for `rollmesh worker --hub`."""
        address = self._group.facts()["worker_address"]
        return None if address is None else (address[0], address[1])

    @property
    def dashboard_url(self) -> str | None:
        """The URL of the group's dashboard with an operator's token, a secret; `None` without `dashboard=True`."""
        return self._group.facts()["dashboard_url"]

    def invite(self) -> str | None:
        """Returns the link by which a browser's tab becomes a worker, a secret.

        `None` unless workers of the placement "remote" were requested, and the group has `page` or `dashboard`.
        """
        return self._group.facts()["invite"]

    def notices(self) -> list[str]:
        """Returns notices of failures and restarts since the last call."""
        notices = []
        while (notice := self._group.next_notice()) is not None:
            notices.append(notice)
        return notices

    def stop(self) -> None:
        """Ends the workers. A call that Ctrl-C has interrupted is waited for at most a second."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._in_flight.clear()
        self._group.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
