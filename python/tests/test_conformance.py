"""RLlib's results for batches, multi-agent batches and estimators, through the wheel."""

import json
import math
import os
import pathlib
import unittest

import numpy as np

import rollmesh
from rollmesh import MultiAgentBatch, SampleBatch, concat_samples

GOLDEN = pathlib.Path(os.environ.get("ROLLMESH_ROOT", pathlib.Path(__file__).parents[2]), "tests/golden/conformance")
DTYPES = {"f32": "float32", "f64": "float64", "i32": "int32", "i64": "int64", "u8": "uint8", "bool": "bool"}
SHORT = {name: short for short, name in DTYPES.items()}
FLAGS = ("seq_lens", "max_seq_len", "zero_padded", "time_major", "num_grad_updates")


def batch_of(value: dict) -> SampleBatch:
    columns = {}
    for name, column in value["columns"].items():
        data = [float(x) if isinstance(x, str) else x for x in column["data"]]
        columns[name] = np.array(data, DTYPES[column["dtype"]]).reshape(column["shape"])
    return SampleBatch(columns, **{flag: value[flag] for flag in FLAGS if value.get(flag) is not None})


def value_of(batch: SampleBatch) -> dict:
    def column(array: np.ndarray) -> dict:
        return {"dtype": SHORT[array.dtype.name], "shape": list(array.shape), "data": array.ravel().tolist()}

    value = {"columns": {name: column(batch[name]) for name in batch if name != "seq_lens"}}
    if "seq_lens" in batch:
        value["seq_lens"] = batch["seq_lens"].tolist()
    for flag in FLAGS[1:]:
        value[flag] = getattr(batch, flag)
    return value if batch.time_major else {**value, "count": batch.count}


def multi_of(value: dict) -> MultiAgentBatch:
    return MultiAgentBatch({id: batch_of(batch) for id, batch in value["policy_batches"].items()}, value["env_steps"])


def multi_value(multi: MultiAgentBatch) -> dict:
    batches = {id: value_of(batch) for id, batch in multi.items()}
    for batch in batches.values():
        batch["columns"].pop("unroll_id", None)
    return {"policy_batches": batches, "env_steps": multi.env_steps(), "agent_steps": multi.agent_steps()}


def any_value(batch) -> dict:
    if isinstance(batch, MultiAgentBatch):
        return {"kind": "MultiAgentBatch", "ma": multi_value(batch)}
    return {"kind": "SampleBatch", "batch": value_of(batch)}


def item_of(value: dict):
    return multi_of(value["ma"]) if "ma" in value else batch_of(value["batch"])


def rows_of(batch: SampleBatch) -> list:
    return [{name: value.tolist() if hasattr(value, "tolist") else value for name, value in row.items()} for row in batch.rows()]


def shuffled(batch: SampleBatch, seed: int) -> None:
    batch.shuffle(seed)


