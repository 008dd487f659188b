"""The commands for a Ray cluster and its launcher, as far as they need no Ray."""

import asyncio
import contextlib
import importlib
import os
import pathlib
import re
import shlex
import stat
import subprocess
import sys
import tempfile
import unittest
from importlib.util import find_spec
from unittest.mock import MagicMock, patch

import rollmesh
from rollmesh import _program, _ray_command

ROOT = pathlib.Path(os.environ.get("ROLLMESH_ROOT", pathlib.Path(__file__).parents[2]))


# Stands for `rollmesh launch`: prints its arguments and each new token, and ends when its standard input does.
LAUNCH = """#!{python}
import os, select, sys, time
file = sys.argv[sys.argv.index("--token-file") + 1]
print("arguments", *sys.argv[1:], file=sys.stderr, flush=True)
latest = None
while not select.select([0], [], [], 0.01)[0]:
    with open(file) as opened:
        token = opened.read()
    if token != latest:
        print("serving the hub with", token, oct(os.stat(file).st_mode & 0o777), file=sys.stderr, flush=True)
    latest = token
"""
# Stands for one that the hub's flags make end immediately.
MISTAKEN = """#!/bin/sh
printf "error: invalid value\\n\\nFor more information, try '--help'\\n" >&2
exit 2
"""


@contextlib.contextmanager
def without_ray():
    """The package `rollmesh.ray` with something in place of Ray, which leaves actors' classes as they are."""
    fake = MagicMock()
    fake.remote = lambda **_: lambda actor: actor
    fake.get_actor.side_effect = ValueError
    fake.exceptions.RayError = RuntimeError
    modules = {"ray": fake, "ray.util": fake.util, "ray.util.metrics": fake.util.metrics}
    with patch.dict(sys.modules, modules), patch.object(rollmesh, "ray", None, create=True):
        rollmesh.ray = importlib.import_module("rollmesh.ray")
        yield rollmesh.ray, fake


