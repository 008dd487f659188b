"""Compares policies in ONNX Runtime with the outputs that rollmesh has computed, see native-worker/tests/onnx.rs.

usage: python onnx_outputs.py FOLDER
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

files = sorted(Path(sys.argv[1]).glob("*.onnx"))
for path in files:
    case = json.loads(path.with_suffix(".json").read_text())
    rows = {name: np.array(values, np.float32).reshape(case["rows"], -1) for name, values in case.items() if isinstance(values, list)}
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    found = session.run(names, {value.name: rows[value.name] for value in session.get_inputs()})
    assert ("state_out" in names) == (rows["state_out"].size > 0), names
    for name, values in zip(names, found):
        gap = np.abs(values - rows[name]).max()
        assert gap < 1e-5, f"{case['model']}: {name} differs by {gap}"
assert files, "no policies"
print(f"{len(files)} policies agree")
