"""Environments in Rust under Gymnasium's vector interface."""

import unittest

import gymnasium
import numpy as np

import rollmesh


class Vectors(unittest.TestCase):
    def test_spaces_are_those_of_gymnasium(self):
        for id in ("CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1", "Pendulum-v1", "FrozenLake-v1"):
            ours, theirs = rollmesh.make_vec(id, 2), gymnasium.make(id)
            self.assertEqual(ours.single_action_space, theirs.action_space, id)
            self.assertEqual(ours.single_observation_space.shape, theirs.observation_space.shape, id)
            obs, infos = ours.reset(seed=1)
            self.assertEqual((obs.shape[0], infos), (2, {}))

    def test_rows_are_those_of_a_worker_with_the_same_seed(self):
        with rollmesh.RolloutWorker("CartPole-v1", num_envs=4, rollout_fragment_length=60, seed=9) as worker:
            batch = worker.sample()
        obs = np.stack(np.split(batch["obs"], 4), axis=1)
        actions = np.stack(np.split(batch["actions"], 4), axis=1)
        envs = rollmesh.make_vec("CartPole-v1", 4)
        now, _ = envs.reset(seed=9)
        ended = 0
        for t in range(60):
            np.testing.assert_array_equal(now, obs[t])
            now, rewards, terminateds, truncateds, infos = envs.step(actions[t])
            np.testing.assert_array_equal(rewards, np.ones(4))
            done = terminateds | truncateds
            ended += done.sum()
            if done.any():
                np.testing.assert_array_equal(infos["_final_obs"], done)
                lane = int(done.argmax())
                self.assertGreater(abs(infos["final_obs"][lane][2]), 0.2)
        self.assertGreater(ended, 0)

    def test_time_limits_truncate_and_pictures_are_drawn(self):
        envs = rollmesh.make_vec("MountainCar-v0", 2, render_mode="rgb_array")
        envs.reset(seed=0)
        flags = [envs.step([1, 1])[3].all() for _ in range(200)]
        self.assertEqual((sum(flags), flags[-1]), (1, True))
        self.assertEqual(envs.render()[0].shape[2], 3)

    def test_wrong_use_is_refused(self):
        envs = rollmesh.make_vec("CartPole-v1", 2)
        with self.assertRaises(gymnasium.error.ResetNeeded):
            envs.step([0, 0])
        envs.reset(seed=0)
        with self.assertRaisesRegex(rollmesh.EnvError, r"actions has the shape \[1\]; give an array of the shape \[2\]"):
            envs.step([0])
        with self.assertRaisesRegex(rollmesh.EnvError, r"the shape \[1, 2\]; give an array of the shape \[2\]"):
            envs.step([[0, 1]])
        with self.assertRaisesRegex(rollmesh.EnvError, "reset_mask"):
            envs.reset(options={"reset_mask": np.array([True, False])})
        with self.assertRaisesRegex(rollmesh.Error, "NoSuchEnv"):
            rollmesh.make_vec("NoSuchEnv-v0")


if __name__ == "__main__":
    unittest.main()
