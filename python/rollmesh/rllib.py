"""An env runner for RLlib's algorithms, whose environments and policy act in Rust. This module imports Ray and PyTorch."""

import itertools
import uuid
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO
from torch import nn

from . import _native
from ._batch import Array, SampleBatch
from ._vector import make_vec
from ._worker import RolloutWorker

_ACTIVATIONS = {
    nn.Tanh: "tanh",
    nn.ReLU: "relu",
    nn.SiLU: "silu",
    nn.GELU: "gelu",
    nn.ELU: "elu",
    nn.Identity: "linear",
}
# Maximum difference between log-probabilities of the module and of the policy that acts.
_GAP = 1e-3


class EnvRunner(SingleAgentEnvRunner):
    """Samples for an algorithm of RLlib's new API stack: `config.env_runners(env_runner_cls=EnvRunner)`.

    The environment is one of rollmesh, by its name; `gym:ID` is one of Gymnasium. The module is like PPO's, an encoder and
    a head of dense layers, without connectors of your own. Of the callbacks, `on_episode_end` and those of whole samples
    are called.
    """

    def __init__(self, *, config: AlgorithmConfig, **kwargs: Any) -> None:
        # Workers by three flags: exploration, whole episodes, random actions; each with the number of its weights.
        self._workers: dict[tuple[bool, bool, bool], RolloutWorker] = {}
        self._acting: dict[tuple[bool, bool, bool], int] = {}
        # A worker counts its episodes from 0, so their ids begin with an id of the worker.
        self._ids: dict[tuple[bool, bool, bool], str] = {}
        self._made, self._weights = 0, 0
        super().__init__(config=config, **kwargs)

    def make_env(self) -> None:
        config = self.config
        if not isinstance(config.env, str):
            raise _native.ConfigError("env has to be a name of rollmesh, such as 'CartPole-v1' or 'gym:CartPole-v1'")
        if config._env_to_module_connector or config._module_to_env_connector:
            raise _native.ConfigError("connectors of env runners are not called in Rust: use those of the learner")
        if self.env is not None:
            self.stop()
        # For its spaces: the environments of samples belong to the workers.
        self.env = make_vec(config.env, 1, **config.env_config)
        self.num_envs = config.num_envs_per_env_runner
        self._needs_initial_reset = True

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._weights += 1

    def stop(self) -> None:
        for worker in self._workers.values():
            worker.stop()
        self._workers.clear()
        super().stop()

    def _sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> list[SingleAgentEpisode]:
        kind = (explore, num_episodes is not None, random_actions)
        if force_reset or num_episodes is not None or self._needs_initial_reset:
            self._ongoing_episodes_for_metrics.clear()
            if (worker := self._workers.pop(kind, None)) is not None:
                worker.stop()
        self._needs_initial_reset = num_episodes is not None
        worker = self._worker(kind)
        chunks, steps, done = [], 0, 0
        while (steps < num_timesteps) if num_timesteps is not None else (done < num_episodes):
            batch = worker.sample()
            outputs = {} if random_actions else self._outputs(batch)
            starts = np.flatnonzero(np.diff(batch["eps_id"], prepend=-1))
            for start, end in itertools.pairwise([*starts.tolist(), len(batch)]):
                own = {name: values[start:end] for name, values in outputs.items()}
                chunk = self._episode(batch[start:end], self._ids[kind], own)
                steps, done = steps + len(chunk), done + chunk.is_done
                chunks.append(chunk)
        for chunk in chunks:
            if chunk.is_done:
                self._done_episodes_for_metrics.append(chunk)
                self._make_on_episode_callback("on_episode_end", 0, [chunk])
            else:
                self._ongoing_episodes_for_metrics[chunk.id_].append(chunk)
        self._log_env_steps(metric=self._metrics_num_env_steps_sampled, num_steps=steps)
        self._increase_sampled_metrics(steps, done)
        return chunks

    def _worker(self, kind: tuple[bool, bool, bool]) -> RolloutWorker:
        """Returns a worker that acts with the module's weights."""
        explore, whole_episodes, is_random = kind
        worker = self._workers.get(kind)
        if worker is None:
            # Every worker has separate random numbers.
            self._made += 1
            seed = np.random.SeedSequence(self._seed, spawn_key=(self._made,)).generate_state(1, np.uint64)[0]
            config = self.config
            length = 1 if whole_episodes else config.get_rollout_fragment_length(self.worker_index)
            policy = {"policy": "random"} if is_random else {"policy": "net", "config": {"model": self._model()}}
            worker = RolloutWorker(
                config.env,
                env_config=dict(config.env_config),
                num_envs=self.num_envs,
                rollout_fragment_length=length,
                batch_mode="complete_episodes" if whole_episodes else "truncate_episodes",
                explore=explore,
                normalize_actions=config.normalize_actions,
                clip_actions=config.clip_actions,
                policies={"default_policy": policy},
                seed=int(seed),
            )
            self._workers[kind], self._ids[kind] = worker, uuid.uuid4().hex
            self._acting.pop(kind, None)
        if not is_random and self._acting.get(kind) != self._weights:
            worker.set_weights(self._tensors(worker))
            self._acting[kind] = self._weights
        return worker

    def _layers(self) -> tuple[list[nn.Linear], str]:
        """Returns the layers of the module's policy, and their activation."""
        encoder = getattr(self.module, "encoder", None)
        encoder = getattr(encoder, "actor_encoder", None) or getattr(encoder, "encoder", None)
        parts = [part for part in (encoder, getattr(self.module, "pi", None)) if part is not None]
        leaves = [leaf for part in parts for leaf in part.modules() if not list(leaf.children())]
        layers = [leaf for leaf in leaves if isinstance(leaf, nn.Linear)]
        others = [leaf for leaf in leaves if not isinstance(leaf, nn.Linear)]
        activations = {type(leaf) for leaf in others}
        if len(parts) < 2 or not activations <= set(_ACTIVATIONS) or len(activations) > 1:
            names = ", ".join(sorted({type(leaf).__name__ for leaf in others})) or type(self.module).__name__
            raise _native.PolicyError(
                f"the module has {names}; in Rust act an encoder and a head of dense layers with one activation "
                f"({', '.join(kind.__name__ for kind in _ACTIVATIONS)})"
            )
        activation = _ACTIVATIONS[activations.pop()] if activations else "linear"
        if activation != "linear" and len(others) != len(layers) - 1:
            numbers = f"{len(layers)} layers and {len(others)} activations"
            raise _native.PolicyError(f"the module has {numbers}, not one after each layer but the last")
        return layers, activation

    def _model(self) -> dict[str, Any]:
        layers, activation = self._layers()
        return {"fcnet_hiddens": [layer.out_features for layer in layers[:-1]], "fcnet_activation": activation}

    def _tensors(self, worker: RolloutWorker) -> dict[str, Array]:
        """Returns the module's weights under the names of the worker's, whose value network stays."""
        tensors = worker.get_weights()["default_policy"]
        for at, layer in enumerate(self._layers()[0]):
            tensors[f"policy.{2 * at}.weight"] = layer.weight
            tensors[f"policy.{2 * at}.bias"] = layer.bias
        return tensors

    def _episode(self, rows: SampleBatch, worker_id: str, outputs: dict[str, Array]) -> SingleAgentEpisode:
        """Returns the rows of an episode in the form of RLlib's algorithms."""
        obs = np.concatenate([rows["obs"], rows["new_obs"][-1:]])
        return SingleAgentEpisode(
            id_=f"{worker_id}-{rows['eps_id'][0]}",
            observations=obs,
            observation_space=self.env.single_observation_space,
            infos=[{} for _ in range(len(obs))],
            actions=rows["actions"],
            action_space=self.env.single_action_space,
            rewards=rows["rewards"],
            terminated=bool(rows["terminateds"][-1]),
            truncated=bool(rows["truncateds"][-1]),
            extra_model_outputs=outputs,
            t_started=int(rows["t"][0]),
            len_lookback_buffer=0,
        )

    @torch.no_grad()
    def _outputs(self, rows: SampleBatch) -> dict[str, Array]:
        """Returns the module's outputs for the rows, which must equal those of the policy that acted."""
        batch = {Columns.OBS: torch.from_numpy(rows["obs"].copy()).to(self._device)}
        inputs = self.module.forward_exploration(batch, t=0)[Columns.ACTION_DIST_INPUTS]
        dist = self.module.get_exploration_action_dist_cls().from_logits(inputs)
        logp = dist.logp(torch.from_numpy(rows["actions"].copy()).to(self._device)).cpu().numpy()
        gap = np.abs(logp - rows["action_logp"]).max()
        if not gap <= _GAP:
            raise _native.PolicyError(f"the module's log-probabilities differ by {gap} from those of the policy in Rust")
        return {
            Columns.ACTION_DIST_INPUTS: inputs.cpu().numpy(),
            Columns.ACTION_LOGP: rows["action_logp"],
            WEIGHTS_SEQ_NO: np.full(len(rows), self._weights_seq_no),
        }
