"""RLlib's methods of workers and groups that call functions, and TorchRL's of an evaluation worker."""

import ipaddress
import os
import signal
import socket
import threading
import time
import unittest

import numpy as np

import rollmesh
from rollmesh import EvalWorker, RolloutWorker, WorkerGroup

CONFIG = {"env": "CartPole-v1", "num_envs": 2, "rollout_fragment_length": 20, "seed": 7}
GAMES = {"env": "MultiAgentCartPole-v1", "env_config": {"num_agents": 2}, "num_envs": 2, "rollout_fragment_length": 20}
TWO = {**GAMES, "policies": {"a": {"policy": "ppo"}, "b": {"policy": "ppo"}}}


def mapped_to_b(agent_id, episode, worker):
    return "b"


class Workers(unittest.TestCase):
    def test_policy_map_is_a_mapping_of_the_workers_policies(self):
        with RolloutWorker(CONFIG) as worker:
            policies = worker.policy_map
            worker.add_policy("other", "random")
            self.assertEqual((list(policies), len(policies), "other" in policies), (["default_policy", "other"], 2, True))
            self.assertEqual(repr(policies["other"]), "Policy('other')")
            del policies["other"]
            self.assertEqual(repr(policies), "PolicyMap(['default_policy'])")
            for use in (policies.__getitem__, policies.__delitem__):
                with self.assertRaisesRegex(KeyError, "other"):
                    use("other")

    def test_functions_are_called_with_the_worker_and_its_policies(self):
        with RolloutWorker(TWO, policy_mapping_fn=mapped_to_b) as worker:
            self.assertEqual(worker.apply(lambda worker, more: worker.num_envs + more, 3), 5)
            self.assertEqual(worker.foreach_policy(lambda policy, id: (policy.id, id)), [("a", "a"), ("b", "b")])
            worker.set_is_policy_to_train(["b"])
            self.assertEqual(worker.foreach_policy_to_train(lambda policy, id: id), ["b"])
            self.assertEqual((worker.is_policy_to_train("a"), worker.is_policy_to_train("b")), (False, True))
            self.assertEqual(set(worker.sample_and_learn()), {"b"})
            worker.set_is_policy_to_train(None)
            self.assertEqual(worker.get_policies_to_train(), {"a", "b"})

    def test_workers_answer_what_and_where_they_are(self):
        with RolloutWorker(CONFIG) as worker:
            self.assertEqual((worker.creation_args(), worker.creation_args()["seed"]), (worker.config, 7))
            self.assertEqual(worker.for_policy(lambda policy, more: (policy.id, more), more=3), ("default_policy", 3))
            with self.assertRaisesRegex(rollmesh.PolicyError, "there is no policy 'other'"):
                worker.for_policy(repr, "other")
            self.assertEqual((worker.ping(), worker.get_host()), ("pong", socket.gethostname()))
            ipaddress.ip_address(worker.get_node_ip())
        with self.assertRaises(rollmesh.ClosedError):
            worker.ping()

    def test_new_mapping_counts_for_new_episodes_and_ends_reproducibility(self):
        config = {**TWO, "policies": {"default_policy": {"policy": "random"}, "b": {"policy": "random"}}}
        with RolloutWorker(config, batch_mode="complete_episodes", count_steps_by="agent_steps") as worker:
            self.assertEqual((set(worker.sample().as_multi_agent()), worker.reproducible), ({"default_policy"}, True))
            worker.set_policy_mapping_fn(mapped_to_b)
            worker.sample()  # It has the rest of the open episodes.
            self.assertEqual((set(worker.sample()), worker.reproducible), ({"b"}, False))

    def test_setters_refuse_values_of_other_types(self):
        with RolloutWorker(CONFIG) as worker:
            for mapping in (None, "b"):
                with self.assertRaisesRegex(TypeError, "policy_mapping_fn is .*: give a function"):
                    worker.set_policy_mapping_fn(mapping)
            self.assertTrue(worker.reproducible)
            with self.assertRaisesRegex(TypeError, "is_policy_to_train is <function .*: give the ids"):
                worker.set_is_policy_to_train(lambda policy_id, batch: True)

    def test_policy_learns_from_its_rows_alone(self):
        with RolloutWorker({**CONFIG, "policies": {"default_policy": {"policy": "ppo"}}}) as worker:
            policy, before = worker.get_policy(), worker.get_weights()["default_policy"]["policy.0.weight"]
            self.assertIn("policy_loss", policy.learn_on_batch(worker.sample()))
            self.assertTrue((policy.get_weights()["policy.0.weight"] != before).any())

    def test_estimates_with_a_policy_need_no_columns_of_it(self):
        with RolloutWorker({**CONFIG, "rollout_fragment_length": 500, "batch_mode": "complete_episodes"}) as worker:
            batch, policy = worker.sample(), worker.get_policy()
            for estimator in ("is", "wis", "dm", "dr"):
                found = rollmesh.estimate(batch, estimator, gamma=0.9, policy=policy)
                self.assertAlmostEqual(found["v_target"], found["v_behavior"], delta=0.5, msg=estimator)
            chance = rollmesh.estimate(batch, "is", gamma=0.9, policy=policy, epsilon=1.0)
            self.assertNotEqual(chance["v_target"], rollmesh.estimate(batch, "is", gamma=0.9, policy=policy)["v_target"])

    def test_estimators_of_rllibs_names_estimate_with_their_policy(self):
        classes = {
            "is": rollmesh.ImportanceSampling,
            "wis": rollmesh.WeightedImportanceSampling,
            "dm": rollmesh.DirectMethod,
            "dr": rollmesh.DoublyRobust,
        }
        with RolloutWorker({**CONFIG, "rollout_fragment_length": 200}) as worker:
            batch, policy = worker.sample(), worker.get_policy()
            for name, estimator in classes.items():
                settings = {"gamma": 0.9, "policy": policy, "epsilon": 0.3}
                made = estimator(policy, 0.9, epsilon_greedy=0.3)
                self.assertEqual(made.train(batch), {})
                self.assertEqual(made.estimate(batch), rollmesh.estimate(batch, name, **settings), name)
                by_row = rollmesh.estimate(batch, name, split_batch_by_episode=False, **settings)
                self.assertEqual(made.estimate(batch, split_batch_by_episode=False), by_row, name)
            # RLlib's default discounts all but the first reward to nothing.
            self.assertEqual(classes["is"](policy).estimate(batch)["v_behavior"], 1.0)

    def test_estimates_join_the_parts_of_an_episode(self):
        with RolloutWorker(CONFIG) as worker:
            first, second, policy = worker.sample(), worker.sample(), worker.get_policy()
            self.assertTrue(set(first["eps_id"]) & set(second["eps_id"]), "an episode is in both samples")
            batch = rollmesh.concat_samples([first, second])
            order = np.argsort(batch["eps_id"], kind="stable")
            columns = ("obs", "actions", "rewards", "terminateds", "truncateds", "eps_id", "t", "action_logp")
            joined = rollmesh.SampleBatch({name: batch[name][order] for name in columns})
            for estimator in ("is", "wis"):
                found = rollmesh.estimate(batch, estimator, policy=policy)
                # Every step has the reward 1.
                self.assertAlmostEqual(found["v_behavior"], len(batch) / len(set(batch["eps_id"])))
                self.assertAlmostEqual(found["v_target"], rollmesh.estimate(joined, estimator, policy=policy)["v_target"])

    def test_estimates_name_what_they_lack(self):
        with RolloutWorker(CONFIG) as worker:
            batch, policy = worker.sample(), worker.get_policy()
            with self.assertRaisesRegex(rollmesh.OfflineError, "epsilon is 0.1, but there is no policy"):
                rollmesh.estimate(batch, "is", epsilon=0.1)
            del batch["action_logp"]
            for estimator in ("is", "dm"):
                with self.assertRaisesRegex(rollmesh.Error, "neither 'action_prob' nor 'action_logp'.*: log one of them"):
                    rollmesh.estimate(batch, estimator, policy=policy)

    def test_error_of_a_callback_has_the_exception_as_its_cause(self):
        class Fails(rollmesh.Callbacks):
            def on_episode_step(self, **kwargs):
                raise ZeroDivisionError("no angle")

        for make in (RolloutWorker, lambda *args, **more: WorkerGroup(*args, num_workers=1, **more)):
            with make(CONFIG, callbacks=Fails) as worker, self.assertRaises(rollmesh.Error) as failed:
                worker.sample()
            cause = failed.exception.__cause__
            self.assertIsInstance(cause, ZeroDivisionError)
            self.assertEqual(cause.__traceback__.tb_frame.f_code.co_name, "episode")

    def test_error_of_one_of_several_failing_workers_has_its_own_exception_as_its_cause(self):
        seen, together = set(), threading.Barrier(4)

        class Fails(rollmesh.Callbacks):
            def on_sample_end(self, *, worker, **kwargs):
                if worker.worker_index not in seen:
                    seen.add(worker.worker_index)
                    together.wait(60)
                raise KeyError(worker.worker_index)

        with WorkerGroup(CONFIG, num_workers=4, local_worker=False, callbacks=Fails) as group:
            with self.assertRaises(rollmesh.Error) as failed:
                group.synchronous_parallel_sample()
        cause = failed.exception.__cause__
        self.assertIsInstance(cause, KeyError)
        self.assertIn(f"KeyError: {cause.args[0]} ", str(failed.exception))

    def test_objects_name_themselves(self):
        with RolloutWorker(CONFIG) as worker:
            self.assertEqual(repr(worker), "RolloutWorker('CartPole-v1')")
        with WorkerGroup(CONFIG, num_workers=1) as group:
            self.assertEqual(repr(group), "WorkerGroup('CartPole-v1', num_workers=1, placement='threads')")
            self.assertIn("worker 1 of WorkerGroup", group.foreach_worker(repr)[1])


