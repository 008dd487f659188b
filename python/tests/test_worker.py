"""Workers, groups, runs and evaluations."""

import contextlib
import io
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np

import rollmesh
from rollmesh import Algorithm, EvalWorker, RolloutWorker, WorkerGroup, _program

CONFIG = {"env": "CartPole-v1", "num_envs": 8, "rollout_fragment_length": 100, "seed": 7}


class Workers(unittest.TestCase):
    def test_samples_are_bit_identical_to_the_command_line(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "config.json")
            file.write_text(json.dumps(CONFIG))
            command = [_program.find(), "sample", "--config", file, "--env-steps", "1600", "--json"]
            done = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
        printed = json.loads(done.stdout.splitlines()[-1])
        with RolloutWorker(CONFIG) as worker:
            batches = [worker.sample(), worker.sample()]
        self.assertEqual(rollmesh.batch_hash(batches), printed["batch_hash"])

    def test_exit_codes_are_those_of_the_program(self):
        def run(*args: str) -> int:
            return subprocess.run([_program.find(), *args], capture_output=True).returncode

        self.assertEqual((run("--version"), run("sample", "--env", "NoSuchEnv-v0"), run("no-such-command")), (0, 2, 2))

    def test_settings_come_as_keywords_or_a_mapping(self):
        with RolloutWorker("CartPole-v1", num_envs=2, rollout_fragment_length=10) as worker:
            batch, count = worker.sample_with_count()
            self.assertEqual((count, len(batch), worker.num_envs), (20, 20, 2))
            self.assertEqual(worker.policy_ids, ["default_policy"])
        with self.assertRaisesRegex(rollmesh.ConfigError, "num_envz"):
            RolloutWorker("CartPole-v1", num_envz=2)
        with self.assertRaisesRegex(rollmesh.ConfigError, "NoSuchEnv"):
            RolloutWorker("NoSuchEnv-v0")

    def test_settings_of_wrong_types_are_named(self):
        class Env:
            pass

        for given, want in (
            ((Env,), "env is <class .*: it is a name, such as .*'py:module:Class'"),
            ((None, {"env": Env()}), "env is <.*Env object"),
            ((CONFIG, CONFIG), "env and config are both mappings"),
            (("CartPole-v1", [1]), "config is of list"),
            ((None, {**CONFIG, "env_config": {"a": {"b": Env()}}}), "env_config.a.b is of Env"),
        ):
            with self.assertRaisesRegex(TypeError, want):
                RolloutWorker(*given)
        with self.assertRaisesRegex(ValueError, "env_config.a is nan"):
            RolloutWorker("CartPole-v1", env_config={"a": np.nan})
        with self.assertRaisesRegex(TypeError, "samples|a batch is"):
            with RolloutWorker(CONFIG) as worker:
                worker.learn_on_batch({"obs": [1]})

    def test_settings_may_be_numbers_of_numpy_paths_and_infinities(self):
        with tempfile.TemporaryDirectory() as folder:
            config = {"num_envs": np.int64(2), "rollout_fragment_length": np.int32(5), "horizon": float("inf")}
            model = {"fcnet_hiddens": np.array([4, 4])}
            with RolloutWorker("CartPole-v1", config, model_config=model, output=pathlib.Path(folder)) as worker:
                self.assertEqual(len(worker.sample()), 10)
            self.assertTrue(list(pathlib.Path(folder).iterdir()))
        stop = rollmesh.RunConfig("CartPole-v1", stop={"env_steps": np.inf, "wall_s": np.inf}).stop
        self.assertEqual((stop["env_steps"], stop.get("wall_s")), (2**63 - 1, None))

    def test_an_environment_of_gymnasium_runs_if_it_is_named_as_an_argument(self):
        with RolloutWorker("gym:CartPole-v1", num_envs=2, rollout_fragment_length=20) as worker:
            self.assertEqual(worker.sample()["obs"].shape, (40, 4))

    def test_several_processes_step_environments_to_the_same_rows(self):
        def sample(processes: int) -> rollmesh.SampleBatch:
            rollmesh.allow_python("gym:CartPole-v1", processes=processes)
            with RolloutWorker("gym:CartPole-v1", num_envs=5, rollout_fragment_length=30, seed=4) as worker:
                return worker.sample()

        self.addCleanup(sample, 1)
        self.assertEqual(sample(3), sample(1))

    def test_settings_and_checkpoints_allow_no_environments_of_python(self):
        with self.assertRaisesRegex(rollmesh.Error, "'py:subprocess:Popen' may not run"):
            RolloutWorker({"env": "py:subprocess:Popen"})
        with tempfile.TemporaryDirectory() as folder:
            run = (
                "import rollmesh, sys\n"
                "settings = {'num_workers': 0, 'num_envs': 2, 'rollout_fragment_length': 50, 'run_dir': sys.argv[1]}\n"
                "with rollmesh.Algorithm('gym:Acrobot-v1', **settings) as algorithm:\n"
                "    algorithm.step()\n"
                "    algorithm.save()\n"
            )
            run_dir = os.path.join(folder, "run")
            subprocess.run([sys.executable, "-c", run, run_dir], check=True)
            with self.assertRaisesRegex(rollmesh.Error, "'gym:Acrobot-v1' may not run.*rollmesh.allow_python"):
                Algorithm.from_checkpoint(run_dir)
            with self.assertRaisesRegex(rollmesh.ConfigError, "'Acrobot-v1' names no Python environments"):
                rollmesh.allow_python("Acrobot-v1")
            rollmesh.allow_python(["gym:Acrobot-*"])
            with Algorithm.from_checkpoint(run_dir) as algorithm:
                self.assertEqual(algorithm.step()["iteration"], 2)

    def test_state_resumes_with_the_same_rows(self):
        with RolloutWorker(CONFIG) as one, RolloutWorker(CONFIG) as two:
            one.sample()
            two.set_state(one.get_state())
            self.assertEqual(one.sample(), two.sample())

    def test_weights_make_the_round_trip_and_actions_follow_them(self):
        with RolloutWorker(CONFIG) as worker:
            policy = worker.get_policy()
            weights = policy.get_weights()
            self.assertEqual({name.split(".")[0] for name in weights}, {"policy", "value"})
            layers = sorted(int(name.split(".")[1]) for name in weights if name.startswith("policy") and "bias" in name)
            self.assertEqual(layers, list(range(0, 2 * len(layers), 2)))
            self.assertTrue(all(array.flags.writeable for array in weights.values()))
            batch = worker.sample()
            obs = batch["obs"][:5]
            hidden = obs
            for layer in layers:
                hidden = hidden @ weights[f"policy.{layer}.weight"].T + weights[f"policy.{layer}.bias"]
                hidden = hidden if layer == layers[-1] else np.tanh(hidden)
            actions, states, extras = policy.compute_actions(obs, explore=False)
            np.testing.assert_array_equal(actions, hidden.argmax(axis=1))
            self.assertEqual((states, extras["action_logp"].shape), ([], (5,)))
            policy.set_weights({name: 2 * array for name, array in weights.items()})
            for name, array in policy.get_weights().items():
                np.testing.assert_array_equal(array, 2 * weights[name])
            with self.assertRaisesRegex(rollmesh.Error, "policy.0.bias"):
                policy.set_weights({name: array for name, array in weights.items() if name != "policy.0.bias"})

    def test_a_worker_learns_from_what_was_written_into_a_policys_batch(self):
        config = {**CONFIG, "policies": {"default_policy": {"policy": "ppo"}}}
        with RolloutWorker(config) as one, RolloutWorker(config) as two:
            batch = one.sample().as_multi_agent()
            plain = two.learn_on_batch(batch)["default_policy"]
            batch["default_policy"]["value_targets"] = batch["default_policy"]["value_targets"] + 100
            self.assertGreater(one.learn_on_batch(batch)["default_policy"]["vf_loss"], plain["vf_loss"])

    def test_exploration_advances_across_calls_of_get_policy(self):
        obs = np.zeros((64, 4), np.float32)
        with RolloutWorker(CONFIG) as worker, WorkerGroup(CONFIG) as group:
            for owner in (worker, group):
                steps = [owner.get_policy().compute_actions(obs)[0] for _ in range(3)]
                self.assertTrue((steps[0] != steps[1]).any() and (steps[1] != steps[2]).any())
                for t, step in enumerate(steps):
                    np.testing.assert_array_equal(owner.get_policy().compute_actions(obs, timestep=t)[0], step)

    def test_memories_see_the_previous_step_that_the_caller_gives(self):
        model = {"use_lstm": True, "lstm_cell_size": 4, "lstm_use_prev_action": True, "lstm_use_prev_reward": True}
        with RolloutWorker({**CONFIG, "model_config": model}) as worker:
            policy, obs = worker.get_policy(), np.zeros((2, 4), np.float32)
            actions, states, _ = policy.compute_actions(obs)

            def values(**before):
                return policy.compute_actions(obs, states, timestep=1, **before)[2]["vf_preds"]

            plain = values()
            np.testing.assert_array_equal(values(prev_action_batch=actions, prev_reward_batch=[0.0, 0.0]), plain)
            self.assertEqual((values(prev_reward_batch=[0.0, 1.0]) != plain).tolist(), [False, True])
            self.assertEqual((values(prev_action_batch=[1 - actions[0], actions[1]]) != plain).tolist(), [True, False])
            with self.assertRaisesRegex(rollmesh.PolicyError, "previous actions of Discrete"):
                values(prev_action_batch=[0, 2])
            with self.assertRaisesRegex(rollmesh.PolicyError, "2 previous rewards"):
                values(prev_reward_batch=[1.0])
            single = policy.compute_single_action(obs[1], [states[0][1]], prev_reward=1.0)
            self.assertEqual(single[2]["vf_preds"], values(prev_reward_batch=[0.0, 1.0])[1])

    def test_no_observations_have_no_actions(self):
        discrete, real, memory = {**CONFIG}, {"env": "Pendulum-v1"}, {**CONFIG, "model_config": {"use_lstm": True}}
        for config in (discrete, real, memory):
            with RolloutWorker(config) as worker:
                obs = worker.sample()["obs"]
                actions, states, extras = worker.get_policy().compute_actions(obs[:0])
                self.assertEqual((len(actions), states, len(extras["vf_preds"])), (0, [], 0))
                self.assertEqual(len(worker.get_policy().compute_actions(obs[:2])[0]), 2)

    def test_weights_that_do_not_fit_are_named_as_they_were_given(self):
        def renumbered(name: str) -> str:
            network, layer, part = name.split(".")
            return f"{network}.{int(layer) // 2}.{part}"

        config = {**CONFIG, "model_config": {"fcnet_hiddens": [64, 32]}}
        with RolloutWorker(config) as worker, WorkerGroup(config) as group:
            weights = worker.get_weights("default_policy")["default_policy"]
            shape = weights["policy.2.weight"].shape
            self.assertEqual(shape, (32, 64))
            turned = {**weights, "policy.2.weight": weights["policy.2.weight"].T}
            unknown = {**weights, "policy.9.weight": weights["policy.2.weight"]}
            headless = {name: array for name, array in weights.items() if not name.startswith("policy.0.")}
            for set_weights in (worker.set_weights, worker.get_policy().set_weights, group.sync_weights):
                with self.assertRaisesRegex(rollmesh.PolicyError, r"'policy.2.weight' .* are \(64, 32\), not \(32, 64\)"):
                    set_weights(turned)
                with self.assertRaisesRegex(rollmesh.PolicyError, "has no weights 'policy.9.weight'"):
                    set_weights(unknown)
                with self.assertRaisesRegex(rollmesh.PolicyError, r"'policy\.0\.(weight|bias)' .* are missing"):
                    set_weights(headless)
                with self.assertRaisesRegex(rollmesh.PolicyError, r"'policy.1.weight' .* are \(64, 32\), not \(32, 64\)"):
                    set_weights({renumbered(name): array for name, array in turned.items()})
                with self.assertRaisesRegex(TypeError, "weights are a mapping of names to arrays.*, not list"):
                    set_weights(list(weights.values()))
                set_weights({renumbered(name): array for name, array in weights.items()})
                set_weights(weights)
            for policies in ("other", ["default_policy", "other"]):
                for given in (weights, None):
                    with self.assertRaisesRegex(rollmesh.PolicyError, "no weights of policy 'other'"):
                        group.sync_weights(given, policies=policies)
            with self.assertRaisesRegex(rollmesh.PolicyError, "no policy 'other'"):
                group.sync_weights({"other": weights})
            group.sync_weights(weights, policies="default_policy", timeout_seconds=None)

    def test_observations_of_another_shape_are_refused(self):
        with RolloutWorker(CONFIG) as worker:
            policy = worker.get_policy()
            for shape in ((2, 6), (8,), (3, 2, 2)):
                want = rf"obs_batch has the shape \[{', '.join(map(str, shape))}\]; give .* \[{shape[0]}, 4\]"
                with self.assertRaisesRegex(rollmesh.PolicyError, want):
                    policy.compute_actions(np.zeros(shape))
            with self.assertRaisesRegex(rollmesh.PolicyError, "state_batches"):
                policy.compute_actions(np.zeros((2, 4)), [np.zeros((2, 3))])

    def test_a_stopped_worker_refuses_to_sample(self):
        worker = RolloutWorker(CONFIG)
        worker.stop()
        worker.stop()
        with self.assertRaisesRegex(rollmesh.ClosedError, "RolloutWorker was stopped"):
            worker.sample()

    @unittest.skipUnless(hasattr(signal, "setitimer"), "there are no timers here")
    def test_no_batch_is_lost_to_ctrl_c(self):
        # The system's timer is on time without a thread of this process, and its signal raises the same as Ctrl-C.
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        # Samples of many slices, and of one, in which the batch is completed after the signal.
        interrupted = {4_000: 0, 100: 0}
        for length in interrupted:
            config = {**CONFIG, "num_envs": 64, "rollout_fragment_length": length}
            with RolloutWorker(config) as worker, RolloutWorker(config) as plain:
                for attempt in range(100):
                    if attempt >= 10 and interrupted[length] > 0:
                        break
                    begun = time.monotonic()
                    want, batch = plain.sample(), None
                    delay = (attempt % 10 + 0.5) / 10 * (time.monotonic() - begun)
                    try:
                        signal.setitimer(signal.ITIMER_REAL, delay)
                        batch = worker.sample()
                        signal.setitimer(signal.ITIMER_REAL, 0)
                    except KeyboardInterrupt:
                        interrupted[length] += batch is None
                    self.assertEqual(worker.sample() if batch is None else batch, want)
        self.assertGreater(interrupted[4_000], 0)


    @unittest.skipUnless(hasattr(signal, "setitimer"), "there are no timers here")
    def test_ctrl_c_leaves_an_environment_that_hangs_to_its_thread(self):
        folder = os.pathsep.join(filter(None, [str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH")]))
        for make in ("RolloutWorker('py:envs:Slow')", "WorkerGroup('py:envs:Slow', num_workers=1, placement='processes')"):
            program = (
                "import rollmesh, signal, time\n"
                f"with rollmesh.{make} as owner:\n"
                "    signal.setitimer(signal.ITIMER_REAL, 0.5)\n"
                "    signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
                "    print(flush=True)\n"
                "    owner.sample()\n"
            )
            command = [sys.executable, "-c", program]
            with subprocess.Popen(
                command, env={**os.environ, "PYTHONPATH": folder}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as child:
                child.stdout.readline()
                begun = time.monotonic()
                words = child.communicate()[1]
                # A step takes 5 s.
                self.assertLess(time.monotonic() - begun, 4, make)
                self.assertTrue(words.rstrip().endswith("KeyboardInterrupt"), words)


def is_running(pid: int) -> bool:
    try:
        # A zombie has ended.
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@unittest.skipUnless(sys.platform == "linux", "looks at /proc")
class Ends(unittest.TestCase):
    def test_worker_processes_end_when_python_is_killed(self):
        program = (
            "import rollmesh, sys\n"
            "group = rollmesh.WorkerGroup('CartPole-v1', num_workers=2, placement='processes')\n"
            "print(*group.worker_pids, flush=True)\n"
            "sys.stdin.read()\n"
        )
        with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            pids = [int(pid) for pid in child.stdout.readline().split()]
            self.assertEqual([is_running(pid) for pid in pids], [True, True])
            child.kill()
        deadline = time.monotonic() + 30
        while any(map(is_running, pids)) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual([is_running(pid) for pid in pids], [False, False])

    def test_dropped_workers_leave_neither_threads_nor_memory(self):
        def status(name: str) -> int:
            lines = pathlib.Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith(name))

        def make(times: int) -> None:
            for _ in range(times):
                RolloutWorker("CartPole-v1", num_envs=2, rollout_fragment_length=5).sample()

        make(50)
        threads, memory = status("Threads:"), status("VmRSS:")
        make(300)
        deadline = time.monotonic() + 10
        while status("Threads:") > threads and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertLessEqual(status("Threads:"), threads)
        self.assertLess(status("VmRSS:") - memory, 20_000)


class Groups(unittest.TestCase):
    def test_settings_of_the_group_are_in_the_mapping_or_arguments(self):
        config = {**CONFIG, "num_workers": 2, "placement": "threads", "local_worker": False}
        config |= {"max_staleness": None, "max_num_env_runner_restarts": float("inf"), "deadline_s": None}
        config |= {"env_runner_health_probe_timeout_s": None, "env_runner_restore_timeout_s": float("inf")}
        with WorkerGroup(config) as group:
            self.assertEqual(group.num_healthy_remote_workers(), 2)
            with self.assertRaisesRegex(rollmesh.GroupError, "local"):
                group.learn_on_batch(group.synchronous_parallel_sample(timeout_s=None))
        with WorkerGroup(config, num_workers=1, local_worker=True) as group:
            self.assertTrue(group.wait_for_workers(1, timeout_s=None))
            self.assertIn("default_policy", group.get_weights())
        with self.assertRaisesRegex(TypeError, "max_staleness: 'str' object"):
            WorkerGroup({**config, "max_staleness": "2"})
        with self.assertRaisesRegex(TypeError, "delay_between_env_runner_restarts_s: "):
            WorkerGroup({**config, "delay_between_env_runner_restarts_s": None})

    def test_threads_and_processes_sample_the_same(self):
        hashes, pids = [], []
        for placement in ("threads", "processes"):
            with WorkerGroup(CONFIG, num_workers=2, placement=placement) as group:
                batches = group.synchronous_parallel_sample(concat=False)
                self.assertEqual([batch.env_steps() for batch in batches], [800, 800])
                hashes.append(rollmesh.batch_hash(batches))
                pids += group.worker_pids
        self.assertEqual(hashes[0], hashes[1])
        self.assertEqual(len(pids), 2)

    def test_workers_act_with_weights_of_python(self):
        with WorkerGroup(CONFIG, num_workers=1) as group:
            weights = {name: np.zeros_like(array) for name, array in group.get_weights()["default_policy"].items()}
            last = max(name for name in weights if name.startswith("policy") and "bias" in name)
            weights[last][1] = 50.0
            group.sync_weights(weights, timeout_seconds=10)
            batch = group.synchronous_parallel_sample()
            self.assertTrue((batch["actions"] == 1).all())
            self.assertGreater(group.get_metrics()["episodes_this_iter"], 0)

    def test_dashboards_show_a_group(self):
        with WorkerGroup(CONFIG, num_workers=1, dashboard=True) as group:
            url, token = group.dashboard_url.split("/#token=")
            command = [_program.find(), "workers", "--hub", url, "--json"]
            shown = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "ROLLMESH_TOKEN": token})
            self.assertEqual(shown.returncode, 0, shown.stderr)
            self.assertEqual([row["kind"] for row in json.loads(shown.stdout)], ["thread"])
            self.assertIsNone(group.invite(), "no tab can join threads")
        with WorkerGroup(CONFIG) as group:
            self.assertIsNone(group.dashboard_url)

    def test_groups_of_remote_workers_invite_tabs(self):
        with WorkerGroup(CONFIG, num_workers=1, placement="remote", dashboard=True) as group:
            url, _ = group.dashboard_url.split("/#token=")
            self.assertRegex(group.invite(), f"^{url}/#join=[0-9a-f]{{64}}$")
        with WorkerGroup(CONFIG, num_workers=1, placement="remote") as group:
            self.assertIsNone(group.invite(), "there is no page to join from")

    def test_filters_are_synchronised_and_count_every_row_once(self):
        config = {**CONFIG, "observation_filter": "MeanStdFilter", "rollout_fragment_length": 10}
        for placement in ("threads", "processes"):
            with WorkerGroup(config, num_workers=2, placement=placement) as group:
                seen = 0
                for _ in range(2):
                    group.synchronous_parallel_sample()
                    local, *others = (filters["default_policy"] for filters in group.get_filters())
                    self.assertNotEqual(others[0], others[1])
                    # The rows of 8 environments, and the first observations of episodes.
                    self.assertTrue(all(other["count"] >= seen + 80 for other in others))
                    seen = sum(other["count"] - seen for other in others) + seen
                    group.sync_filters()
                    local, *others = (filters["default_policy"] for filters in group.get_filters())
                    self.assertEqual(others, [local, local])
                    self.assertEqual(local["count"], seen)
                group.synchronous_parallel_sample()
                group.sync_filters(update_worker_filter_stats=False)
                local, *others = (filters["default_policy"]["count"] for filters in group.get_filters())
                self.assertGreater(local, max(others))
                group.sync_env_runner_states(config={"update_worker_filter_stats": True, **config})
                local, *others = (filters["default_policy"]["count"] for filters in group.get_filters())
                self.assertEqual(others, [local, local])
        with RolloutWorker(config) as worker, RolloutWorker(CONFIG) as plain:
            worker.sample()
            self.assertGreaterEqual(worker.get_filters()["default_policy"]["count"], 80)
            self.assertEqual(plain.get_filters(), {"default_policy": None})

    def test_policies_come_and_go_on_all_workers(self):
        with WorkerGroup(CONFIG, num_workers=1) as group:
            group.add_policy("second", "net", {"model": {"fcnet_hiddens": [4]}})
            self.assertEqual([sorted(filters) for filters in group.get_filters()], [["default_policy", "second"]] * 2)
            self.assertEqual(group.get_weights("second")["second"]["policy.0.bias"].shape, (4,))
            policy = group.get_policy("second")
            self.assertEqual((policy.observation_space.shape, policy.action_space.n), ((4,), 2))
            group.remove_policy("second")
            self.assertEqual(list(group.get_weights()), ["default_policy"])
            with self.assertRaisesRegex(rollmesh.GroupError, "default_policy"):
                group.remove_policy("default_policy")

    def test_local_worker_learns(self):
        config = {**CONFIG, "policies": {"default_policy": {"policy": "ppo"}}}
        with WorkerGroup(config, num_workers=1) as group:
            before = group.get_weights()["default_policy"]
            learned = group.learn_on_batch(group.synchronous_parallel_sample())
            self.assertIn("default_policy", learned)
            after = group.get_weights()["default_policy"]
            self.assertTrue(any((before[name] != after[name]).any() for name in before))

    def test_a_numpy_learner_learns(self):
        sys.path.insert(0, os.environ.get("ROLLMESH_EXAMPLES", str(pathlib.Path(__file__).parents[1] / "examples")))
        import numpy_learner

        returns = numpy_learner.learn(40)
        self.assertGreater(np.mean(returns[-5:]), 1.5 * np.mean(returns[:5]))


class Runs(unittest.TestCase):
    SETTINGS = {"env": "CartPole-v1", "num_workers": 0, "num_envs": 4, "seed": 7}

    def test_a_run_is_saved_and_resumes_bit_identically(self):
        with tempfile.TemporaryDirectory() as folder:
            run_dir = os.path.join(folder, "run")
            with Algorithm(self.SETTINGS, run_dir=run_dir) as algorithm:
                self.assertEqual(algorithm.step()["iteration"], 1)
                self.assertEqual(algorithm.save(), run_dir)
                algorithm.step()
                want = algorithm.weights_hash
            with Algorithm(self.SETTINGS) as plain:
                plain.step()
                plain.step()
                self.assertEqual(plain.weights_hash, want)
                found = plain.evaluate(2)
                self.assertEqual(len(found["episodes"]), 2)
                actions, _, _ = plain.get_policy().compute_actions(np.zeros((3, 4), np.float32))
                self.assertEqual(actions.shape, (3,))
                self.assertEqual(plain.stop()["weights_hash"], want)
                self.assertIsNone(plain.stop())

    def test_a_run_is_restored_in_place(self):
        with tempfile.TemporaryDirectory() as folder:
            first, second = (os.path.join(folder, name) for name in ("first", "second"))
            with Algorithm(self.SETTINGS, run_dir=first) as algorithm:
                algorithm.step()
                algorithm.save()
                want = algorithm.weights_hash
            with Algorithm({**self.SETTINGS, "seed": 8}, run_dir=second) as algorithm:
                begun = algorithm.weights_hash
                with self.assertRaises(rollmesh.AlgorithmError):
                    algorithm.restore(os.path.join(folder, "none"))
                self.assertEqual(algorithm.weights_hash, begun)
                self.assertIsNone(algorithm.restore(pathlib.Path(first)))
                self.assertEqual(algorithm.weights_hash, want)
                self.assertEqual(algorithm.step()["iteration"], 2)
                algorithm.restore(first)
                self.assertEqual(algorithm.step()["iteration"], 3)

    def test_evaluations_alongside_a_run_are_among_the_metrics_of_a_step(self):
        settings = {**self.SETTINGS, "evaluation": {"interval": 2, "episodes": 3}}
        with Algorithm(settings) as algorithm:
            evaluated = []
            while not evaluated:
                evaluated += filter(None, [algorithm.step().get("evaluation")])
            self.assertEqual((evaluated[0]["episodes"], evaluated[0]["iteration"] % 2), (3, 0))
            self.assertEqual(algorithm.stop()["evaluation"]["episodes"], 3)

    def test_settings_of_a_run_are_complete_and_build_it(self):
        config = rollmesh.RunConfig("CartPole-v1", num_workers=0, num_envs=4, seed=7)
        self.assertEqual((config.num_envs, config["seed"], config["num_workers"]), (4, 7, 0))
        self.assertIn("rollout_fragment_length", config)
        self.assertEqual(rollmesh.RunConfig(config), config)
        with config.build_algo() as built, Algorithm(self.SETTINGS) as wanted:
            built.step()
            wanted.step()
            self.assertEqual(built.weights_hash, wanted.weights_hash)
        self.assertEqual(config.updated(seed=8).seed, 8)
        with self.assertRaisesRegex(AttributeError, r"use updated\(seed=9\)"):
            config.seed = 9
        for stop in (config.stop, config["stop"], config.to_dict()["stop"], dict(config)["stop"]):
            stop["env_steps"] = 1
        self.assertNotEqual(config.stop["env_steps"], 1)
        self.assertEqual(pickle.loads(pickle.dumps(config)), config)
        with self.assertRaisesRegex(AttributeError, "there is no setting 'gama'"):
            config.gama
        with self.assertRaisesRegex(rollmesh.ConfigError, "gama"):
            config.updated(gama=1)
        with tempfile.TemporaryDirectory() as folder:
            run_dir = os.path.join(folder, "run")
            config.build_algo(run_dir).stop()
            stored = rollmesh.RunConfig.from_file(os.path.join(run_dir, "config.toml"))
            self.assertEqual((stored.env, stored.seed, stored.num_envs), ("CartPole-v1", 7, 4))

    def test_progress_is_shown_in_terminals_and_on_request(self):
        for progress, wanted in ((None, False), (True, True)):
            said = io.StringIO()
            with contextlib.redirect_stderr(said), Algorithm({**self.SETTINGS, "stop": {"env_steps": 2_000}}) as algorithm:
                last = algorithm.run(progress)
                self.assertGreaterEqual(last["env_steps"], 2_000)
            line = f"{last['env_steps']:,} env steps · return {last['episode_return_mean']:.1f}"
            self.assertEqual(line in said.getvalue(), wanted, said.getvalue())
            self.assertEqual(said.getvalue().endswith("\n"), wanted)

    def test_worker_processes_make_the_same_weights(self):
        with Algorithm({**self.SETTINGS, "num_workers": 1}) as algorithm, Algorithm(self.SETTINGS) as local:
            algorithm.step()
            local.step()
            self.assertEqual(algorithm.weights_hash, local.weights_hash)

    def test_evaluation_in_a_process(self):
        with EvalWorker(self.SETTINGS) as worker:
            worker.submit(max_steps=50, break_when_any_done=False)
            found = worker.poll(60)
            self.assertGreater(found["env_steps"], 0)

    def test_errors_name_the_setting(self):
        with self.assertRaisesRegex(rollmesh.ConfigError, "gama"):
            Algorithm({**self.SETTINGS, "gama": 1})


if __name__ == "__main__":
    unittest.main()
