"""The same rows in every place: kinds of sampling, and environments of Python in groups of every kind."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np

import rollmesh
from rollmesh import Algorithm, EvalWorker, Reader, RolloutWorker, WorkerError, WorkerGroup, _program

ROOT = pathlib.Path(os.environ.get("ROLLMESH_ROOT", pathlib.Path(__file__).parents[2]))
KINDS = json.loads(ROOT.joinpath("tests/golden/kinds.json").read_text())


class Kinds(unittest.TestCase):
    def test_every_kind_has_its_golden_hash(self):
        for kind in KINDS["samples"] + KINDS["native"]:
            with self.subTest(json.dumps(kind["config"])), RolloutWorker(kind["config"]) as worker:
                batches = [worker.sample() for _ in range(kind["samples"])]
                self.assertEqual(rollmesh.batch_hash(batches), kind["batch_hash"])

    def test_several_policies_learn_or_those_that_the_settings_name(self):
        config = {
            "env": "RockPaperScissors-v0",
            "rollout_fragment_length": 12,
            "policy_mapping_fn": "agent_id",
            "policies": {"0": {"policy": "ppo"}, "1": {"policy": "a2c"}},
        }
        for trained in (["0", "1"], ["1"]):
            with WorkerGroup({**config, "policies_to_train": trained}, num_workers=1) as group:
                first = group.get_weights()
                learned = group.learn_on_batch(group.synchronous_parallel_sample())
                self.assertEqual(sorted(learned), trained)
                for id, weights in group.get_weights().items():
                    changed = any((weights[name] != first[id][name]).any() for name in weights)
                    self.assertEqual(changed, id in trained)

    def test_policies_are_added_and_removed_between_samples(self):
        policies = {"0": {}, "1": {}}
        config = {"env": "RockPaperScissors-v0", "policy_mapping_fn": "agent_id", "policies": policies}
        with RolloutWorker(config, rollout_fragment_length=10) as worker:
            worker.sample()
            worker.add_policy("2", "random")
            self.assertEqual(worker.policy_ids, ["0", "1", "2"])
            self.assertEqual(sorted(worker.sample()), ["0", "1"])
            worker.remove_policy("2")
            self.assertEqual(worker.policy_ids, ["0", "1"])

    def test_policy_travels_in_bytes_to_another_worker(self):
        config = {"env": "RockPaperScissors-v0", "policy_mapping_fn": "agent_id", "policies": {"0": {}, "1": {}}}
        with RolloutWorker(config, seed=1) as here, RolloutWorker(config, seed=2) as there:
            state = here.export_policy("0")
            there.import_policy(state, "1")
            there.import_policy(state, "guest")
            self.assertEqual(there.policy_ids, ["0", "1", "guest"])
            expected, found = here.get_weights()["0"], there.get_weights()
            for id, is_same in {"0": False, "1": True, "guest": True}.items():
                self.assertEqual(all((found[id][name] == expected[name]).all() for name in expected), is_same, id)
            with self.assertRaises(WorkerError):
                there.import_policy(state[:-1], "1")

    def test_policies_of_several_agents_are_evaluated(self):
        run = {"env": "MultiAgentTrafficGrid-v0", "num_workers": 0, "num_envs": 2, "seed": 7}
        with EvalWorker(run) as worker:
            worker.submit(max_steps=40, break_when_any_done=False)
            self.assertGreater(worker.poll(60)["env_steps"], 0)
        with Algorithm(run, rollout_fragment_length=16) as algorithm:
            algorithm.step()
            self.assertEqual(len(algorithm.evaluate(2)["episodes"]), 2)

    def test_metrics_are_written_for_mlflow(self):
        with tempfile.TemporaryDirectory() as folder:
            host = {"mlflow": os.path.join(folder, "mlruns"), "tensorboard": True}
            run_dir = os.path.join(folder, "run")
            with Algorithm("CartPole-v1", num_workers=0, num_envs=2, host=host, run_dir=run_dir) as algorithm:
                algorithm.step()
                algorithm.stop()
            self.assertTrue(list(pathlib.Path(folder, "mlruns").rglob("metrics/*")))
            self.assertTrue(list(pathlib.Path(run_dir).rglob("*tfevents*")))

    def test_episodes_of_a_worker_are_recorded(self):
        with tempfile.TemporaryDirectory() as folder:
            with RolloutWorker("CartPole-v1", rollout_fragment_length=100, monitor_path=folder) as worker:
                worker.sample()
            self.assertTrue(list(pathlib.Path(folder).rglob("*.gif")))

    def test_devices_that_the_program_does_not_have_are_named(self):
        with self.assertRaisesRegex(rollmesh.Error, "cuda:0 needs a program built with `--features cuda`"):
            Algorithm("CartPole-v1", num_workers=0, host={"device": "cuda:0"})
        with self.assertRaisesRegex(rollmesh.Error, "cuda:0 needs a program built with `--features cuda`"):
            Algorithm("CartPole-v1", num_workers=1, device_rows=True, host={"worker": {"device": "cuda:0"}})


class Files(unittest.TestCase):
    GOLDEN = ROOT / "tests/golden/conformance/data"

    def test_data_sets_are_read_and_their_decoders_are_limited(self):
        for name in ("pendulum_random_d4rl.hdf5", "minari_cartpole_hdf5", "minari_cartpole_parquet"):
            path = str(self.GOLDEN / name)
            self.assertGreater(len(next(iter(Reader(path)))), 0)
            env = "Pendulum-v1" if "pendulum" in name else "CartPole-v1"
            limited = {"input": path, "io_config": {"memory_limit": 1 << 20}, "rollout_fragment_length": 10}
            with self.assertRaisesRegex(rollmesh.Error, "takes more than 1048576 bytes of memory"):
                with RolloutWorker(env, **limited) as worker:
                    worker.sample()

    def test_policies_learn_from_files_mixed_and_judged(self):
        with tempfile.TemporaryDirectory() as folder:
            inputs = [os.path.join(folder, name) for name in ("one", "two")]
            for seed, output in enumerate(inputs):
                with RolloutWorker("CartPole-v1", rollout_fragment_length=50, seed=seed, output=output) as worker:
                    worker.sample()
            for policy in ("bc", "marwil"):
                config = {
                    "env": "CartPole-v1",
                    "input": dict.fromkeys(inputs, 0.5),
                    "io_config": {"shuffle_buffer_size": 2},
                    "rollout_fragment_length": 50,
                    "policies": {"default_policy": {"policy": policy}},
                }
                with RolloutWorker(config) as worker:
                    before = worker.get_weights()["default_policy"]
                    learned = worker.learn_on_batch(worker.sample())
                    after = worker.get_weights()["default_policy"]
                self.assertIn("default_policy", learned)
                self.assertTrue(any((before[name] != after[name]).any() for name in before))


class Environments(unittest.TestCase):
    """Environments in Python, in processes that find the modules of the tests."""

    @classmethod
    def setUpClass(cls):
        folders = [ROOT / "native-worker/tests/python/lab", ROOT / "python/tests"]
        os.environ["PYTHONPATH"] = os.pathsep.join(map(str, folders))
        rollmesh.allow_python(["gym:CartPole-*", "py:lab", "py:envs", "pettingzoo:lab:*"])

    @classmethod
    def tearDownClass(cls):
        del os.environ["PYTHONPATH"]
        rollmesh.allow_python("gym:CartPole-*", processes=1)

    def test_groups_sample_the_same_in_every_place_and_with_any_number_of_hosts(self):
        def sample(config: dict, placement: str, hosts: int) -> list:
            rollmesh.allow_python("gym:CartPole-*", processes=hosts)
            with WorkerGroup(config, num_workers=1, placement=placement) as group:
                if placement != "remote":
                    return group.synchronous_parallel_sample(concat=False)
                hub, token = group.worker_address
                allowed = ["--allow-python", "gym:*,py:lab,pettingzoo:lab:*", "--python", sys.executable]
                command = [_program.find(), "worker", "--hub", hub, *allowed, "--python-processes", str(hosts)]
                worker = subprocess.Popen(command, env={**os.environ, "ROLLMESH_TOKEN": token}, stderr=subprocess.DEVNULL)
                self.assertTrue(group.wait_for_workers(1))
                batches = group.synchronous_parallel_sample(concat=False)
                group.stop()
                self.assertEqual(worker.wait(), 0)
                return batches

        for env, env_config in (
            ("gym:CartPole-v1", {}),
            ("py:lab:echo", {"space": "tuple"}),
            ("py:lab:masked", {"name": "obs"}),
            ("pettingzoo:lab:at_once", {}),
            ("pettingzoo:lab:in_turn", {}),
        ):
            config = {"env": env, "env_config": env_config, "num_envs": 3, "rollout_fragment_length": 10, "seed": 4}
            with self.subTest(env):
                if env.startswith("pettingzoo:"):
                    config["policy_mapping_fn"] = "agent_id"
                    agents = ("ada", "bob", "cleo") if "turn" in env else ("guesser", "hider", "watcher")
                    config["policies"] = {agent: {} for agent in agents}
                want = sample(config, "threads", 1)
                for placement, hosts in (("threads", 2), ("processes", 1), ("processes", 2), ("remote", 1), ("remote", 2)):
                    self.assertEqual(sample(config, placement, hosts), want, (placement, hosts))

    def test_every_kind_of_space_is_sampled(self):
        for name in ("multi_discrete", "multi_binary", "float64", "uint8", "tuple", "dict", "mixed"):
            config = {"env": "py:lab:echo", "env_config": {"space": name}, "num_envs": 2, "rollout_fragment_length": 6}
            with self.subTest(name), RolloutWorker(config) as one, RolloutWorker(config) as two:
                # The environment asserts that its actions are in its space.
                self.assertEqual(one.sample(), two.sample())

    def test_actions_that_a_mask_forbids_are_never_chosen(self):
        # The environment fails at a forbidden action.
        with RolloutWorker("py:lab:masked", env_config={"name": "obs"}, rollout_fragment_length=60) as worker:
            self.assertEqual(len(worker.sample()), 60)

    def test_games_are_wrapped_and_preprocessed_as_the_settings_say(self):
        def rows(**settings) -> rollmesh.SampleBatch:
            model = {"fcnet_hiddens": [4], "dim": 10, "framestack": 2}
            with RolloutWorker("py:envs:Screen", model_config=model, rollout_fragment_length=3, **settings) as worker:
                return worker.sample()

        # Pictures alone do not make an environment an Atari game.
        wrapped, plain = rows(preprocessor_pref="deepmind"), rows()
        self.assertEqual((wrapped["obs"].shape, wrapped["rewards"][0]), ((3, 10, 10, 2), 1.0))
        self.assertEqual((plain["obs"].shape, plain["rewards"][0]), ((3, 64, 64, 3), np.float32(0.3)))

    def test_vector_environments_lose_no_last_observation(self):
        # One process, whose environments count to three, four and five.
        rollmesh.allow_python("py:lab", processes=1)
        for mode in ("SameStep", "Disabled"):
            config = {"env": "py:lab:counters", "env_config": {"vectorize": "native", "mode": mode}, "num_envs": 3}
            with self.subTest(mode), RolloutWorker(config, rollout_fragment_length=12) as worker:
                batch = worker.sample()
                self.assertEqual(sorted(set(batch["new_obs"][batch["terminateds"]].ravel())), [3.0, 4.0, 5.0])
                self.assertEqual(batch["terminateds"].sum(), 4 + 3 + 2)

    def test_pictures_are_those_of_the_environment(self):
        with tempfile.TemporaryDirectory() as folder:
            with RolloutWorker("py:lab:counter", rollout_fragment_length=10, monitor_path=folder) as worker:
                worker.sample()
            self.assertTrue(list(pathlib.Path(folder).rglob("*.gif")))

    def test_failed_environments_are_restarted_where_the_settings_say_so(self):
        config = {"env": "py:envs:Fragile", "rollout_fragment_length": 60}
        with RolloutWorker(config) as worker, self.assertRaisesRegex(rollmesh.Error, "RuntimeError: worn out"):
            worker.sample()
        with RolloutWorker(config, restart_failed_sub_environments=True) as worker:
            self.assertEqual(len(worker.sample()), 60)
            faults = [episode["faulty"] or "" for episode in worker.get_metrics()["episodes"]]
            self.assertTrue(any("worn out" in fault for fault in faults), faults)


if __name__ == "__main__":
    unittest.main()
