"""RLlib's algorithms with the env runner and with a worker that connects, and trials of Ray Tune. Their packages take minutes to install."""

import os
import socket
import subprocess
import tempfile
import unittest

import gymnasium
import numpy as np
import ray
import torch
from ray import tune
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.external.env_runner_server_for_external_inference import EnvRunnerServerForExternalInference

import rollmesh
import rollmesh.rllib
from rollmesh.ray import program_here
from rollmesh.ray.tune import Trainable

PROGRAM = os.environ.get("ROLLMESH_BIN") or program_here()


def ppo(env: str, **model: object) -> PPOConfig:
    config = PPOConfig().environment(env)
    runners = {"env_runner_cls": rollmesh.rllib.EnvRunner, "num_env_runners": 0, "num_envs_per_env_runner": 8}
    config = config.env_runners(**runners)
    config = config.rl_module(model_config={"fcnet_hiddens": [32], **model})
    config = config.evaluation(evaluation_duration=4)
    config = config.training(train_batch_size_per_learner=512, minibatch_size=128, num_epochs=4, lr=3e-3)
    return config.debugging(seed=1)


class Runners(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)

    @classmethod
    def tearDownClass(cls):
        ray.shutdown()

    def test_an_unmodified_algorithm_learns(self):
        algorithm = ppo("CartPole-v1").build_algo()
        for iteration in range(1, 16):
            metrics = algorithm.train()["env_runners"]
            self.assertEqual(metrics["num_env_steps_sampled_lifetime"], 512 * iteration)
        self.assertGreater(metrics["episode_return_mean"], 60)
        self.assertGreater(algorithm.evaluate()["env_runners"]["episode_return_mean"], 60)
        algorithm.stop()

    def test_actors_sample_continuous_actions_with_shared_layers(self):
        config = ppo("Pendulum-v1", vf_share_layers=True, fcnet_activation="relu")
        algorithm = config.env_runners(num_env_runners=1, sample_timeout_s=300).build_algo()
        self.assertEqual(algorithm.train()["env_runners"]["num_env_steps_sampled_lifetime"], 512)
        algorithm.stop()

    def test_modules_that_cannot_act_in_rust_are_refused(self):
        with self.assertRaisesRegex(rollmesh.PolicyError, "the module has LSTM, Tanh; in Rust act"):
            ppo("CartPole-v1", use_lstm=True).build_algo().train()

    def test_an_algorithm_learns_from_a_worker_that_connects(self):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        box = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        spaces = {"observation_space": box, "action_space": gymnasium.spaces.Discrete(2)}
        config = PPOConfig().environment(env_config={"port": port}, **spaces)
        config = config.env_runners(env_runner_cls=EnvRunnerServerForExternalInference, num_env_runners=0)
        config = config.rl_module(model_config={"fcnet_hiddens": [32], "vf_share_layers": False})
        config = config.training(train_batch_size_per_learner=512, minibatch_size=128, num_epochs=4, lr=3e-3)
        command = [PROGRAM, "worker", "--rllink", f"localhost:{port}", "--env-steps", "512", "--set", "num_envs=8"]
        worker = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            algorithm = config.debugging(seed=1).build_algo()
            for iteration in range(1, 16):
                metrics = algorithm.train()
                self.assertEqual(metrics["env_runners"]["num_env_steps_sampled_lifetime"], 512 * iteration)
            self.assertGreater(metrics["env_runners"]["episode_return_mean"], 60)
            # The learner's first ratio of probabilities is 1, as the rows are those of its own module.
            self.assertLess(abs(metrics["learners"]["default_policy"]["mean_kl_loss"]), 0.1)
            algorithm.stop()
        finally:
            worker.kill()
            worker.communicate()


class Trials(unittest.TestCase):
    def test_four_trials_end_as_their_runs_do(self):
        space = {
            "env": "CartPole-v1",
            "num_workers": 0,
            "num_envs": 8,
            "rollout_fragment_length": 32,
            "stop": {"env_steps": 2_048},
            "seed": tune.grid_search([1, 2, 3, 4]),
        }
        with tempfile.TemporaryDirectory() as storage:
            run = tune.RunConfig(storage_path=storage, checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True))
            results = tune.Tuner(Trainable, param_space=space, run_config=run).fit()
            self.assertEqual((len(results), results.num_errors), (4, 0))
            for result in results:
                self.assertEqual(result.metrics["env_steps"], 2_048)
                with result.checkpoint.as_directory() as checkpoint:
                    self.assertTrue(os.path.isfile(os.path.join(checkpoint, "run", "metrics.jsonl")), os.listdir(checkpoint))
            self.assertGreater(len({result.metrics["episode_return_mean"] for result in results}), 1, "seeds differ")
            again = tune.Tuner(Trainable, param_space={**space, "seed": 1}, run_config=run).fit()
            wanted = next(result for result in results if result.config["seed"] == 1)
            self.assertEqual(again[0].metrics["episode_return_mean"], wanted.metrics["episode_return_mean"])

    def test_restored_trial_resumes_bit_identically(self):
        space = {"env": "CartPole-v1", "num_workers": 0, "num_envs": 8, "rollout_fragment_length": 32, "seed": 1}
        space["stop"] = {"env_steps": 2_048}

        def finish(trial: Trainable) -> str:
            while not trial.step().get("done"):
                pass
            weights = trial._algorithm.weights_hash
            trial.cleanup()
            return weights

        interrupted, whole, resumed = (Trainable(space) for _ in range(3))
        with tempfile.TemporaryDirectory() as checkpoint:
            for _ in range(3):
                interrupted.step()
            interrupted.save_checkpoint(checkpoint)
            interrupted.cleanup()
            resumed.load_checkpoint(checkpoint)
            self.assertEqual(resumed.step()["iteration"], 4)
            self.assertEqual(finish(resumed), finish(whole))


if __name__ == "__main__":
    unittest.main()
