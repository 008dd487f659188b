"""Tests of the examples in the documents."""

import os
import pathlib
import re
import tempfile
import unittest

ROOT = pathlib.Path(os.environ.get("ROLLMESH_ROOT", pathlib.Path(__file__).parents[2]))
DOCUMENTS = ("README.md", "python/README.md", "docs/python.md", "docs/tutorials/own-environment-python.md")


class Documents(unittest.TestCase):
    def test_examples_run(self):
        examples = 0
        for name in DOCUMENTS:
            for code in re.findall(r"^```python\n(.*?)^```", ROOT.joinpath(name).read_text(), re.MULTILINE | re.DOTALL):
                examples += 1
                with self.subTest(name, code=code.splitlines()[0]), tempfile.TemporaryDirectory() as folder:
                    before = os.getcwd()
                    os.chdir(folder)
                    try:
                        exec(compile(code, name, "exec"), {"__name__": "example"})
                    finally:
                        os.chdir(before)
        self.assertGreaterEqual(examples, 6)


if __name__ == "__main__":
    unittest.main()
