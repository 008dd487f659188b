"""minari, h5py, pandas and pyarrow compared with rollmesh's readers and writers.

needs: `minari[hdf5,arrow]`, `h5py`, `pandas`, `pyarrow`, Python 3.10 or newer
usage: cargo build --release -p rollmesh-tests --bin data_sets
       python tests/peers/data_sets.py target/release/data_sets
"""

import os
import pathlib
import subprocess
import sys
import tempfile

import h5py
import minari
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_dataset import MinariDataset

PROGRAM = sys.argv[1]
RNG = np.random.default_rng(3)
OBSERVATIONS = spaces.Dict({
    "goal": spaces.Discrete(5),
    "pos": spaces.Box(-np.inf, np.inf, (2, 2), np.float32),
})
ACTIONS = spaces.Tuple((spaces.Box(-1.0, 1.0, (3,), np.float64), spaces.Discrete(3)))


def run(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], check=True, capture_output=True, text=True).stdout.split()


def array(table, name):
    """Returns a column of rollmesh's files: lists of fixed size, with the shape in the field's metadata."""
    field = table.schema.field(name)
    shape = (field.metadata or {}).get(b"shape")
    values = table.column(name).combine_chunks()
    if shape is None:
        return values.to_numpy(zero_copy_only=False)
    dims = [int(dim) for dim in shape.split(b",")]
    return values.flatten().to_numpy(zero_copy_only=False).reshape(-1, *dims)


def same(name, ours, theirs):
    theirs = np.asarray(theirs)
    assert ours.shape == theirs.shape, (name, ours.shape, theirs.shape)
    assert np.array_equal(ours, theirs.astype(ours.dtype), equal_nan=True), name


def episodes():
    result = []
    for number, steps in enumerate([1, 30, 200]):
        result.append(EpisodeBuffer(
            id=number,
            seed=number + 5,
            observations={
                "goal": RNG.integers(0, 5, steps + 1),
                "pos": RNG.normal(size=(steps + 1, 2, 2)).astype(np.float32),
            },
            actions=(RNG.uniform(-1, 1, (steps, 3)), RNG.integers(0, 3, steps)),
            rewards=list(RNG.normal(size=steps).astype(np.float32).astype(np.float64)),
            terminations=[t == steps - 1 and number != 1 for t in range(steps)],
            truncations=[t == steps - 1 and number == 1 for t in range(steps)],
            infos={"speed": RNG.normal(size=steps + 1), "contact": {"force": RNG.normal(size=(steps + 1, 2))}},
        ))
    return result


def check_minari(folder, data_format, buffers):
    """Asserts that rollmesh reads minari's files in a format, and that minari reads rollmesh's, with equal values."""
    os.environ["MINARI_DATASETS_PATH"] = str(folder / data_format)
    minari.create_dataset_from_buffers(
        f"peer/{data_format}-v0",
        buffers,
        observation_space=OBSERVATIONS,
        action_space=ACTIONS,
        data_format=data_format,
        requirements=[],
    )
    path = folder / data_format / "peer" / f"{data_format}-v0"
    files = run("convert", path, folder / f"ours-{data_format}")
    table = pq.read_table(files[0])
    at = 0
    for buffer in buffers:
        steps = len(buffer.rewards)
        rows = slice(at, at + steps)
        for part in ("goal", "pos"):
            same(part, array(table, f"obs.{part}")[rows], buffer.observations[part][:-1])
            same(part, array(table, f"new_obs.{part}")[rows], buffer.observations[part][1:])
        for place in (0, 1):
            same("actions", array(table, f"actions.{place}")[rows], buffer.actions[place])
        same("rewards", array(table, "rewards")[rows], buffer.rewards)
        same("terminateds", array(table, "terminateds")[rows], buffer.terminations)
        same("truncateds", array(table, "truncateds")[rows], buffer.truncations)
        same("eps_id", array(table, "eps_id")[rows], [buffer.id] * steps)
        same("infos", array(table, "infos.speed")[rows], buffer.infos["speed"][1:])
        same("infos", array(table, "infos.contact.force")[rows], buffer.infos["contact"]["force"][1:])
        at += steps
    assert at == table.num_rows

    rewritten = folder / f"rewritten-{data_format}"
    run("minari", path, rewritten)
    dataset = MinariDataset(rewritten / "data")
    assert (dataset.total_episodes, dataset.total_steps) == (len(buffers), at)
    assert dataset.observation_space == OBSERVATIONS and dataset.action_space == ACTIONS
    for buffer, episode in zip(buffers, dataset.iterate_episodes()):
        assert episode.id == buffer.id
        for part in ("goal", "pos"):
            same(part, episode.observations[part], buffer.observations[part])
        for place in (0, 1):
            same("actions", episode.actions[place], buffer.actions[place])
        same("rewards", episode.rewards, buffer.rewards)
        same("terminations", episode.terminations, buffer.terminations)
        same("truncations", episode.truncations, buffer.truncations)
    print(f"minari {minari.__version__}, {data_format}: read by us, and written by us read by minari, {at} steps")


