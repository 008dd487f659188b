"""RLlib 2.9.3's JsonReader and JsonWriter compared with rollmesh's, see README.md in this directory.

usage: python rllib_json.py PATH_OF_RLLIB_JSON PATH_OF_ROLLMESH [SECONDS_PER_TIMING [TURNS]]
"""

import glob
import json
import logging
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

logging.disable(logging.WARNING)

from ray.rllib.offline.io_context import IOContext  # noqa: E402
from ray.rllib.offline.json_reader import JsonReader  # noqa: E402
from ray.rllib.offline.json_writer import JsonWriter  # noqa: E402
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch, concat_samples  # noqa: E402


def cart_pole(rows, rng, number):
    """Returns the columns of a CartPole sample of PPO."""
    return SampleBatch({
        "obs": rng.normal(size=(rows, 4)).astype(np.float32),
        "new_obs": rng.normal(size=(rows, 4)).astype(np.float32),
        "actions": rng.integers(0, 2, rows),
        "rewards": np.ones(rows, np.float32),
        "terminateds": np.arange(rows) % 50 == 49,
        "truncateds": np.zeros(rows, bool),
        "eps_id": np.full(rows, 10**17 + number),
        "unroll_id": np.full(rows, number),
        "agent_index": np.zeros(rows, np.int64),
        "t": np.arange(rows) % 50,
        "action_dist_inputs": rng.normal(size=(rows, 2)).astype(np.float32),
        "action_logp": rng.normal(size=rows).astype(np.float32),
        "vf_preds": rng.normal(size=rows).astype(np.float32),
    })


def odd_ones(rng):
    """Returns batches with everything else that the format supports."""
    images = SampleBatch({"obs": rng.integers(0, 256, (5, 8, 8, 3)).astype(np.uint8), "actions": rng.normal(size=(5, 2))})
    nested = SampleBatch({
        "obs": {"pos": rng.normal(size=(3, 2)).astype(np.float32), "in": {"on": np.array([True, False, True])}},
        "t": np.arange(3),
    })
    infos = SampleBatch({"t": np.arange(2), "infos": np.array([{"lives": 3}, {}], dtype=object)})
    odd = SampleBatch({"obs": np.array([1e300, -0.0, 1e-320]), "rewards": np.array([np.nan, np.inf, -np.inf])})
    sequences = SampleBatch({
        "obs": rng.normal(size=(6, 1)).astype(np.float32),
        "state_in_0": rng.normal(size=(3, 2)).astype(np.float32),
        "seq_lens": np.array([2, 3, 1], np.int32),
    })
    multi = MultiAgentBatch({"p0": cart_pole(7, rng, 1), "p1": cart_pole(4, rng, 2)}, 9)
    return [images, nested, infos, odd, sequences, multi]


def write(batches, folder):
    writer = JsonWriter(folder, IOContext(), max_file_size=1 << 40)
    for batch in batches:
        writer.write(batch)
    return glob.glob(os.path.join(folder, "output-*.json"))[0]


def read(file):
    return list(JsonReader([file], IOContext()).read_all_files())


def pass_over(file):
    for _ in JsonReader([file], IOContext()).read_all_files():
        pass


def leaves(prefix, value):
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(f"{prefix}.{key}", part)
    else:
        yield prefix, np.asarray(value)


def same(ours, theirs):
    """Asserts that all columns have equal types and bits. Returns their number."""
    if isinstance(theirs, MultiAgentBatch):
        assert ours.count == theirs.count and set(ours.policy_batches) == set(theirs.policy_batches)
        return sum(same(ours[policy], theirs[policy]) for policy in theirs.policy_batches)
    assert ours.count == theirs.count
    ours, theirs = ({name: column for k in batch.keys() for name, column in leaves(k, batch[k])} for batch in (ours, theirs))
    ours.pop("seq_lens", None), theirs.pop("seq_lens", None)
    assert set(ours) == set(theirs), (set(ours), set(theirs))
    for name, column in theirs.items():
        mine = ours[name]
        assert mine.dtype == column.dtype and mine.shape == column.shape, (name, mine.dtype, column.dtype)
        equal = (mine == column).all() if column.dtype == object else mine.tobytes() == column.tobytes()
        assert equal, (name, mine, column)
    return len(theirs)


def numbers_of(column):
    """Returns the report of `rollmesh data inspect` for a column of numbers."""
    values = np.asarray(column).astype(np.float64).ravel()
    return {"rows": len(column), "min": values.min(), "mean": values.mean(), "max": values.max()}