class Commands(unittest.TestCase):
    def test_commands_of_the_documents_are_valid(self):
        text = ROOT.joinpath("docs/deploy.md").read_text()
        shell = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
        commands = re.findall(r"rollmesh ((?:up|scale|status|down) .*--ray.*)", shell)
        self.assertGreaterEqual(len(commands), 4)
        for command in commands:
            words = shlex.split(command)
            self.assertTrue(_ray_command.is_for_ray(words), command)
            self.assertEqual(_ray_command.parse(words).ray, "auto", command)

    def up(self, *words: str):
        """Runs `rollmesh up`. Returns the settings of the launcher."""
        with without_ray() as (cluster, fake):
            # The launcher serves, and has this status.
            fake.get.side_effect = [None, {}]
            cluster.Launcher = MagicMock()
            self.assertEqual(_ray_command.main(["up", "--ray", "auto", "--hub", "wss://hub.example", *words]), 0)
            return cluster.Launcher.options.return_value.remote.call_args.args[0]

    def test_launcher_and_workers_get_the_flags(self):
        files = ["--tls-client-cert", "peer.pem", "--tls-client-key", "peer-key.pem"]
        self.assertEqual(self.up("--tls-ca", "ca.pem", *files).trust, ["--tls-ca", "ca.pem", *files])
        settings = self.up("--num-cpus", "0.5", "--num-gpus", "0.25", "--join-seconds", "60", "--worker-option=--data-root=/data")
        self.assertEqual((settings.reserved["num_cpus"], settings.reserved["num_gpus"]), (0.5, 0.25))
        self.assertEqual((settings.join_seconds, settings.arguments), (60, ["--data-root=/data"]))
        self.assertEqual(self.up().join_seconds, 86400)

    def test_options_of_ray_reach_the_actors_and_the_hubs_specification_comes_first(self):
        with without_ray() as (cluster, fake):
            fake.get.side_effect = [None, {}]
            cluster.Launcher = MagicMock()
            environment = {"pip": ["rollmesh"]}
            options = {"memory": 7, "resources": {"simulator": 1.0}, "scheduling_strategy": "SPREAD", "runtime_env": environment}
            cluster.up("wss://hub.example", "token", num_cpus=2, **options)
            self.assertEqual(cluster.Launcher.options.call_args.kwargs["runtime_env"], environment)
            reserved = cluster.Launcher.options.return_value.remote.call_args.args[0].reserved
            reserve = cluster._actors.reserve
            self.assertEqual(reserve(reserved, {}), {"num_cpus": 2, "num_gpus": 0, **options})
            spec = {"cpus": 3, "gpus": 1, "memory": 9, "resources": {"gripper": 2}}
            of_hub = {"num_cpus": 3, "num_gpus": 1, "memory": 9, "resources": {"simulator": 1.0, "gripper": 2}}
            self.assertEqual(reserve(reserved, spec), {**options, **of_hub})

    def test_renew_command_passes_the_token_on(self):
        with without_ray() as (cluster, fake), patch.dict(os.environ, ROLLMESH_TOKEN="new"):
            fake.get_actor.side_effect = None
            for serves, code in ((True, 0), (False, 1)):
                fake.get.side_effect = [serves]
                self.assertEqual(_ray_command.main(["renew", "--ray", "auto"]), code)
                self.assertEqual(fake.get_actor.return_value.renew.remote.call_args.args, ("new",))

    def test_other_commands_are_the_programs(self):
        for command in ("status", "scale 2 --hub ws://127.0.0.1:1", "workers", "launch --here", ""):
            self.assertFalse(_ray_command.is_for_ray(shlex.split(command)), command)
        self.assertTrue(_ray_command.is_for_ray(["status", "--ray=auto"]))

    def test_command_without_an_address_or_without_ray_says_what_to_do(self):
        def error(*words: str) -> str:
            done = subprocess.run([_program.find(), *words], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, done.stderr)
            return done.stderr

        self.assertIn("--ray", error("down"))
        if find_spec("ray") is None:
            self.assertIn("ray is not installed: pip install 'rollmesh[ray]'", error("down", "--ray", "auto"))


class LauncherActor(unittest.IsolatedAsyncioTestCase):
    def launcher(self, cluster, script: str):
        """Returns a launcher whose program is this script."""
        folder = self.enterContext(tempfile.TemporaryDirectory())
        program = os.path.join(folder, "rollmesh")
        with open(program, "w") as file:
            file.write(script.replace("{python}", sys.executable))
        os.chmod(program, stat.S_IRWXU)
        settings = cluster._actors.LauncherSettings(
            hub="ws://127.0.0.1:1", name="ray", capacity=2, reserved={}, program=program, trust=[], arguments=[], join_seconds=60
        )
        return cluster._actors.Launcher(settings, "first")

    async def test_program_reads_the_token_from_a_private_file_and_another_one_after_its_renewal(self):
        with without_ray() as (cluster, _):
            launcher = self.launcher(cluster, LAUNCH)
            self.assertIsNone(await launcher.serving(60))
            for token in ("first", "second"):
                if token == "second":
                    self.assertTrue(await launcher.renew(token))
                while launcher._error != f"serving the hub with {token} 0o600":
                    await asyncio.sleep(0.01)
            folder = launcher._folder.name
            await launcher.stop()
            with contextlib.suppress(asyncio.CancelledError):
                await launcher._task
            self.assertFalse(os.path.exists(folder), "the token is left behind")

    async def test_launcher_that_has_ended_reports_the_error_and_takes_no_token(self):
        with without_ray() as (cluster, _):
            launcher = self.launcher(cluster, MISTAKEN)
            self.assertEqual(await launcher.serving(60), "invalid value")
            self.assertFalse(await launcher.renew("second"))


if __name__ == "__main__":
    unittest.main()