class Groups(unittest.TestCase):
    def test_functions_are_called_with_every_worker_wherever_it_runs(self):
        for placement in ("threads", "processes"):
            with WorkerGroup(CONFIG, num_workers=2, placement=placement) as group:
                ids = group.foreach_worker_with_id(lambda id, worker: (id, worker.policy_ids))
                self.assertEqual(ids, [(id, ["default_policy"]) for id in range(3)])
                alone = group.foreach_worker(lambda worker: worker.sample(), local_worker=False)
                self.assertEqual([len(batch) for batch in alone], [40, 40])
                weights = group.foreach_policy(lambda policy, id: policy.get_weights()["policy.0.bias"] + 1)
                self.assertEqual(len(weights), 3)
                group.foreach_worker(lambda worker: worker.set_is_policy_to_train([]), remote_worker_ids=[2], local_worker=False)
                trained = group.foreach_worker(lambda worker: worker.is_policy_to_train("default_policy"))
                self.assertEqual((trained, group.is_policy_to_train("default_policy")), ([True, True, False], True))
                self.assertEqual(group.foreach_policy_to_train(lambda policy, id: id), ["default_policy"] * 2)
                with self.assertRaisesRegex(rollmesh.GroupError, "worker 1: .*no policy|worker 1: .*'none'"):
                    group.foreach_worker(lambda worker: worker.remove_policy("none"), local_worker=False)

    def test_functions_of_python_stay_in_this_process(self):
        obs = np.zeros((2, 4), np.float32)
        acts = [lambda worker: worker.get_policy().compute_actions(obs, explore=False)[0]]
        acts.append(lambda worker: worker.set_policy_mapping_fn(mapped_to_b))
        with WorkerGroup(CONFIG, num_workers=1) as group:
            here, there = group.foreach_worker(acts[0])
            np.testing.assert_array_equal(here, there)
        with WorkerGroup(TWO, num_workers=1, policy_mapping_fn=mapped_to_b) as group:
            self.assertFalse(group.reproducible)
        with WorkerGroup({**TWO, "policies": {"default_policy": {"policy": "ppo"}, "b": {"policy": "ppo"}}}, num_workers=1) as group:
            self.assertTrue(group.reproducible)
            group.foreach_worker(acts[1])
            self.assertFalse(group.reproducible)
            for _ in range(20):
                batch = group.synchronous_parallel_sample()
            self.assertEqual(set(batch), {"b"})
        with WorkerGroup(CONFIG, num_workers=1, placement="processes") as group:
            for act in acts:
                with self.assertRaisesRegex(rollmesh.GroupError, "worker 1 is in another process"):
                    group.foreach_worker(act, local_worker=False)

    def test_failure_is_raised_although_failures_of_workers_are_ignored(self):
        for ignored in (False, True):
            with WorkerGroup(CONFIG, num_workers=1, ignore_env_runner_failures=ignored) as group:
                batch = rollmesh.MultiAgentBatch({"none": group.synchronous_parallel_sample()}, 40)
                for fails in (group.local_worker().learn_on_batch, group.learn_on_batch):
                    with self.assertRaisesRegex(rollmesh.WorkerError, "there is no policy 'none'"):
                        fails(batch)
                with self.assertRaisesRegex(rollmesh.GroupError, "worker 1: there is no policy 'none'"):
                    group.foreach_worker(lambda worker: worker.learn_on_batch(batch), local_worker=False)
        with WorkerGroup(CONFIG, num_workers=1, local_worker=False) as group:
            with self.assertRaisesRegex(rollmesh.GroupError, "the group has no local worker: make it with"):
                group.get_weights()

    @unittest.skipUnless(hasattr(signal, "SIGKILL"), "processes are killed otherwise here")
    def test_lost_worker_is_left_out_unless_it_is_selected(self):
        with WorkerGroup(CONFIG, num_workers=2, placement="processes", local_worker=False) as group:
            first, second = group.worker_pids
            os.kill(first, signal.SIGKILL)
            found = group.foreach_worker_with_id(lambda id, worker: (id, worker.get_filters()))
            self.assertEqual(len(found), 1)
            ((healthy, _),) = found
            self.assertEqual(group.healthy_worker_ids(), [healthy])
            with self.assertRaisesRegex(rollmesh.LostWorkerError, f"worker {3 - healthy} is unhealthy"):
                group.foreach_worker(RolloutWorker.get_filters, remote_worker_ids=[3 - healthy])
            self.assertEqual(list(group.get_spaces()), ["default_policy"])
            os.kill(second, signal.SIGKILL)
            deadline = time.monotonic() + 30
            while group.healthy_worker_ids() and time.monotonic() < deadline:
                time.sleep(0.01)
            self.assertEqual(group.foreach_worker(RolloutWorker.get_filters), [])
            with self.assertRaisesRegex(rollmesh.GroupError, "none of the 2 remote workers is healthy"):
                group.get_spaces()

    def test_workers_are_counted_and_replaced(self):
        with WorkerGroup(CONFIG, num_workers=2) as group:
            self.assertEqual((group.num_remote_workers(), group.num_healthy_workers()), (2, 3))
            self.assertEqual(group.num_remote_env_runners(), 2)
            self.assertEqual(group.local_env_runner.num_envs, 2)
            group.reset(1)
            self.assertEqual((group.healthy_worker_ids(), group.num_healthy_workers()), ([3], 2))
            self.assertEqual(group.local_worker().num_envs, 2)
            obs, action = group.get_spaces()["default_policy"]
            self.assertEqual((obs.shape, action.n), ((4,), 2))
        with WorkerGroup(CONFIG, num_workers=1, local_worker=False) as group:
            self.assertIsNone(group.local_worker())
            self.assertIsNone(group.local_env_runner)

    def test_calls_that_have_begun_are_fetched_when_they_have_ended(self):
        for placement in ("threads", "processes"):
            release = threading.Event()

            def held(worker):
                release.wait(60)
                return len(worker.sample())

            with WorkerGroup(CONFIG, num_workers=2, placement=placement) as group:
                self.assertEqual(group.fetch_ready_async_reqs(timeout_seconds=None), [])
                self.assertEqual([group.foreach_worker_async(held) for _ in range(3)], [2, 2, 0])
                self.assertEqual((group.num_in_flight_async_reqs(), group.fetch_ready_async_reqs()), (4, []))
                # Other methods answer meanwhile.
                self.assertEqual(group.num_healthy_workers(), 3)
                release.set()
                self.assertEqual(group.fetch_ready_async_reqs(timeout_seconds=60), [(1, 40), (2, 40)] * 2)
                self.assertEqual(group.num_in_flight_async_reqs(), 0)
                self.assertEqual(group.foreach_worker_async(RolloutWorker.get_weights, remote_worker_ids=[2]), 1)
                ((id, weights),) = group.fetch_ready_async_reqs(timeout_seconds=60)
                self.assertEqual((id, list(weights)), (2, ["default_policy"]))

    def test_failed_call_that_has_begun_is_raised_without_the_loss_of_others(self):
        def fails_at_first(worker):
            return worker.get_policy("none") if "worker 1 " in repr(worker) else worker.num_envs

        with WorkerGroup(CONFIG, num_workers=2) as group:
            self.assertEqual(group.foreach_worker_async(fails_at_first), 2)
            with self.assertRaisesRegex(rollmesh.PolicyError, "there is no policy 'none'"):
                group.fetch_ready_async_reqs(timeout_seconds=60)
            self.assertEqual(group.fetch_ready_async_reqs(timeout_seconds=60), [(2, 2)])

    @unittest.skipUnless(hasattr(signal, "SIGKILL"), "processes are killed otherwise here")
    def test_call_of_a_lost_worker_has_no_result(self):
        with WorkerGroup(CONFIG, num_workers=1, placement="processes", local_worker=False) as group:
            os.kill(group.worker_pids[0], signal.SIGKILL)
            self.assertEqual(group.foreach_worker_async(RolloutWorker.sample, remote_worker_ids=[1]), 1)
            self.assertEqual(group.fetch_ready_async_reqs(timeout_seconds=60), [])
            self.assertEqual(group.num_in_flight_async_reqs(), 0)


class Evaluations(unittest.TestCase):
    def test_result_has_the_reward_and_the_pictures(self):
        with EvalWorker("CartPole-v1", evaluation={"num_envs": 1}) as worker:
            worker.submit(max_steps=5, break_when_any_done=False)
            found = worker.poll(60)
            self.assertEqual((found["reward"], found["frames"].shape[0], found["frames"].dtype), (5.0, 5, np.uint8))
            worker.submit(max_steps=5, render=False)
            self.assertIsNone(worker.poll(60)["frames"])


if __name__ == "__main__":
    unittest.main()