def read_as_it_is(program, command, folder):
    """Compares RLlib's reading of --output with the program's report. Returns the numbers of batches and columns."""
    subprocess.run([program, *command, "--output", folder, "--json"], check=True, capture_output=True)
    said = subprocess.run([program, "data", "inspect", folder, "--json"], check=True, capture_output=True, text=True)
    said = json.loads(said.stdout)
    batches = list(JsonReader(folder, IOContext()).read_all_files())
    assert sum(batch.env_steps() for batch in batches) == said["env_steps"] and len(batches) == said["batches"]
    columns = 0
    for policy, about in said["policies"].items():
        rows = concat_samples([batch.as_multi_agent().policy_batches[policy] for batch in batches])
        assert rows.count == about["rows"] and set(rows.keys()) == set(about["columns"]), (set(rows.keys()), set(about["columns"]))
        for name, column in about["columns"].items():
            found = numbers_of(rows[name])
            assert all(np.isclose(found[of], column[of], rtol=1e-6) for of in found), (name, found, column)
            columns += 1
        # The rows of every agent in every episode; the returns of ended episodes must be those of the report.
        ended = {}
        ends = np.logical_or(rows["terminateds"], rows["truncateds"])
        for row, agent in enumerate(zip(rows["eps_id"], rows["agent_index"], strict=True)):
            ended.setdefault(agent, []).append(row)
        returns = [rows["rewards"][of].sum() for of in ended.values() if ends[of[-1]]]
        assert len(returns) == about["episodes"] and np.isclose(np.mean(returns), about["return"]["mean"])
    return len(batches), columns


def per_second(rows, least, work, tidy=lambda: None):
    """Returns rows per second of wall-clock and of CPU time, which other programs do not affect, without `tidy`."""
    clock, busy, times = 0.0, 0.0, 0
    while clock < least:
        began, spent = time.perf_counter(), time.process_time()
        work()
        clock, busy, times = clock + time.perf_counter() - began, busy + time.process_time() - spent, times + 1
        tidy()
    return {"clock": rows * times / clock, "busy": rows * times / busy}


def ours(program, file, least, processors):
    """Times rollmesh in a separate process, on the given number of processors."""
    allowed = sorted(os.sched_getaffinity(0))[:processors]
    timing = [program, "time", file, str(least)]
    ran = subprocess.run(timing, check=True, capture_output=True, text=True, preexec_fn=lambda: os.sched_setaffinity(0, allowed))
    return json.loads(ran.stdout)


def main():
    program, rollmesh = sys.argv[1:3]
    least = float(sys.argv[3]) if len(sys.argv) > 3 else 3.0
    turns = int(sys.argv[4]) if len(sys.argv) > 4 else 3
    rng = np.random.default_rng(7)
    batches = [cart_pole(200, rng, number) for number in range(50)]
    with tempfile.TemporaryDirectory() as root:
        theirs = write(batches + odd_ones(rng), os.path.join(root, "rllib"))
        rewritten = os.path.join(root, "ours.json")
        subprocess.run([program, "rewrite", theirs, rewritten], check=True)
        # RLlib reads its own file and rollmesh's copy of it equally.
        pairs = list(zip(read(rewritten), read(theirs), strict=True))
        columns = sum(same(a, b) for a, b in pairs)
        print(f"{len(pairs)} batches, {columns} columns equal in both directions")
        for command in [
            ["sample", "--env", "CartPole-v1", "--hidden", "16", "--num-envs", "4", "--env-steps", "2000", "--seed", "1"],
            ["sample", "--env", "MultiAgentCartPole-v1", "--num-envs", "2", "--env-steps", "2000", "--seed", "1"],
            ["train", "--env", "CartPole-v1", "--max-env-steps", "4096", "--seed", "1", "--run-dir", os.path.join(root, "run")],
        ]:
            kept, columns = read_as_it_is(rollmesh, command, os.path.join(root, f"{command[0]}-{command[2]}"))
            print(f"rollmesh {' '.join(command[:3])} --output: RLlib reads {kept} batches, {columns} columns agree")

        # The batches make a file of several megabytes, as after an hour of sampling.
        file = write(batches * 20, os.path.join(root, "timing"))
        rows = 20 * sum(batch.count for batch in batches)
        decoded = read(file)
        writer = JsonWriter(os.path.join(root, "again"), IOContext(), max_file_size=1 << 40)
        for turn in range(turns):
            reading = per_second(rows, least, lambda: pass_over(file))
            # On both sides every pass begins with an empty file, so that neither writes gigabytes.
            empty = lambda: os.truncate(glob.glob(os.path.join(root, "again", "*.json"))[0], 0)
            writing = per_second(rows, least, lambda: [writer.write(batch) for batch in decoded], empty)
            for processors in sorted({1, os.cpu_count()}):
                mine = ours(program, file, least, processors)
                for what, theirs in [("read", reading), ("write_one_by_one", writing), ("write", writing)]:
                    ratios = ", ".join(f"{mine[what][of] / theirs[of]:.1f}x {of}" for of in ("clock", "busy"))
                    print(f"turn {turn}, {processors} processors, {what}: RLlib {theirs['clock']:,.0f} rows/s, rollmesh "
                          f"{mine[what]['clock']:,.0f} rows/s: {ratios}", flush=True)


if __name__ == "__main__":
    main()
