"""The actors: one launcher, and one for each worker."""

import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from typing import Any

import ray
from ray.util.metrics import Gauge

NAMESPACE = "rollmesh"
# Exit code of a launcher that the hub refuses: another attempt would end in the same way.
REFUSED = 2
# Pause before a launcher that has crashed is started again, in seconds.
PAUSE = 1.0
# Time for a launcher to end its workers, in seconds.
FAREWELL = 20.0
# Longest line of the programs' output, in bytes.
MAX_LINE = 1 << 20


def actor_name(name: str) -> str:
    """Returns the name of a launcher's actor."""
    return f"rollmesh-launcher-{name}"


def program_here() -> str:
    """Returns the program on this machine: the script next to this interpreter, or the one on the path."""
    script = os.path.join(sysconfig.get_path("scripts"), "rollmesh")
    found = script if os.path.isfile(script) else shutil.which("rollmesh")
    if found is None:
        raise FileNotFoundError("there is no program rollmesh on this machine: install the package, or name a program")
    return found


@dataclasses.dataclass(frozen=True)
class LauncherSettings:
    """The settings of a launcher, except its token."""

    hub: str
    name: str
    capacity: int
    # Options of the workers' actors.
    reserved: dict[str, Any]
    program: str | None
    trust: list[str]
    # Further arguments of workers.
    arguments: list[str]
    # How long a worker may take to join, in seconds.
    join_seconds: int


