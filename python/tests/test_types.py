"""Tests of the types that type checkers see in the package."""

import ast
import pathlib
import subprocess
import sys
import unittest

import rollmesh


class Types(unittest.TestCase):
    def test_checkers_know_all_names_and_no_others(self):
        tree = ast.parse(pathlib.Path(rollmesh.__file__).read_text())
        for_checkers = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        imports = [node for part in (tree, *for_checkers) for node in part.body if isinstance(node, ast.ImportFrom)]
        known = {alias.name for node in imports for alias in node.names}
        self.assertEqual(set(rollmesh.__all__) - known, set())
        # A function of this name would let type checkers accept any name of the module.
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        self.assertNotIn("__getattr__", functions)
        self.assertEqual({name for name in rollmesh.__all__ if not hasattr(rollmesh, name)}, set())
        self.assertEqual(set(dir(rollmesh)) - known, set())

    def test_all_names_but_those_that_need_gymnasium_load_without_it(self):
        program = (
            "import sys\n"
            "class Hidden:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name.partition('.')[0] == 'gymnasium':\n"
            "            raise ModuleNotFoundError(name, name=name)\n"
            "sys.meta_path.insert(0, Hidden())\n"
            "from rollmesh import *\n"
            "RolloutWorker, SampleBatch\n"
            "try:\n"
            "    from rollmesh import make_vec\n"
            "except ImportError as error:\n"
            "    print(error)\n"
        )
        end = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        self.assertEqual((end.stdout, end.stderr), ("rollmesh.make_vec needs Gymnasium: pip install gymnasium\n", ""))


if __name__ == "__main__":
    unittest.main()