def d4rl_columns(rows):
    return {
        "observations": RNG.normal(size=(rows, 7)).astype(np.float32),
        "actions": RNG.normal(size=(rows, 2)).astype(np.float64),
        "rewards": RNG.normal(size=rows).astype(np.float32),
        "terminals": np.arange(rows) % 97 == 96,
        "timeouts": np.arange(rows) % 60 == 59,
        "infos/qpos": RNG.normal(size=(rows, 3)),
        "infos/count": RNG.integers(-100, 100, rows).astype(np.int16),
    }


def check_d4rl(folder, name, libver, **options):
    rows = 1000
    columns = d4rl_columns(rows)
    columns["next_observations"] = RNG.normal(size=(rows, 7)).astype(np.float32)
    path = folder / f"{name}.hdf5"
    with h5py.File(path, "w", libver=libver) as file:
        for key, values in columns.items():
            chunks = {"chunks": (130, *(min(3, dim) for dim in values.shape[1:]))} if options else {}
            file.create_dataset(key, data=values, **chunks, **options)
        file["metadata/algorithm"] = "SAC"
        file.attrs["version"] = 2
    table = pq.read_table(run("convert", path, folder / f"d4rl-{name}")[0])
    assert table.num_rows == rows
    for ours, theirs in {
        "obs": "observations", "actions": "actions", "rewards": "rewards", "terminateds": "terminals",
        "truncateds": "timeouts", "infos.qpos": "infos/qpos", "infos.count": "infos/count", "new_obs": "next_observations",
    }.items():
        same(ours, array(table, ours), columns[theirs])
    ends = columns["terminals"] | columns["timeouts"]
    same("eps_id", array(table, "eps_id"), np.concatenate([[0], np.cumsum(ends)[:-1]]))
    print(f"h5py {h5py.version.hdf5_version}, {name}: {rows} rows read by us")


def check_parquet(folder):
    frame = pd.DataFrame({
        "obs": list(RNG.normal(size=(500, 3)).astype(np.float32)),
        "actions": RNG.integers(0, 4, 500),
        "rewards": RNG.normal(size=500).astype(np.float32),
        "terminateds": np.arange(500) % 50 == 49,
        "eps_id": np.arange(500) // 50,
    })
    for compression in ["none", "snappy", "zstd", "gzip", "lz4"]:
        path = folder / f"frame-{compression}.parquet"
        frame.to_parquet(path, compression=None if compression == "none" else compression)
        files = run("convert", path, folder / f"parquet-{compression}")
        ours = pd.read_parquet(files[0])
        assert len(files) == 1 and len(ours) == 500
        same("obs", np.stack(ours["obs"].to_numpy()), np.stack(frame["obs"].to_numpy()))
        for name in ["actions", "rewards", "terminateds", "eps_id"]:
            same(name, ours[name].to_numpy(), frame[name].to_numpy())
        assert list(ours["rollmesh.batch"]) == list(frame["eps_id"])
    print("pandas and pyarrow: their files read by us and ours by them, five compressions")


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        buffers = episodes()
        for data_format in ["hdf5", "arrow", "parquet"]:
            check_minari(folder, data_format, buffers)
        check_d4rl(folder, "contiguous", "earliest")
        check_d4rl(folder, "gzip", "earliest", compression="gzip", shuffle=True, fletcher32=True)
        check_d4rl(folder, "lzf", "earliest", compression="lzf", shuffle=True)
        check_d4rl(folder, "latest", "latest")
        check_parquet(folder)


main()
