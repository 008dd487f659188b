"""RLlib's results for batches, estimators, files, workers and policy maps, through the wheel."""

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
# What the package does in Rust, within `sample`, and has no function for.
NO_FUNCTION = {
    "actions.clip",
    "actions.normalize",
    "actions.unsquash",
    "filter.ops",
    "filter.running_stat",
    "ma.convert_to_single",
    "ope.dm_per_episode",
    "ope.dr_per_episode",
    "ope.is_per_episode",
    "ope.wis_per_episode",
    "post.adjust_nstep",
    "post.compute_advantages",
    "post.discount_cumsum",
    "post.gae",
    "sampler.run",
    "seq.chop",
    "views.build",
    "worker.weights_seq",
}


def batch_of(value: dict) -> SampleBatch:
    columns = {}
    for name, column in value["columns"].items():
        data = [float(x) if isinstance(x, str) else x for x in column["data"]]
        columns[name] = np.array(data, DTYPES[column["dtype"]]).reshape(column["shape"])
    return SampleBatch(columns, **{flag: value[flag] for flag in FLAGS if value.get(flag) is not None})


def value_of(batch: SampleBatch) -> dict:
    def column(array: np.ndarray) -> dict:
        return {"dtype": SHORT[array.dtype.name], "shape": list(array.shape), "data": array.ravel().tolist()}

    # The golden data has columns of numbers only.
    names = [name for name in batch if name != "seq_lens" and batch[name].dtype != object]
    value = {"columns": {name: column(batch[name]) for name in names}}
    if "seq_lens" in batch:
        value["seq_lens"] = batch["seq_lens"].tolist()
    for flag in FLAGS[1:]:
        value[flag] = getattr(batch, flag)
    return value if batch.time_major else {**value, "count": batch.count}


def multi_of(value: dict) -> MultiAgentBatch:
    return MultiAgentBatch({id: batch_of(batch) for id, batch in value["policy_batches"].items()}, value["env_steps"])


def multi_value(multi: MultiAgentBatch) -> dict:
    batches = {id: value_of(batch) for id, batch in multi.items()}
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


def read_json(given: dict, args: dict) -> dict:
    """Reads a file; the reader counts damaged lines, and has no batches of a file without any."""
    reader = rollmesh.Reader(GOLDEN / args["file"])
    batches = list(map(any_value, reader))
    if not batches or (args["strict"] and reader.corrupt_lines):
        raise rollmesh.OfflineError(f"{reader.corrupt_lines} damaged lines, {len(batches)} batches")
    return {"batches": batches, "corrupt_lines": reader.corrupt_lines}


def summary(given: dict, args: dict) -> dict:
    """Returns the content of a data set's files, as far as the transitions that a reader makes of them have it."""
    batches = list(rollmesh.Reader(GOLDEN / args["file"]))
    rows = concat_samples(batches)
    episodes = np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows["eps_id"])) + 1)
    lengths = [len(episode) for episode in episodes]
    columns = {name: rows[name] for name in rows}
    if args["format"] != "parquet":
        # The files have the observations of each episode, the last one included.
        places = np.cumsum(lengths)
        observations = np.insert(rows["obs"], places, rows["new_obs"][places - 1], axis=0)
        columns = {"observations": observations, "actions": rows["actions"], "rewards": rows["rewards"]}
    if args["format"] == "minari":
        columns |= {"terminations": rows["terminateds"], "truncations": rows["truncateds"]}
    if args["format"] == "d4rl_hdf5":
        lengths = [length + 1 for length in lengths]

    def described(column: np.ndarray) -> dict:
        picked = {"first": column[0].tolist(), "last": column[-1].tolist(), "row_100": column[100].tolist()}
        return {"shape": list(column.shape), "sum": float(column.sum(dtype=float)), **picked}

    described_columns = {name: described(column) for name, column in columns.items()}
    return {"rows": sum(lengths), "episodes": len(lengths), "episode_lengths": lengths, "columns": described_columns}


def in_transitions(case: dict) -> None:
    """Leaves out of an expected summary what transitions do not have: types of files, and the last row of D4RL's episodes."""
    columns = case["expect"]["ok"]["columns"]
    for name, column in columns.items():
        del column["dtype"]
        if case["args"]["format"] == "d4rl_hdf5" and name != "observations":
            columns[name] = {part: column[part] for part in ("first", "row_100")}
    for name in ("terminals", "timeouts"):
        columns.pop(name, None)


