"""Processes that end with the program that started them, and objects that a fork of it cannot use."""

import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable

import rollmesh
from rollmesh import Algorithm, EvalWorker, RolloutWorker, WorkerGroup, _program

CONFIG = {"env": "CartPole-v1", "num_envs": 2, "rollout_fragment_length": 20, "seed": 7}
# Without end, so that only their kill ends them.
WORKER = "RolloutWorker('gym:CartPole-v1', num_envs=2, rollout_fragment_length=20)"
GROUP = "WorkerGroup('gym:CartPole-v1', num_workers=2, placement='processes', rollout_fragment_length=20)"
ALGORITHM = "Algorithm('gym:CartPole-v1', num_workers=2, rollout_fragment_length=20)"
EVALUATION = "EvalWorker('gym:CartPole-v1')"
USES = {WORKER: "sample()", GROUP: "synchronous_parallel_sample()", ALGORITHM: "step()", EVALUATION: "poll(60.0)"}
PROGRAM = """
import sys
import rollmesh
object = rollmesh.{made}
if {made!r}.startswith("EvalWorker"):
    object.submit()
object.{use}
print("ready", flush=True)
sys.stdin.read()
"""


def until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.05)


def processes() -> dict[tuple[int, str], int]:
    """Returns the parents of all processes, by their ids and the times when they began."""
    found = {}
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, parent, *others = folder.joinpath("stat").read_text().rsplit(")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state not in "ZX":
                found[int(folder.name), others[17]] = int(parent)
    return found


def descendants(pid: int) -> set[tuple[int, str]]:
    parents, found, ids = processes(), set(), {pid}
    while more := {process for process, parent in parents.items() if parent in ids} - found:
        found |= more
        ids |= {id for id, _ in more}
    return found


def hosts(of: set[tuple[int, str]]) -> int:
    """Returns the number of interpreters that host environments; their guards have the same command."""
    lines = []
    for pid, _ in of:
        try:
            lines.append(pathlib.Path(f"/proc/{pid}/cmdline").read_bytes())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return sum(b"The host of Python environments" in line for line in lines)


def has_lines(file: pathlib.Path) -> bool:
    return file.is_file() and b"\n" in file.read_bytes()


@unittest.skipUnless(sys.platform == "linux", "looks at /proc")
class Kills(unittest.TestCase):
    def check_no_orphan(self, process: subprocess.Popen, wanted: int) -> None:
        """Kills a process once it has this many hosts, and waits for the end of all that it has started."""
        try:
            until("hosts", lambda: hosts(descendants(process.pid)) >= wanted)
            started = descendants(process.pid)
        finally:
            process.kill()
            process.wait()
        try:
            until("the end of its processes", lambda: not started & set(processes()))
        finally:
            for pid, _ in started & set(processes()):
                os.kill(pid, signal.SIGKILL)

    def test_hosts_end_with_a_killed_program(self):
        for made, use in USES.items():
            with self.subTest(made), tempfile.TemporaryDirectory() as folder:
                program = PROGRAM.format(made=made, use=use)
                command = [sys.executable, "-P", "-c", program]
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
                with subprocess.Popen(command, cwd=folder, text=True, **pipes) as process:
                    self.assertEqual(process.stdout.readline(), "ready\n")
                    self.check_no_orphan(process, 1 if made in (WORKER, EVALUATION) else 2)

    def test_hosts_end_with_a_killed_hub(self):
        with tempfile.TemporaryDirectory() as folder:
            run = ["train", "--env", "gym:CartPole-v1", "--python", sys.executable, "--workers", "2", "--no-dashboard"]
            command = [_program.find(), *run, "--run-dir", f"{folder}/run", "--max-env-steps", "1000000000"]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                metrics = pathlib.Path(folder, "run/metrics.jsonl")
                try:
                    until("an iteration", lambda: process.poll() is not None or has_lines(metrics))
                    self.assertIsNone(process.poll(), "the run has ended")
                    self.check_no_orphan(process, 2)
                finally:
                    process.kill()


def use_in_fork(uses: list[Callable[[], object]], answers) -> None:
    for use in uses:
        try:
            answers.put(f"returned {use()!r}")
        except rollmesh.ClosedError as error:
            answers.put(str(error))


@unittest.skipUnless(hasattr(os, "fork"), "there is no fork here")
class Forks(unittest.TestCase):
    def test_a_fork_is_refused(self):
        context = multiprocessing.get_context("fork")
        with (
            RolloutWorker(CONFIG) as worker,
            WorkerGroup(CONFIG, num_workers=1) as group,
            Algorithm("CartPole-v1", num_workers=0, rollout_fragment_length=20) as algorithm,
            EvalWorker("CartPole-v1") as evaluations,
        ):
            uses = {
                "RolloutWorker": worker.sample,
                "WorkerGroup": group.synchronous_parallel_sample,
                "Algorithm": algorithm.step,
                "EvalWorker": evaluations.submit,
            }
            answers = context.SimpleQueue()
            child = context.Process(target=use_in_fork, args=(list(uses.values()), answers))
            child.start()
            for name in uses:
                answer = answers.get()
                self.assertIn(f"the {name} belongs to process {os.getpid()}", answer)
                self.assertIn("did not survive the fork", answer)
            child.join()
            # They still work here.
            self.assertEqual(worker.sample().env_steps(), 40)
            self.assertEqual(group.synchronous_parallel_sample().env_steps(), 40)
            self.assertEqual(algorithm.step()["iteration"], 1)
            evaluations.submit()
            self.assertGreater(evaluations.poll(60.0)["reward"], 0)


if __name__ == "__main__":
    unittest.main()
