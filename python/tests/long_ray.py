"""The env runner for RLlib's algorithms, whose packages take minutes to install."""

import unittest

import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig

import rollmesh
import rollmesh.rllib


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


if __name__ == "__main__":
    unittest.main()
