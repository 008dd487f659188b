"""Readers, writers, estimators, and the conformance cases that batches have."""

import json
import os
import pathlib
import tempfile
import unittest

import numpy as np

import rollmesh
from rollmesh import DatasetReader, JsonReader, JsonWriter, ParquetWriter, Reader, RolloutWorker, SampleBatch, concat_samples


class Files(unittest.TestCase):
    def test_rows_are_read_as_they_were_written(self):
        with RolloutWorker("CartPole-v1", num_envs=2, rollout_fragment_length=50, seed=3) as worker:
            batch = worker.sample()
        for writer in (JsonWriter, ParquetWriter):
            with tempfile.TemporaryDirectory() as folder:
                with writer(pathlib.Path(folder), max_file_size=1_000) as out:
                    out.write(batch)
                    out.write(batch[:10])
                    with self.assertRaisesRegex(TypeError, "not dict"):
                        out.write(dict(batch))
                self.assertEqual(len(list(pathlib.Path(folder).iterdir())), 2)
                with self.assertRaisesRegex(TypeError, "max_size"):
                    writer(folder, max_size=1_000)
                read = concat_samples(list(Reader(pathlib.Path(folder))))[:100]
                self.assertEqual(len(read), len(batch))
                for name in ("obs", "actions", "rewards"):
                    np.testing.assert_array_equal(read[name], batch[name])

    def test_readers_of_rllibs_names_begin_again_after_the_last_batch(self):
        with RolloutWorker("CartPole-v1", rollout_fragment_length=5, seed=3) as worker:
            batches = [worker.sample() for _ in range(3)]
        with tempfile.TemporaryDirectory() as folder:
            with JsonWriter(folder) as out:
                for batch in batches:
                    out.write(batch)
            lengths = [len(batch) for batch in batches]
            for made in (JsonReader(folder), DatasetReader([folder])):
                starts = [made.next()["obs"][0].tolist() for _ in range(4)]
                self.assertEqual(starts, [batch["obs"][0].tolist() for batch in [*batches, batches[0]]])
            self.assertEqual([len(batch) for batch in JsonReader(folder).read_all_files()], lengths)
            pathlib.Path(folder, "empty.json").touch()
            with self.assertRaisesRegex(rollmesh.OfflineError, "the files have no batches"):
                DatasetReader(pathlib.Path(folder, "empty.json")).next()

    def test_missing_files_are_named(self):
        with self.assertRaisesRegex(rollmesh.OfflineError, "no-such-folder"):
            Reader("no-such-folder")


class Estimators(unittest.TestCase):
    def test_importance_sampling_weighs_by_ratios(self):
        batch = SampleBatch(
            rewards=np.array([1.0, 1.0, 2.0]),
            action_prob=np.array([0.5, 0.5, 0.5]),
            new_action_prob=np.array([1.0, 0.5, 0.25]),
            eps_id=np.array([1, 1, 2]),
        )
        whole = SampleBatch({**batch, "rewards": np.array([1, 1, 2])})
        found = rollmesh.estimate(batch, "is", gamma=1.0)
        self.assertEqual(rollmesh.estimate(whole, "is", gamma=1.0), found)
        # Episode 1: 2 * 1 + 2 * 1; episode 2: 0.5 * 2.
        self.assertAlmostEqual(found["v_target"], (4.0 + 1.0) / 2)
        self.assertAlmostEqual(found["v_behavior"], 2.0)


if __name__ == "__main__":
    unittest.main()
