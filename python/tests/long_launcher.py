"""Workers of a hub on a local Ray: start, scale, kill and end them. Needs `ray` and the installed package; ROLLMESH_BIN names
another program."""

import functools
import json
import os
import re
import signal
import subprocess
import sysconfig
import tempfile
import time
import unittest

import ray
from ray.cluster_utils import Cluster

from rollmesh import ray as cluster

PROGRAM = os.environ.get("ROLLMESH_BIN") or cluster.program_here()
# Only an operation that hangs takes this long.
PATIENCE = 120.0


def rollmesh(hub: "Hub", *arguments: str, token: str) -> str:
    command = [PROGRAM, *arguments, "--hub", hub.url]
    environment = os.environ | {"ROLLMESH_TOKEN": token}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


class Hub:
    """A hub without a run."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        folder = self.folder.name
        command = [PROGRAM, "hub", "--listen", "127.0.0.1:0", "--state-dir", folder, "--runs-dir", f"{folder}/runs"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        dashboard = re.compile(r"dashboard  http://([^/]+)/#token=(\w+)")
        for line in self.process.stderr:
            if found := dashboard.match(line):
                self.url, self.operator = f"ws://{found[1]}", found[2]
                break
        self.launcher = rollmesh(self, "tokens", "create", "--role", "launcher", token=self.operator).strip()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()
        self.folder.cleanup()


def until(what: str, happens) -> object:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if result := happens():
            return result
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {PATIENCE} s")


def processes(*words: str) -> list[int]:
    """Returns the processes with these words on their command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                line = file.read().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if all(word in line for word in words):
            found.append(int(pid))
    return found


def parent(pid: int) -> int:
    """Returns the parent of a process."""
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


