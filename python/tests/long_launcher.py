"""Workers of a hub on a local Ray: start, scale, kill and end them. Needs `ray` and the installed package; ROLLMESH_BIN names
another program."""

import functools
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
import unittest

import ray
from ray.cluster_utils import Cluster

from rollmesh import ray as cluster

PROGRAM = os.environ.get("ROLLMESH_BIN") or cluster.program_here()
ROOT = pathlib.Path(os.environ.get("ROLLMESH_ROOT", pathlib.Path(__file__).parents[2]))
# Only an operation that hangs takes this long.
PATIENCE = 120.0


def rollmesh(hub: "Hub", *arguments: str, token: str) -> str:
    command = [PROGRAM, *arguments, "--hub", hub.url]
    environment = os.environ | {"ROLLMESH_TOKEN": token}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


class Hub:
    """A hub without a run, whose tokens outlive it."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.tokens, self.runs = (os.path.join(self.folder.name, name) for name in ("tokens.json", "runs"))
        create = [PROGRAM, "tokens", "create", "--file", self.tokens, "--role"]
        self.operator, self.launcher = (
            subprocess.run([*create, role], check=True, capture_output=True, text=True).stdout.strip()
            for role in ("operator", "launcher")
        )
        self.start("127.0.0.1:0", "hub", "--runs-dir", self.runs)

    def start(self, listen: str, *words: str) -> None:
        """Starts the hub, or another one in its place."""
        log = os.path.join(self.folder.name, f"{words[0]}.log")
        command = [PROGRAM, *words, "--listen", listen, "--state-dir", self.folder.name, "--tokens", self.tokens]
        with open(log, "w") as file:
            self.process = subprocess.Popen(command, stderr=file, stdout=subprocess.DEVNULL)

        def url() -> re.Match[str] | None:
            with open(log) as file:
                return re.search(r"rollmesh worker --hub (ws://(\S+))", file.read())

        self.url, self.address = until("the hub's address", url).groups()

    def operate(self, *words: str) -> str:
        return rollmesh(self, *words, token=self.operator)

    def until_places(self) -> None:
        """Waits until the hub knows the places of a launcher: before that it would start workers on its own machine."""
        until("a launcher's places", lambda: json.loads(self.operate("status", "--json"))["launchers"])

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
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
        cls.ray = ray.init(num_cpus=10, include_dashboard=True, log_to_driver=False)

    @classmethod
    def tearDownClass(cls) -> None:
        ray.shutdown()

    def setUp(self) -> None:
        self.hub = Hub()
        self.addCleanup(self.hub.stop)

    def start(self, **settings: object) -> dict:
        return cluster.up(self.hub.url, self.hub.launcher, name=self.id().rsplit(".", 1)[1], program=PROGRAM, **settings)

    def up(self, **settings: object) -> dict:
        launcher = self.start(**settings)
        self.hub.until_places()
        return launcher

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
        self.up(num_cpus=6)
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

    def test_documented_commands_start_ten_workers(self) -> None:
        section = ROOT.joinpath("docs/deploy.md").read_text().partition("\n### Ray\n")[2]
        block = re.search(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[1]
        # This hub has no certificate, and the operator's token is in the environment.
        for documented, here in {"wss://hub.example:7878": self.hub.url, " --tls-fingerprint …": "", "ROLLMESH_TOKEN=… ": ""}.items():
            self.assertIn(documented, block)
            block = block.replace(documented, here)
        scripts = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
        environment = os.environ | {"ROLLMESH_TOKEN": self.hub.operator, "PATH": scripts}
        commands = block.splitlines()
        self.assertEqual(len(commands), 3)
        for command in commands:
            if " scale " in command:
                self.hub.until_places()
            subprocess.run(["sh", "-c", command], cwd=self.hub.folder.name, env=environment, check=True, timeout=PATIENCE)
        until("ten workers", lambda: len(json.loads(self.hub.operate("workers", "--json"))) == 10)
        self.assertEqual(len(self.workers()), 10)
        cluster.down(name="ray")

    def test_launcher_needs_a_launchers_token(self) -> None:
        with self.assertRaisesRegex(cluster.Refused, "tokens create --role launcher"):
            cluster.up(self.hub.url, self.hub.operator, name="refused", program=PROGRAM)

    def test_rotated_token_ends_no_workers(self) -> None:
        name = self.id().rsplit(".", 1)[1]
        self.up()
        self.scale(2)
        until("two workers", lambda: self.running(2))
        self.assertEqual({worker["node"] for worker in self.status()["workers"]}, {socket.gethostname()})
        workers = self.workers()
        [old] = [line.split()[0] for line in self.hub.operate("tokens", "list").splitlines() if " launcher " in line]
        cluster.renew(self.hub.operate("tokens", "rotate", old, "--grace", "5s").strip(), name=name)
        until("the end of the old token", lambda: re.search(f"{old} .* has expired", self.hub.operate("tokens", "list")))
        self.scale(3)
        until("a third worker", lambda: self.running(3))
        self.assertLess(set(workers), set(self.workers()))
        cluster.down(name=name)

    def test_launcher_that_was_refused_later_is_replaced(self) -> None:
        name = self.id().rsplit(".", 1)[1]
        self.up(arguments=["--data-root=/tmp"])
        self.scale(1)
        until("a worker", lambda: len(processes("worker --hub", self.hub.url, "--data-root=/tmp")) == 1)
        operate = functools.partial(self.hub.operate, "tokens")
        [launcher] = [line.split()[0] for line in operate("list").splitlines() if " launcher " in line]
        operate("revoke", launcher)
        until("the end of the worker", lambda: not self.workers())
        with self.assertRaisesRegex(cluster.Refused, "tokens create --role launcher"):
            until("its end", lambda: self.start() and None)
        self.hub.launcher = operate("create", "--role", "launcher").strip()
        self.assertEqual(self.up()["name"], name)
        self.scale(1)
        until("a worker", lambda: self.running(1))
        cluster.down(name=name)


class Run:
    """A run of two workers that is in progress on a hub, or another hub's after that has been killed."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        before = set(os.listdir(hub.runs)) if os.path.exists(hub.runs) else set()
        settings = ["seed=5", "num_workers=2", "num_envs=8", "num_slots=16", "stop.env_steps=200000"]
        hub.operate("start", *(word for setting in settings for word in ("--set", setting)))
        [name] = until("the run", lambda: os.path.exists(hub.runs) and set(os.listdir(hub.runs)) - before)
        self.dir = os.path.join(hub.runs, name)

    def read(self, name: str) -> dict:
        with open(os.path.join(self.dir, name)) as file:
            return json.load(file)

    def metrics(self) -> list[dict]:
        try:
            with open(os.path.join(self.dir, "metrics.jsonl")) as file:
                return [json.loads(line) for line in file if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def until_iterations(self, more: int) -> None:
        wanted = len(self.metrics()) + more
        until(f"iteration {wanted}", lambda: self.is_over() or len(self.metrics()) >= wanted)
        assert not self.is_over(), "the run is too short for what happens to it"

    def is_over(self) -> bool:
        return os.path.exists(os.path.join(self.dir, "summary.json"))

    def outcome(self) -> tuple[dict, list[dict]]:
        """Waits for the end. Returns the summary and the metrics, without times."""
        until("the end of the run", self.is_over)
        times = {"wall_s", "steps_per_s"}
        metrics = [{key: value for key, value in line.items() if key not in times} for line in self.metrics()]
        return {key: value for key, value in self.read("summary.json").items() if key not in times}, metrics


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
        self.hub.until_places()

    def workers(self) -> list[int]:
        return processes("worker --hub", self.hub.url)

    def raylet_of(self, worker: int) -> object:
        """Returns the node whose raylet is an ancestor of this process."""
        ancestors = [worker]
        while ancestors[-1] > 1:
            ancestors.append(parent(ancestors[-1]))
        return next(node for node in self.nodes if node.all_processes["raylet"][0].process.pid in ancestors)

    def replace(self, run: Run, what: str, victims: list[int], kill) -> None:
        """Kills what workers depend on, in the middle of a run: they end soon, and others take their places."""
        run.until_iterations(3)
        killed = time.monotonic()
        kill()
        until(f"the end of the workers of the {what}", lambda: not set(victims) & set(self.workers()))
        ended = time.monotonic() - killed
        self.assertLess(ended, 3, f"a worker ends with its {what}")
        # So that the run is not over before the others are there.
        self.hub.operate("pause")
        until("other workers", lambda: len(self.workers()) == 2)
        replaced = time.monotonic() - killed
        print(f"{what}: the workers ended after {ended:.2f} s and were replaced after {replaced:.2f} s", flush=True)
        self.assertLess(replaced, 60)
        self.hub.operate("resume")

    def kill_everything_once(self, run: Run) -> None:
        until("two workers", lambda: len(self.workers()) == 2)
        victim = self.workers()[0]
        self.replace(run, "process", [victim], lambda: os.kill(victim, signal.SIGKILL))
        victim = self.workers()[0]
        self.replace(run, "actor", [victim], lambda: os.kill(parent(victim), signal.SIGKILL))
        workers = self.workers()
        node = self.raylet_of(workers[0])
        victims = [worker for worker in workers if self.raylet_of(worker) is node]

        # The other node has room for both.
        def remove() -> None:
            self.cluster.remove_node(node, allow_graceful=False)
            self.nodes.remove(node)

        self.replace(run, "raylet", victims, remove)

        # The hub: another one resumes the run at the same address, with the same tokens and launcher.
        run.until_iterations(3)
        self.hub.operate("checkpoint")
        run.until_iterations(3)
        self.hub.process.kill()
        self.hub.process.wait()
        self.hub.start(self.hub.address, "train", "--resume", run.dir, "--remote-only")
        self.hub.until_places()
        self.hub.operate("scale", "2")

    def test_run_ends_as_a_calm_one_although_worker_actor_raylet_and_hub_are_killed(self) -> None:
        calm = Run(self.hub)
        expected = calm.outcome()
        disturbed = Run(self.hub)
        self.kill_everything_once(disturbed)
        self.assertEqual(disturbed.outcome(), expected)
        # Each env step that was granted was learned from once, or has a reason.
        for run in (calm, disturbed):
            ledger, env_steps = run.read("ledger.json"), expected[0]["env_steps"]
            self.assertEqual((ledger["committed"], ledger["consumed"]), (env_steps, env_steps))
            others = [ledger["superseded"], *ledger["rejected"].values(), *ledger["expired"].values()]
            self.assertEqual(ledger["granted"], env_steps + sum(others) + ledger["outstanding"], ledger)
        until("the end of the workers", lambda: not self.workers())

    def test_workers_of_a_killed_hub_end_once_their_launcher_gives_it_up(self) -> None:
        self.hub.operate("scale", "2")
        until("two workers", lambda: len(self.workers()) == 2)
        self.hub.process.kill()
        ended = time.monotonic()
        until("the end of the workers", lambda: not self.workers())
        self.assertLess(time.monotonic() - ended, 40, "the launcher waits for 30 s for a hub that was killed")


if __name__ == "__main__":
    unittest.main()
