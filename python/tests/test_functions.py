"""Policies, callbacks, mapping and observation functions in Python."""

import functools
import unittest

import numpy as np

import rollmesh
from rollmesh import Callbacks, RolloutWorker, WorkerGroup

GAMES = {"env": "MultiAgentCartPole-v1", "env_config": {"num_agents": 2}, "num_envs": 2, "rollout_fragment_length": 40}


class Right:
    """A policy that pushes the cart to the right, with a bias that can be set and learned."""

    def __init__(self, observation_space, action_space, config):
        self.spaces, self.bias = (observation_space, action_space), np.zeros((1, 2), np.float32)
        self.config = config

    def compute_actions(self, obs_batch, state_batches, explore=True):
        (steps,) = state_batches
        return np.ones(len(obs_batch), int), [steps + 1], {"vf_preds": steps[:, 0]}

    def get_initial_state(self):
        return [np.zeros(1)]

    def get_weights(self):
        return {"net.4.weight": self.bias}

    def set_weights(self, weights):
        self.bias = weights["net.4.weight"]

    def learn_on_batch(self, samples):
        self.bias = self.bias + len(samples)
        return {"rows": len(samples)}


class Stateless:
    def __init__(self, observation_space, action_space, config):
        self.action = config["action"]

    def compute_actions(self, obs_batch, state_batches, explore=True):
        return np.full(len(obs_batch), self.action), [], {}

    def postprocess_trajectory(self, batch):
        batch["rewards"] = batch["rewards"] * 2
        return batch


class Counts(Callbacks):
    def on_episode_start(self, *, episode, **kwargs):
        episode.user_data["angles"] = []

    def on_episode_step(self, *, episode, worker, **kwargs):
        episode.user_data["angles"].append(float(episode.last_observation_for()[2]))
        assert episode.last_reward_for() == 1.0 and worker.worker_index == 0

    def on_episode_end(self, *, episode, error, **kwargs):
        assert error is None and len(episode.user_data["angles"]) == episode.length
        episode.custom_metrics["widest"] = max(map(abs, episode.user_data["angles"]))

    def on_sample_end(self, *, samples, **kwargs):
        samples["double"] = samples["rewards"] * 2