def reserve(reserved: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of a worker's actor: those of the hub's specification, else those of the launcher."""
    options = {key: value for key, value in reserved.items() if value is not None}
    if spec.get("cpus"):
        options["num_cpus"] = spec["cpus"]
    if spec.get("gpus") is not None:
        options["num_gpus"] = spec["gpus"]
    if spec.get("memory") is not None:
        options["memory"] = spec["memory"]
    options["resources"] = options.get("resources", {}) | spec.get("resources", {})
    return options


@ray.remote(max_restarts=0, max_task_retries=0, max_concurrency=2)
class Worker:
    """Supervises one worker process, which ends with this actor: its standard input closes then."""

    def __init__(self, program: str | None) -> None:
        self.program = program or program_here()
        self.process: subprocess.Popen[str] | None = None

    def place(self) -> dict[str, Any]:
        """Returns the place where the actor runs, as soon as it does."""
        return {"node": socket.gethostname(), "actor_pid": os.getpid()}

    def run(self, arguments: list[str], environment: dict[str, str], token: str) -> tuple[int, str]:
        """Runs the worker to its end. Returns its exit code and the last line that it wrote."""
        command = [self.program, *arguments, "--token-file", "-", "--until-stdin-closes"]
        self.process = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert self.process.stdin is not None and self.process.stderr is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{token}\n")
            self.process.stdin.flush()
        last = ""
        for line in self.process.stderr:
            last = line.strip()
            print(last, file=sys.stderr, flush=True)
        return self.process.wait(), last


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0)
class Launcher:
    """Runs `rollmesh launch` and an actor for each worker that it starts.

    `rollmesh launch` starts a relay process for each worker, which connects to the socket of this actor. A connection
    lasts as long as its worker.
    """

    def __init__(self, settings: LauncherSettings, token: str) -> None:
        self._settings = settings
        # Only this user may enter it.
        self._folder = tempfile.TemporaryDirectory(prefix="rollmesh-")
        self._token_file = os.path.join(self._folder.name, "token")
        self._write(token)
        self._workers: dict[str, dict[str, Any]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._is_serving = asyncio.Event()
        # The last line of the program, or the reason why there is none.
        self._error: str | None = None
        self._gauge = Gauge("rollmesh_workers", "Workers of a launcher", ("launcher", "state"))
        self._task = asyncio.get_event_loop().create_task(self._keep_serving())

    async def settings(self) -> LauncherSettings:
        return self._settings

    async def serving(self, timeout: float) -> str | None:
        """Waits until the hub has accepted the launcher; returns the reason if it has not, or if the launcher ended."""
        serving = asyncio.ensure_future(self._is_serving.wait())
        await asyncio.wait({serving, self._task}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        if self._task.done():
            return self._error or "it has ended"
        return None if self._is_serving.is_set() else self._error or f"no answer within {timeout:.0f} s"

    async def renew(self, token: str) -> bool:
        """Gives `rollmesh launch` the token that replaces its own, which it presents to the hub within two seconds. Returns
        whether the launcher serves the hub, or will."""
        if self._task.done():
            return False
        self._write(token)
        return True

    def _write(self, token: str) -> None:
        # In one step: `rollmesh launch` may read it at any time.
        new = f"{self._token_file}.new"
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(token)
        os.replace(new, self._token_file)

    async def has_ended(self) -> bool:
        """Returns whether the launcher has ended for good: the hub refuses it, or it cannot be started."""
        return self._task.done()

    async def status(self) -> dict[str, Any]:
        settings = self._settings
        workers = [{"name": name, **worker} for name, worker in sorted(self._workers.items())]
        return {"hub": settings.hub, "name": settings.name, "capacity": settings.capacity, "workers": workers}

    async def stop(self) -> None:
        """Ends the launcher, which ends its workers."""
        self._task.cancel()
        process = self._process
        if process is not None and process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), FAREWELL)

    async def _keep_serving(self) -> None:
        with self._folder as folder:
            path = os.path.join(folder, "relay")
            server = await asyncio.start_unix_server(self._serve_relay, path, limit=MAX_LINE)
            async with server:
                while await self._run_launch(path) != REFUSED:
                    await asyncio.sleep(PAUSE)

    async def _run_launch(self, path: str) -> int:
        settings = self._settings
        relay = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_relay.py")
        command = ["launch", "--hub", settings.hub, "--name", settings.name, "--capacity", str(settings.capacity)]
        command += ["--token-file", self._token_file, "--until-stdin-closes"]
        command += ["--join-seconds", str(settings.join_seconds), *settings.trust]
        command += [f"--worker-option={argument}" for argument in settings.arguments]
        command += ["--", sys.executable, "-I", "-S", relay, path]
        try:
            self._process = await asyncio.create_subprocess_exec(
                settings.program or program_here(),
                *command,
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                limit=MAX_LINE,
                start_new_session=True,
            )
        except OSError as error:
            self._error = f"rollmesh cannot be started: {error}"
            return REFUSED
        assert self._process.stderr is not None
        has_failed = False
        async for line in self._process.stderr:
            text = line.decode(errors="replace").strip()
            print(text, file=sys.stderr, flush=True)
            # An error is kept, although advice may follow it.
            if not has_failed:
                self._error = text.removeprefix("error: ")
            has_failed = has_failed or text.startswith("error: ")
            if text.startswith("serving the hub"):
                self._is_serving.set()
        return await self._process.wait()

    async def _serve_relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Runs a worker for a relay; ends it when the relay disconnects."""
        order = json.loads(await reader.readline())
        name = order["name"]
        actor = Worker.options(**reserve(self._settings.reserved, order["spec"])).remote(self._settings.program)
        self._set(name, {"state": "pending", "node": None, "actor_pid": None, "since": time.time()})
        run = asyncio.ensure_future(self._run_worker(name, actor, order))
        left = asyncio.ensure_future(reader.read())
        await asyncio.wait({run, left}, return_when=asyncio.FIRST_COMPLETED)
        # Ends its process, too, and cancels an actor that waits for resources.
        ray.kill(actor)
        code, last = await run
        left.cancel()
        self._set(name, None)
        writer.write(json.dumps({"code": code, "last": last}).encode())
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async def _run_worker(self, name: str, actor: Any, order: dict[str, Any]) -> tuple[int, str]:
        try:
            place = await actor.place.remote()
            self._set(name, {"state": "running", **place, "since": time.time()})
            return await actor.run.remote(order["arguments"], order["environment"], order["token"])
        except ray.exceptions.RayError as error:
            return 1, str(error).splitlines()[0]

    def _set(self, name: str, worker: dict[str, Any] | None) -> None:
        if worker is None:
            self._workers.pop(name, None)
        else:
            self._workers[name] = worker
        for state in ("pending", "running"):
            count = sum(worker["state"] == state for worker in self._workers.values())
            self._gauge.set(count, {"launcher": self._settings.name, "state": state})