OPERATIONS = {
    "batch.concat": lambda given, args: value_of(concat_samples(map(batch_of, given["batches"]))),
    "batch.index_slice": lambda given, args: value_of(batch_of(given["batch"])[args["start"] : args["stop"]]),
    "batch.slice": lambda given, args: value_of(batch_of(given["batch"]).slice(**args)),
    "batch.timeslices": lambda given, args: [value_of(part) for part in batch_of(given["batch"]).timeslices(**args)],
    "batch.right_zero_pad": lambda given, args: value_of(batch_of(given["batch"]).right_zero_pad(**args)),
    "batch.split_by_episode": lambda given, args: [value_of(part) for part in batch_of(given["batch"]).split_by_episode(**args)],
    "batch.rows": lambda given, args: rows_of(batch_of(given["batch"])),
    "batch.count": lambda given, args: batch_of(given["batch"]).count,
    "batch.size_bytes": lambda given, args: batch_of(given["batch"]).size_bytes(),
    "batch.validate": lambda given, args: {"count": batch_of(given["batch"]).count},
    "batch.shuffle": lambda given, args: shuffled(batch_of(given["batch"]), **args),
    "batch.flags": lambda given, args: {
        "is_terminated_or_truncated": batch_of(given["batch"]).is_terminated_or_truncated(),
        "is_single_trajectory": batch_of(given["batch"]).is_single_trajectory(),
        "dones": batch_of(given["batch"])["dones"].tolist(),
    },
    "ma.timeslices": lambda given, args: [multi_value(part) for part in multi_of(given["ma"]).timeslices(**args)],
    "ma.concat": lambda given, args: any_value(concat_samples(map(item_of, given["items"]))),
    "ma.counts": lambda given, args: {
        "env_steps": multi_of(given["ma"]).env_steps(),
        "agent_steps": multi_of(given["ma"]).agent_steps(),
        "len": len(multi_of(given["ma"])),
        "size_bytes": multi_of(given["ma"]).size_bytes(),
    },
    "ma.wrap_as_needed": lambda given, args: any_value(
        MultiAgentBatch.wrap_as_needed({id: batch_of(b) for id, b in given["policy_batches"].items()}, **args)
    ),
    **{
        f"ope.{name}": lambda given, args, name=name: rollmesh.estimate(
            batch_of(given["batch"]),
            name,
            gamma=args["gamma"],
            split_batch_by_episode=args.get("split_by_episode", True),
        )
        for name in ("is", "wis", "dm", "dr")
    },
}


def differences(want, got, tolerance: float, path: str = "", any_dtype: bool = False) -> list[str]:
    """Returns the differences of two values by the golden data's rules: objects may have more entries than expected."""
    if isinstance(want, dict):
        if not isinstance(got, dict):
            return [f"{path}: {got} is no object"]
        exact = path.endswith("columns") and set(want) != set(got)
        found = [f"{path}: {sorted(got)}, not {sorted(want)}"] if exact else []
        inner = max(tolerance, 1e-6) if want.get("dtype") == "f32" else tolerance
        for name, value in want.items():
            if not (value is None and name not in got) and not (any_dtype and name == "dtype"):
                found += differences(value, got.get(name), inner, f"{path}/{name}", any_dtype)
        return found
    if isinstance(want, list):
        if not isinstance(got, list) or len(want) != len(got):
            return [f"{path}: {got}, not {want}"]
        return [d for n, pair in enumerate(zip(want, got)) for d in differences(*pair, tolerance, f"{path}/{n}", any_dtype)]
    if isinstance(want, str) and want in ("NaN", "Infinity", "-Infinity"):
        want = float(want)
    if isinstance(want, (int, float)) and isinstance(got, (int, float)) and not isinstance(want, bool):
        close = math.isclose(want, got, rel_tol=0, abs_tol=tolerance * max(1.0, abs(want))) or want == got
        return [] if close or (math.isnan(want) and math.isnan(got)) else [f"{path}: {got}, not {want}"]
    return [] if want == got or (want in (None, False) and got in (None, False)) else [f"{path}: {got}, not {want}"]


class Conformance(unittest.TestCase):
    def test_cases(self):
        cases = 0
        for file in ("batch", "multi_agent", "ope"):
            for line in GOLDEN.joinpath(f"{file}.jsonl").read_text().splitlines():
                case = json.loads(line)
                operation = OPERATIONS.get(case["op"])
                if operation is None:
                    continue
                cases += 1
                with self.subTest(case["id"], op=case["op"]):
                    if "err" in case["expect"]:
                        with self.assertRaises(rollmesh.Error):
                            operation(case["in"], case["args"])
                        continue
                    got = operation(case["in"], case["args"])
                    found = differences(
                        case["expect"]["ok"], got, case.get("tol", 1e-9), any_dtype=case.get("any_dtype", False)
                    )
                    self.assertEqual(found, [])
        self.assertGreater(cases, 200)


if __name__ == "__main__":
    unittest.main()
