"""Learners with PyTorch and Stable-Baselines3, and mypy's check of examples, which take minutes to install."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import stable_baselines3
import torch

import rollmesh
import rollmesh.sb3

ROOT = pathlib.Path(os.environ.get("ROLLMESH_ROOT", pathlib.Path(__file__).parents[2]))


class Learners(unittest.TestCase):
    def test_ppo_in_one_file_learns(self):
        sys.path.insert(0, str(ROOT / "python/examples"))
        import ppo

        self.assertGreater(ppo.train(40_000), 100)

    def test_tutorial_learns(self):
        page = ROOT.joinpath("docs/tutorials/pytorch-learner.md").read_text()
        code = "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
        names = {"__name__": "learner"}
        exec(compile(code, "pytorch-learner.md", "exec"), names)
        self.assertGreater(names["returns"][-1], names["returns"][0])

    def test_stable_baselines_learns_on_environments_in_rust(self):
        model = stable_baselines3.PPO("MlpPolicy", rollmesh.sb3.VecEnv("CartPole-v1", 8, seed=1), n_steps=64, seed=1)
        model.learn(20_000)
        returns = [episode["r"] for episode in model.ep_info_buffer]
        self.assertGreater(sum(returns) / len(returns), 40)

    def test_tensors_are_weights(self):
        with rollmesh.RolloutWorker("CartPole-v1", num_envs=1, seed=1) as worker:
            weights = {name: torch.from_numpy(array) for name, array in worker.get_weights()["default_policy"].items()}
            worker.set_weights({name: torch.nn.Parameter(2 * tensor) for name, tensor in weights.items()})
            for name, array in worker.get_weights()["default_policy"].items():
                self.assertTrue(torch.equal(torch.from_numpy(array), 2 * weights[name]))


class Types(unittest.TestCase):
    def test_examples_are_of_the_types_that_the_package_says(self):
        with tempfile.TemporaryDirectory() as folder:
            files = [str(path) for path in ROOT.glob("python/examples/*.py")]
            for name in ("README.md", "python/README.md", "docs/python.md", "docs/tutorials/own-environment-python.md"):
                text = ROOT.joinpath(name).read_text()
                for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)):
                    files.append(os.path.join(folder, re.sub(r"\W", "_", f"{name}_{number}") + ".py"))
                    pathlib.Path(files[-1]).write_text(code)
            self.assertGreaterEqual(len(files), 10)
            checked = subprocess.run([sys.executable, "-m", "mypy", *files], cwd=folder, capture_output=True, text=True)
            self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)


if __name__ == "__main__":
    unittest.main()
