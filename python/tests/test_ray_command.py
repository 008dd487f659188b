"""The commands for a Ray cluster, as far as they need no Ray."""

import importlib
import os
import pathlib
import re
import shlex
import subprocess
import sys
import unittest
from importlib.util import find_spec
from unittest.mock import MagicMock, patch

import rollmesh
from rollmesh import _program, _ray_command

ROOT = pathlib.Path(os.environ.get("ROLLMESH_ROOT", pathlib.Path(__file__).parents[2]))


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

    def test_launcher_and_workers_get_the_flags_about_certificates(self):
        fake = MagicMock()
        fake.get_actor.side_effect = ValueError
        # The launcher serves, and has this status.
        fake.get.side_effect = [None, {}]
        modules = {"ray": fake, "ray.util": fake.util, "ray.util.metrics": fake.util.metrics}
        files = ["--tls-client-cert", "peer.pem", "--tls-client-key", "peer-key.pem"]
        with patch.dict(sys.modules, modules), patch.object(rollmesh, "ray", None, create=True):
            rollmesh.ray = importlib.import_module("rollmesh.ray")
            code = _ray_command.main(["up", "--ray", "auto", "--hub", "wss://hub.example", "--tls-ca", "ca.pem", *files])
            settings = rollmesh.ray.Launcher.options.return_value.remote.call_args.args[0]
        self.assertEqual((code, settings.trust), (0, ["--tls-ca", "ca.pem", *files]))

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


if __name__ == "__main__":
    unittest.main()
