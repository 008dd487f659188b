"""What type checkers know of the package."""

import ast
import pathlib
import unittest

import rollmesh


class Types(unittest.TestCase):
    def test_checkers_know_all_names_and_no_others(self):
        tree = ast.parse(pathlib.Path(rollmesh.__file__).read_text())
        for_checkers = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        imports = [node for part in (tree, *for_checkers) for node in part.body if isinstance(node, ast.ImportFrom)]
        known = {alias.name for node in imports for alias in node.names}
        self.assertEqual(set(rollmesh.__all__) - known, set())
        # A function of this name would say that the module has any name.
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        self.assertNotIn("__getattr__", functions)
        self.assertEqual({name for name in rollmesh.__all__ if not hasattr(rollmesh, name)}, set())


if __name__ == "__main__":
    unittest.main()