class LocalRay(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.ray = ray.init(num_cpus=4, include_dashboard=True, log_to_driver=False)

    @classmethod
    def tearDownClass(cls) -> None:
        ray.shutdown()

    def setUp(self) -> None:
        self.hub = Hub()
        self.addCleanup(self.hub.stop)

    def up(self, **settings: object) -> dict:
        return cluster.up(self.hub.url, self.hub.launcher, name=self.id().rsplit(".", 1)[1], program=PROGRAM, **settings)

    def status(self) -> dict:
        return cluster.status(name=self.id().rsplit(".", 1)[1])

    def workers(self) -> list[int]:
        return processes("worker --hub", self.hub.url)

    def scale(self, number: int) -> None:
        cluster.scale(number, self.hub.operator, name=self.id().rsplit(".", 1)[1], program=PROGRAM)

    def running(self, number: int) -> bool:
        states = [worker["state"] for worker in self.status()["workers"]]
        return states.count("running") == number and len(self.workers()) == number

    def test_workers_are_scaled_killed_and_ended(self) -> None:
        name = self.id().rsplit(".", 1)[1]
        for found in (False, True):
            launcher = self.up(capacity=4)
            self.assertEqual((launcher["name"], launcher["workers"], launcher["found"]), (name, [], found))
        for number in (2, 4, 1):
            self.scale(number)
            until(f"{number} workers", lambda number=number: self.running(number))
        for token in (self.hub.launcher, self.hub.operator):
            self.assertEqual(processes(token), [], "a token is on a command line")

        # A worker is replaced if it is killed, or its actor.
        [victim] = self.workers()
        os.kill(victim, signal.SIGKILL)
        until("another worker", lambda: self.running(1) and victim not in self.workers())
        [worker] = self.status()["workers"]
        [victim] = self.workers()
        os.kill(worker["actor_pid"], signal.SIGKILL)
        until("another worker", lambda: self.running(1) and victim not in self.workers())

        with self.assertRaisesRegex(cluster.Refused, "places of the connected launchers are taken"):
            self.scale(5)
        cluster.down(name=name)
        until("the end of the workers", lambda: not self.workers())
        with self.assertRaises(cluster.NotRunning):
            cluster.status(name=name)

    def test_workers_wait_for_resources(self) -> None:
        self.up(num_cpus=3)
        self.scale(2)
        until("a worker that waits", lambda: sorted(w["state"] for w in self.status()["workers"]) == ["pending", "running"])
        self.scale(1)
        until("its end", lambda: self.running(1))
        cluster.down(name=self.id().rsplit(".", 1)[1])
        until("the end of the workers", lambda: not self.workers())

    def test_workers_end_with_their_hub(self) -> None:
        self.up()
        self.scale(2)
        until("workers", lambda: self.running(2))
        self.hub.process.terminate()
        until("the end of the workers", lambda: not self.workers())
        cluster.down(name=self.id().rsplit(".", 1)[1])

    def test_commands_start_and_end_workers_also_as_jobs(self) -> None:
        name = self.id().rsplit(".", 1)[1]
        rollmesh_script, ray_script = (os.path.join(sysconfig.get_path("scripts"), script) for script in ("rollmesh", "ray"))
        token_file = os.path.join(self.hub.folder.name, "launcher.token")
        with open(token_file, "w") as file:
            file.write(self.hub.launcher)

        def run(*words: str, job: bool = False) -> str:
            submit = [ray_script, "job", "submit", "--address", f"http://{self.ray.dashboard_url}", "--"] if job else []
            command = [*submit, rollmesh_script, *words, "--ray", self.ray.address_info["address"], "--name", name]
            environment = os.environ | {"ROLLMESH_TOKEN": self.hub.operator}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
            return done.stdout

        run("up", "--hub", self.hub.url, "--token-file", token_file, job=True)
        run("scale", "2")
        until("two workers", lambda: self.running(2))
        status = json.loads(run("status"))
        self.assertEqual((status["hub"], status["name"], len(status["workers"])), (self.hub.url, name, 2))
        run("down", job=True)
        until("the end of the workers", lambda: not self.workers())

    def test_launcher_needs_a_launchers_token(self) -> None:
        with self.assertRaisesRegex(cluster.Refused, "tokens create --role launcher"):
            cluster.up(self.hub.url, self.hub.operator, name="refused", program=PROGRAM)

    def test_launcher_that_was_refused_later_is_replaced(self) -> None:
        name = self.id().rsplit(".", 1)[1]
        self.up(arguments=["--data-root=/tmp"])
        self.scale(1)
        until("a worker", lambda: len(processes("worker --hub", self.hub.url, "--data-root=/tmp")) == 1)
        operate = functools.partial(rollmesh, self.hub, "tokens", token=self.hub.operator)
        [launcher] = [line.split()[0] for line in operate("list").splitlines() if " launcher " in line]
        operate("revoke", launcher)
        until("the end of the worker", lambda: not self.workers())
        with self.assertRaisesRegex(cluster.Refused, "tokens create --role launcher"):
            until("its end", lambda: self.up() and None)
        self.hub.launcher = operate("create", "--role", "launcher").strip()
        self.assertEqual(self.up()["name"], name)
        self.scale(1)
        until("a worker", lambda: self.running(1))
        cluster.down(name=name)


class Nodes(unittest.TestCase):
    """A cluster whose head has no CPUs, so that all workers are on nodes that can be killed."""

    def setUp(self) -> None:
        memory = {"object_store_memory": 100 << 20, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **memory})
        self.addCleanup(self.cluster.shutdown)
        self.nodes = [self.cluster.add_node(num_cpus=2, object_store_memory=100 << 20) for _ in range(2)]
        ray.init(address=self.cluster.address, log_to_driver=False)
        self.addCleanup(ray.shutdown)
        self.hub = Hub()
        self.addCleanup(self.hub.stop)
        cluster.up(self.hub.url, self.hub.launcher, name="nodes", program=PROGRAM, capacity=2)

    def run_on_hub(self, disturb) -> dict:
        """Runs two workers' work on the cluster. Returns the run's summary."""
        settings = ["seed=5", "num_workers=2", "num_envs=8", "num_slots=16", "stop.env_steps=120000"]
        command = [PROGRAM, "start", "--hub", self.hub.url, "--wait", "--json"]
        command += [word for setting in settings for word in ("--set", setting)]
        environment = os.environ | {"ROLLMESH_TOKEN": self.hub.operator}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as run:
            until("two workers", lambda: len(self.workers()) == 2)
            disturb()
            done = json.loads(run.communicate(timeout=PATIENCE)[0])
        with open(os.path.join(done["dir"], "summary.json")) as file:
            return json.load(file)

    def workers(self) -> list[int]:
        return processes("worker --hub", self.hub.url)

    def replaced(self, victims: list[int]) -> bool:
        workers = self.workers()
        return len(workers) == 2 and not set(victims) <= set(workers)

    def kill_everything_once(self) -> None:
        [victim, _] = self.workers()
        os.kill(victim, signal.SIGKILL)
        until("another worker", lambda: self.replaced([victim]))
        before = self.workers()
        actor = cluster.status(name="nodes")["workers"][0]["actor_pid"]
        orphan = next(pid for pid in before if parent(pid) == actor)
        os.kill(actor, signal.SIGKILL)
        killed = time.monotonic()
        until("the end of the actor's worker", lambda: orphan not in self.workers())
        self.assertLess(time.monotonic() - killed, 3, "a worker ends with its actor")
        until("another worker", lambda: self.replaced(before))
        # A node of the cluster ends with its raylet, and so do all processes there.
        before = self.workers()
        self.cluster.remove_node(self.nodes[0], allow_graceful=False)
        self.cluster.add_node(num_cpus=2, object_store_memory=100 << 20)
        until("workers on the other nodes", lambda: len(self.workers()) == 2)
        self.assertEqual(len(before), 2)

    def test_run_ends_as_a_calm_one_although_worker_actor_and_raylet_are_killed(self) -> None:
        calm = self.run_on_hub(lambda: None)
        disturbed = self.run_on_hub(self.kill_everything_once)
        self.assertEqual(disturbed["weights_hash"], calm["weights_hash"])
        self.assertEqual(disturbed["env_steps"], calm["env_steps"])
        self.hub.process.kill()
        ended = time.monotonic()
        until("the end of the workers", lambda: not self.workers())
        self.assertLess(time.monotonic() - ended, 40, "the launcher waits for 30 s for a hub that was killed")


if __name__ == "__main__":
    unittest.main()
