"""Environments in Rust under Gymnasium's vector interface."""

import contextlib
import gc
import multiprocessing
import os
import pathlib
import signal
import test.support
import threading
import time
import unittest

import gymnasium
import numpy as np

import rollmesh


def children() -> set[str]:
    """Returns the processes that this one has started."""
    pids = set()
    for task in pathlib.Path("/proc/self/task").iterdir():
        # A thread may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pids |= set(task.joinpath("children").read_text().split())
    return pids


def step_in_fork(envs: gymnasium.vector.VectorEnv, answers) -> None:
    try:
        envs.step(np.zeros(2, int))
    except rollmesh.ClosedError as error:
        answers.put(str(error))
    del envs


class Vectors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH")]))
        rollmesh.allow_python("py:envs")

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

    def test_pictures_of_environments_in_python_are_drawn(self):
        envs = rollmesh.make_vec("py:envs:Picture", 2, render_mode="rgb_array")
        envs.reset(seed=0)
        self.assertEqual([picture.shape for picture in envs.render()], [(4, 5, 3)] * 2)

    def test_missing_package_of_render_is_named_and_steps_continue(self):
        envs = rollmesh.make_vec("py:envs:Undrawn", 1, render_mode="rgb_array")
        envs.reset(seed=0)
        for _ in range(2):
            with self.assertRaisesRegex(rollmesh.EnvError, "a picture needs a package that .* lacks: .*pygame is not installed"):
                envs.render()
            envs.step([0])

    def test_evaluation_that_cannot_be_rendered_says_how_to_go_without_pictures(self):
        with rollmesh.EvalWorker("py:envs:Undrawn", evaluation={"num_envs": 1}) as worker:
            worker.submit(max_steps=3, break_when_any_done=False)
            with self.assertRaisesRegex(rollmesh.AlgorithmError, "(?s)cannot be rendered: .*pygame .*without pictures.*render=False"):
                worker.poll(60)
            worker.submit(max_steps=3, break_when_any_done=False, render=False)
            found = worker.poll(60)
            self.assertEqual((found["env_steps"], found["frames"]), (3, None))

    def test_any_thread_steps_and_a_closed_one_does_not(self):
        before = children()
        for id in ("CartPole-v1", "py:envs:Fragile"):
            envs, stepped = rollmesh.make_vec(id, 2), []
            envs.reset(seed=0)
            thread = threading.Thread(target=lambda: stepped.append(envs.step(np.zeros(2, int))))
            thread.start()
            thread.join()
            self.assertEqual(len(stepped), 1)
            self.assertEqual(len(children() - before), id.startswith("py:"))
            envs.close()
            envs.close()
            with self.assertRaises(rollmesh.ClosedError):
                envs.step(np.zeros(2, int))
            self.assertEqual(children() - before, set())
        worker = rollmesh.RolloutWorker("py:envs:Fragile", rollout_fragment_length=1)
        worker.sample()
        worker.stop()
        self.assertEqual(children() - before, set())

    def test_ctrl_c_ends_a_step(self):
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        envs, others = rollmesh.make_vec("py:envs:Slow", 1), []
        envs.reset(seed=0)

        def other() -> None:
            time.sleep(0.2)
            others.append(time.monotonic())

        thread = threading.Thread(target=other)
        begun = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            thread.start()
            envs.step([0])
        self.assertLess(time.monotonic() - begun, 4)
        # Other threads run meanwhile.
        thread.join()
        self.assertLess(others[0] - begun, 0.5)

    def test_an_interrupted_close_is_completed_by_the_next_one(self):
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        others = children()
        envs = rollmesh.make_vec("py:envs:Slow", 1)
        envs.reset(seed=0)
        # The step continues after the interrupt, and the end waits for it.
        for call in (lambda: envs.step([0]), envs.close):
            with self.assertRaises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                call()
        self.assertEqual(len(children() - others), 1)
        envs.close()
        self.assertEqual(children() - others, set())

    def test_a_fork_leaves_the_parents_environments_alone(self):
        envs = rollmesh.make_vec("py:envs:Fragile", 2)
        envs.reset(seed=0)
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()
        child = context.Process(target=step_in_fork, args=(envs, answers))
        child.start()
        self.assertIn("did not survive the fork", answers.get())
        child.join()
        self.assertEqual(envs.step(np.zeros(2, int))[0].tolist(), [[1], [1]])

    def test_seeds_count_whatever_was_read_before(self):
        def first(read: bool, **options) -> np.ndarray:
            envs = rollmesh.make_vec("CartPole-v1", 3)
            if read:
                envs.np_random.random()
            return envs.reset(**options)[0]

        self.assertFalse((first(True) == first(True)).any())
        np.testing.assert_array_equal(first(True, seed=5), first(False, seed=5))
        envs = rollmesh.make_vec("CartPole-v1", 1)
        envs.np_random_seed
        with self.assertRaises(gymnasium.error.ResetNeeded):
            envs.step([0])

    def test_environments_have_seeds_of_their_own(self):
        def rows(seeds: list[int]) -> list:
            envs = rollmesh.make_vec("FrozenLake-v1", len(seeds))
            envs.reset(seed=seeds)
            return np.stack([envs.step([1] * len(seeds))[0] for _ in range(40)], axis=1).tolist()

        want = dict(zip([3, 9, 70_000], rows([3, 9, 70_000])))
        for seed, row in zip([9, 9, 3], rows([9, 9, 3])):
            self.assertEqual(row, want[seed])
        self.assertNotEqual(want[3], want[9])
        envs = rollmesh.make_vec("CartPole-v1", 2)
        np.testing.assert_array_equal(envs.reset(seed=[0, 1])[0], envs.reset(seed=0)[0])
        for seed, want in (([1], "seed has 1 numbers; give one for each of the 2"), ([0, 2**32], "seed has 4294967296"), (-1, "seed is -1")):
            with self.assertRaisesRegex(rollmesh.EnvError, want):
                envs.reset(seed=seed)

    def test_actions_become_equal_integers_or_the_nearest_floats(self):
        envs = rollmesh.make_vec("CartPole-v1", 2)
        envs.reset(seed=0)
        for actions in (np.array([0, 1], np.int32), np.array([True, False]), [0, 1]):
            envs.step(actions)
        for actions in ([0.5, 1.0], [2**64 - 1, 0], ["0", "1"]):
            with self.assertRaisesRegex(rollmesh.EnvError, r"actions of .* are none of Discrete\(2\)"):
                envs.step(actions)
        envs = rollmesh.make_vec("Pendulum-v1", 1)
        envs.reset(seed=0)
        envs.step(np.array([[0.5]], np.float64))

    def test_discrete_spaces_count_from_where_the_environment_does(self):
        envs = rollmesh.make_vec("py:envs:Lift", 2)
        self.assertEqual(envs.single_observation_space, gymnasium.spaces.Discrete(5, start=-2))
        self.assertEqual(envs.single_action_space, gymnasium.spaces.Discrete(3, start=-1))
        self.assertEqual(envs.reset(seed=0)[0].tolist(), [0, 0])
        self.assertEqual([column.tolist() for column in envs.step([-1, 1])[:2]], [[-1, 1], [-1.0, 1.0]])
        obs, _, _, _, infos = envs.step([-1, 0])
        self.assertEqual((obs.tolist(), infos["final_obs"].tolist()), ([0, 1], [-2, 1]))
        with self.assertRaisesRegex(rollmesh.EnvError, "Discrete"):
            envs.step([2, 0])

    def test_odd_spaces_are_named(self):
        with self.assertRaisesRegex(rollmesh.EnvError, r"observation space Box\(.* has no elements"):
            rollmesh.make_vec("py:envs:Empty")
        space = rollmesh.make_vec("py:envs:Endless").single_action_space
        self.assertEqual((space.low[0], space.high[0]), (0, np.iinfo(np.int64).max))
        with self.assertRaisesRegex(rollmesh.Error, r"takes actions of a space with a distribution, not Box\("):
            rollmesh.RolloutWorker("py:envs:Endless")

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

    def test_nothing_is_said_of_environments_that_were_not_closed(self):
        with test.support.catch_unraisable_exception() as said:
            with self.assertRaises(rollmesh.Error):
                rollmesh.make_vec("NoSuchEnv-v0")
            rollmesh.make_vec("CartPole-v1", 2)
            gc.collect()
            self.assertIsNone(said.unraisable)


if __name__ == "__main__":
    unittest.main()