class Functions(unittest.TestCase):
    def test_a_policy_in_python_acts_with_its_states_and_learns(self):
        policies = {"default_policy": {"policy": Right, "config": {"answer": 42}}}
        config = {"env": "CartPole-v1", "num_envs": 2, "rollout_fragment_length": 12, "policies": policies, "seed": 3}
        with RolloutWorker(config) as worker:
            self.assertFalse(worker.reproducible)
            batch = worker.sample()
            self.assertTrue((batch["actions"] == 1).all())
            # Its state counts the steps of the episode.
            np.testing.assert_array_equal(batch["vf_preds"], batch["t"])
            self.assertEqual(worker.learn_on_batch(batch)["default_policy"]["rows"], 24)
            np.testing.assert_array_equal(worker.get_weights()["default_policy"]["net.0.weight"], [[24, 24]])
            worker.set_weights({"net.0.weight": np.full((1, 2), 7.0)})
            np.testing.assert_array_equal(worker.get_weights()["default_policy"]["net.0.weight"], [[7, 7]])
            with self.assertRaisesRegex(rollmesh.Error, "has no weights 'other': its weights are net.0.weight"):
                worker.set_weights({"net.0.weight": np.zeros((1, 2)), "other": np.zeros(1)})

    def test_agents_act_with_the_policies_of_a_mapping_function(self):
        def mapping(agent_id, episode, worker):
            return ["left", "right"][(agent_id + episode.env_index) % 2]

        policies = {
            name: {"policy": Stateless, "config": {"action": action}} for action, name in enumerate(("left", "right"))
        }
        config = {**GAMES, "policies": policies, "policy_mapping_fn": mapping}
        for make in (RolloutWorker, lambda config: WorkerGroup(config, num_workers=1)):
            with make(config) as owner:
                batch = owner.sample() if isinstance(owner, RolloutWorker) else owner.synchronous_parallel_sample()
                self.assertFalse(owner.reproducible)
            for action, name in enumerate(policies):
                rows = batch[name]
                self.assertTrue(len(rows) > 0 and (rows["actions"] == action).all())
                self.assertTrue((rows["rewards"] == 2).all())

    def test_callbacks_see_the_steps_and_add_metrics_and_columns(self):
        for callbacks in (Counts, Counts(), [Counts], lambda: Counts(), functools.partial(Counts)):
            with RolloutWorker("CartPole-v1", num_envs=2, rollout_fragment_length=100, callbacks=callbacks) as worker:
                batch = worker.sample()
                np.testing.assert_array_equal(batch["double"], 2 * batch["rewards"])
                self.assertGreater(worker.get_metrics()["summary"]["custom_metrics"]["widest"]["max"], 0.2)

    def test_invalid_callbacks_are_refused(self):
        class Misspelt(Callbacks):
            def on_episode_stop(self, **kwargs):
                pass

        for callbacks, want in (
            (object(), "callbacks are <object"),
            (lambda: 3, "callbacks are of int: give a subclass of rollmesh.Callbacks"),
            (object, "callbacks are of object"),
            (Misspelt, "there is no hook 'on_episode_stop': there are on_episode_created"),
        ):
            with self.assertRaisesRegex((TypeError, rollmesh.Error), want):
                RolloutWorker("CartPole-v1", callbacks=callbacks)

    def test_callbacks_that_call_their_own_worker_are_an_error(self):
        class Recursive(Callbacks):
            def on_sample_end(self, **kwargs):
                worker.get_weights()

        with RolloutWorker("CartPole-v1", callbacks=Recursive) as worker:
            with self.assertRaisesRegex(rollmesh.WorkerError, "callbacks cannot call their own RolloutWorker"):
                worker.sample()

    def test_observations_are_those_of_an_observation_function(self):
        def upside_down(agent_obs, worker, episode):
            return {agent: -obs for agent, obs in agent_obs.items()}

        config = {"env": "CartPole-v1", "num_envs": 1, "rollout_fragment_length": 20, "seed": 5}
        with RolloutWorker(config) as plain, RolloutWorker(config, observation_fn=upside_down) as worker:
            np.testing.assert_array_equal(worker.sample()["obs"][0], -plain.sample()["obs"][0])
            self.assertTrue(plain.reproducible and not worker.reproducible)

    def test_exceptions_name_function_and_line(self):
        def fails(agent_id, episode, worker):
            raise KeyError(agent_id)

        class Late(Callbacks):
            def on_episode_step(self, **kwargs):
                raise ZeroDivisionError("too late")

        for settings, want in (
            ({"policy_mapping_fn": fails}, r"KeyError: 0 \(at test_functions.py:\d+ in fails\)"),
            ({"callbacks": Late}, r"on_episode_step failed: ZeroDivisionError: too late \(at test_functions.py:"),
            ({"observation_fn": lambda obs, **_: {0: np.zeros(3)}}, r"observation of agent 0 has the shape \(3,\)"),
            ({"policies": {"default_policy": {"policy": lambda *_: 1 / 0}}}, "constructor failed: ZeroDivisionError"),
        ):
            with self.assertRaisesRegex(rollmesh.Error, want), RolloutWorker("CartPole-v1", **settings) as worker:
                worker.sample()

    def test_other_processes_call_no_functions(self):
        with self.assertRaisesRegex(rollmesh.ConfigError, "Counts can be called in this process only"):
            WorkerGroup("CartPole-v1", num_workers=1, placement="processes", callbacks=Counts)
        with self.assertRaisesRegex(rollmesh.ConfigError, "Algorithm cannot call Counts"):
            rollmesh.Algorithm("CartPole-v1", callbacks=Counts)


if __name__ == "__main__":
    unittest.main()