def auto_fragment(given: dict, args: dict) -> list:
    """Returns the numbers of steps that the workers of a group sample with each of their environments."""
    settings = {"rollout_fragment_length": "auto", "create_env_on_local_worker": True, **args}
    with rollmesh.WorkerGroup("CartPole-v1", settings) as group:
        return [len(batch) / args["num_envs"] for batch in group.foreach_worker(rollmesh.RolloutWorker.sample)]


def outcomes(steps: list, step) -> list:
    """Calls a function with each step; returns its results, and the kinds of its errors."""

    def outcome(given: dict):
        try:
            return step(given)
        except TypeError:
            return {"err": "invalid_argument"}
        except (rollmesh.Error, KeyError) as error:
            kinds = {"exists already": "already_exists", "there is no policy": "unknown_policy"}
            if isinstance(error, KeyError):
                return {"err": "unknown_policy"}
            return {"err": next((kind for text, kind in kinds.items() if text in str(error)), str(error))}

    return [outcome(given) for given in steps]


def worker_policies(given: dict, args: dict) -> list:
    with rollmesh.RolloutWorker("CartPole-v1") as worker:
        steps = {
            "add": lambda id, with_policy: worker.add_policy(id, *["random"] * with_policy) and None,
            "remove": lambda id: worker.remove_policy(id),
            "has": lambda id: id in worker.policy_map,
            "call": lambda id: worker.for_policy(lambda policy: 1, id),
            "ids": lambda: list(worker.policy_map),
        }
        return outcomes([*given["ops"]], lambda step: steps[step["op"]](**{k: v for k, v in step.items() if k != "op"}))


def policy_map(given: dict, args: dict) -> list:
    """Policies of equal weights, the numbers; a worker's first policy is not one of them."""
    with rollmesh.RolloutWorker("CartPole-v1") as worker:
        policies, (first,) = worker.policy_map, worker.policy_map

        def set_value(id: str, value: int) -> None:
            policy = policies[id]
            policy.set_weights({name: np.full_like(array, value) for name, array in policy.get_weights().items()})

        def insert(id: str, value: int) -> None:
            if id not in policies:
                worker.add_policy(id, "net", {"model": {"fcnet_hiddens": [2]}})
            set_value(id, value)

        def value_of_policy(policy: rollmesh.Policy) -> int:
            values = {value for array in policy.get_weights().values() for value in array.ravel().tolist()}
            return values.pop() if len(values) == 1 else -1

        steps = {
            "insert": insert,
            "set_value": set_value,
            "get": lambda id: value_of_policy(policies[id]),
            "get_or_none": lambda id: policies.get(id),
            "del": lambda id: policies.__delitem__(id),
            "contains": lambda id: id in policies,
            "len": lambda: len(policies) - 1,
            "keys": lambda: [id for id in policies if id != first],
            # All policies are in memory.
            "state": lambda: None,
        }
        return outcomes(given["ops"], lambda step: steps[step["op"]](**{k: v for k, v in step.items() if k != "op"}))


def in_memory(case: dict) -> None:
    """Leaves out of the expected results which policies are in memory."""
    ops, expected = case["in"]["ops"], case["expect"]["ok"]
    case["expect"]["ok"] = [None if op["op"] == "state" else value for op, value in zip(ops, expected)]


# Functions that leave out of a case what the package does not show.
SHOWN = {"data.summary": in_transitions, "policymap.ops": in_memory}
OPERATIONS = {
    "data.read_json": read_json,
    "data.summary": summary,
    "policymap.ops": policy_map,
    "worker.auto_fragment": auto_fragment,
    "worker.policies": worker_policies,
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
        found = set()
        for file in sorted(GOLDEN.glob("*.jsonl")):
            for line in file.read_text().splitlines():
                case = json.loads(line)
                found.add(case["op"])
                if case["op"] not in NO_FUNCTION:
                    with self.subTest(case["id"], op=case["op"]):
                        self.check(case)
        self.assertEqual(found, set(OPERATIONS) | NO_FUNCTION)

    def check(self, case: dict) -> None:
        operation, expect = OPERATIONS[case["op"]], case["expect"]
        if "err" in expect:
            with self.assertRaises(rollmesh.Error):
                operation(case["in"], case["args"])
            return
        if "ok_file" in expect:
            expect["ok"] = json.loads(GOLDEN.joinpath(expect["ok_file"]).read_text())
        if case["op"] in SHOWN:
            SHOWN[case["op"]](case)
        got = operation(case["in"], case["args"])
        found = differences(expect["ok"], got, case.get("tol", 1e-9), any_dtype=case.get("any_dtype", False))
        self.assertEqual(found, [])


if __name__ == "__main__":
    unittest.main()
