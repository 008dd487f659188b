"""Batches as mappings of NumPy arrays."""

import copy
import pickle
import unittest
from unittest import mock

import numpy as np

import rollmesh
from rollmesh import MultiAgentBatch, SampleBatch, concat_samples


def batch() -> SampleBatch:
    return SampleBatch({
        "obs": np.arange(12, dtype=np.float32).reshape(6, 2),
        "actions": np.array([0, 1, 0, 1, 1, 0], dtype=np.int64),
        "eps_id": np.array([7, 7, 7, 8, 8, 9]),
        "infos": [{"k": n} for n in range(6)],
    })


class Batches(unittest.TestCase):
    def test_columns_are_read_only_views_of_shared_memory(self):
        one = batch()
        obs = one["obs"]
        self.assertFalse(obs.flags.writeable)
        with self.assertRaises(ValueError):
            obs[0] = 1
        self.assertEqual(obs.ctypes.data, one["obs"].ctypes.data)
        self.assertEqual(one[2:4]["obs"].ctypes.data, obs[2:].ctypes.data)
        np.testing.assert_array_equal(np.from_dlpack(one.copy()["obs"]), obs)

    def test_an_array_outlives_its_batch(self):
        obs = batch()["obs"]
        rubbish = [np.ones((6, 2), np.float32) for _ in range(100)]
        np.testing.assert_array_equal(obs, np.arange(12, dtype=np.float32).reshape(6, 2))
        del rubbish

    def test_mapping_and_sizes(self):
        one = batch()
        self.assertEqual((len(one), one.count, one.env_steps(), one.agent_steps()), (6, 6, 6, 6))
        self.assertEqual(list(one), ["obs", "actions", "eps_id", "infos"])
        self.assertEqual(set(dict(one)), {"obs", "actions", "eps_id", "infos"})
        self.assertIn("obs", one)
        with self.assertRaises(KeyError):
            one["rewards"]
        self.assertEqual(one["infos"][3], {"k": 3})
        self.assertEqual([row["actions"] for row in one.rows()], [0, 1, 0, 1, 1, 0])
        self.assertEqual([column.shape for column in one.columns(["actions", "obs"])], [(6,), (6, 2)])
        self.assertEqual(repr(one), "SampleBatch(6: ['obs', 'actions', 'eps_id', 'infos'])")

    def test_writes_reach_the_batch_and_leave_others_alone(self):
        one = batch()
        two = one.copy()
        two["obs"][0] = [-1, -2]
        np.testing.assert_array_equal(two[:1]["obs"], [[-1, -2]])
        np.testing.assert_array_equal(one["obs"][0], [0, 1])
        self.assertNotEqual(one, two)
        one["advantages"] = np.ones(6, np.float32)
        self.assertEqual(one["advantages"].dtype, np.float32)
        del one["advantages"]
        self.assertNotIn("advantages", one)

    def test_episodes_slices_and_concatenation(self):
        one = batch()
        episodes = one.split_by_episode()
        self.assertEqual([len(episode) for episode in episodes], [3, 2, 1])
        self.assertEqual(concat_samples(episodes), one)
        self.assertEqual(SampleBatch.concat_samples(one.timeslices(size=4)), one)
        self.assertEqual([len(part) for part in one.timeslices(num_slices=3)], [2, 2, 2])
        self.assertEqual(sorted(one.copy().shuffle(seed=3)["obs"][:, 0]), sorted(one["obs"][:, 0]))
        self.assertEqual(batch().shuffle(seed=3), batch().shuffle(seed=3))

    def test_pickle_and_several_policies(self):
        one = batch()
        self.assertEqual(pickle.loads(pickle.dumps(one)), one)
        multi = MultiAgentBatch({"a": one, "b": one[:2]}, 6)
        self.assertEqual((multi.env_steps(), multi.agent_steps(), list(multi)), (6, 8, ["a", "b"]))
        self.assertEqual(pickle.loads(pickle.dumps(multi)), multi)
        self.assertEqual(concat_samples([multi, multi]).agent_steps(), 16)
        self.assertEqual(one.as_multi_agent(), MultiAgentBatch({"default_policy": one}, 6))
        self.assertIs(MultiAgentBatch.wrap_as_needed({"default_policy": one}, 6), one)

    def test_writes_into_a_policys_batch_reach_the_multi_agent_batch(self):
        multi = concat_samples([MultiAgentBatch({"a": batch(), "b": batch()[:2]}, 6)])
        multi["b"]["advantages"] = np.array([3.0, 4.0])
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(multi))["b"]["advantages"], [3, 4])
        copied = multi.copy()
        self.assertIsInstance(copied, MultiAgentBatch)
        copied["a"]["obs"][0] = -1
        np.testing.assert_array_equal(concat_samples([copied])["a"]["obs"][0], [-1, -1])
        np.testing.assert_array_equal(multi["a"]["obs"][0], [0, 1])
        self.assertNotEqual(copied, multi)
        multi.policy_batches["c"] = batch()
        self.assertEqual((multi.agent_steps(), pickle.loads(pickle.dumps(multi)).agent_steps()), (14, 14))

    def test_values_do_not_depend_on_byte_order(self):
        for dtype in ("f4", "f8", "i4", "i8"):
            values = np.arange(6).reshape(3, 2)
            one = SampleBatch(obs=values.astype(">" + dtype), rewards=values.astype("<" + dtype))
            np.testing.assert_array_equal(one["obs"], values)
            np.testing.assert_array_equal(one["obs"], one["rewards"])

    def test_rows_of_bytes_keep_trailing_zeros(self):
        one = SampleBatch(infos=[b"a\0\0", b"", b"\0"])
        self.assertEqual(list(one["infos"]), [b"a\0\0", b"", b"\0"])
        copied = SampleBatch(infos=[{}, {}, {}], rewards=[1.0, 2.0, 3.0]).copy()
        copied["infos"] = [b"\0", b"b\0", b"c"]
        self.assertEqual(list(copied[1:]["infos"]), [b"b\0", b"c"])

    def test_sequences(self):
        rows = SampleBatch({"obs": np.arange(5.0), "state_in_0": np.zeros((2, 3), np.float32)}, seq_lens=[2, 3])
        padded = rows.right_zero_pad(4)
        np.testing.assert_array_equal(padded["obs"], [0, 1, 0, 0, 2, 3, 4, 0])
        np.testing.assert_array_equal(rows["seq_lens"], [2, 3])
        self.assertTrue(padded.zero_padded and padded.max_seq_len == 4)

    def test_what_is_written_into_parts_of_a_copy_reaches_it(self):
        copied = batch().copy()
        with mock.patch("rollmesh._batch.to_column", side_effect=AssertionError("slices need no encoding")):
            parts = [copied[1:3], copied.slice(1, 3)]
        parts += [copied.timeslices(size=3)[0][1:], copied.split_by_episode()[0][1:]]
        for value, part in enumerate(parts, 20):
            part["obs"][0] = value
            self.assertEqual(copied["obs"][1, 0], value)
            self.assertEqual(concat_samples([part])["obs"][0, 0], value)
        self.assertEqual(copied.split_by_episode()[1]["obs"].tolist(), batch()["obs"][3:5].tolist())
        for other in (copy.deepcopy(copied), pickle.loads(pickle.dumps(copied)), copied.slice(-1, 3)):
            other["obs"][0] = -7
            self.assertNotEqual(copied["obs"][0, 0], -7)
        self.assertFalse(pickle.loads(pickle.dumps(batch()))["obs"].flags.writeable)
        copied["t"] = copied["agent_index"] = np.arange(6)
        multi = MultiAgentBatch({"a": copied}, 6)
        self.assertTrue(pickle.loads(pickle.dumps(multi))["a"]["obs"].flags.writeable)
        self.assertTrue(multi.timeslices(3)[0]["a"]["obs"].flags.writeable)

    def test_columns_are_converted_once_by_an_interceptor(self):
        one, calls = batch(), []

        def convert(array):
            calls.append(array)
            return array.tolist()

        one.set_get_interceptor(convert)
        self.assertEqual((one["actions"], one["actions"], len(calls)), ([0, 1, 0, 1, 1, 0], [0, 1, 0, 1, 1, 0], 1))
        self.assertEqual(one.columns(["eps_id"]), [[7, 7, 7, 8, 8, 9]])
        one["actions"] = np.ones(6, np.int64)
        self.assertEqual(one["actions"], [1] * 6)
        self.assertEqual(one.copy()["actions"].tolist(), [1] * 6)
        one.set_get_interceptor()
        self.assertIsInstance(one["actions"], np.ndarray)

    def test_batches_of_all_policies_are_compressed(self):
        multi = MultiAgentBatch({"a": SampleBatch(obs=np.zeros((500, 8), np.float32)), "b": SampleBatch(x=[1.0])}, 500)
        before = multi.size_bytes()
        self.assertLess(multi.compress(bulk=True, columns=["obs"]).size_bytes(), before)
        self.assertEqual(multi.decompress_if_needed().size_bytes(), before)

    def test_columns_of_a_copy_stay_compressed(self):
        one = SampleBatch(obs=np.zeros((1_000, 10), np.float32), rewards=np.zeros(1_000)).copy()
        one["rewards"][0] = 1
        one.compress(bulk=True)
        self.assertLess(len(pickle.dumps(one)), 20_000)
        self.assertFalse(one["obs"].flags.writeable)
        one.decompress_if_needed()["obs"][3] = 4
        self.assertEqual((one["rewards"][0], concat_samples([one])["obs"][3, 0]), (1, 4))

    def test_lengths_of_sequences_are_a_column(self):
        rows = SampleBatch({"obs": np.arange(5.0)}, seq_lens=[2, 3])
        self.assertEqual(list(rows), ["obs", "seq_lens"])
        self.assertEqual(SampleBatch(dict(rows)), rows)
        copied = rows.copy()
        copied["seq_lens"] = [4, 1]
        self.assertEqual((copied["seq_lens"].tolist(), rows["seq_lens"].tolist()), ([4, 1], [2, 3]))
        del copied["seq_lens"]
        self.assertEqual((list(copied), copied["obs"].tolist()), (["obs"], [0, 1, 2, 3, 4]))
        with self.assertRaises(KeyError):
            del copied["seq_lens"]

    def test_flags_may_be_numbers(self):
        for dtype in (int, np.float32, bool):
            rows = SampleBatch(terminateds=np.array([0, 0, 1], dtype), truncateds=np.array([0, 1, 0], dtype))
            self.assertEqual(rows["dones"].tolist(), [False, True, True])
        self.assertIn("dones", rows)
        self.assertNotIn("dones", batch())
        truncated = SampleBatch(truncateds=[0, 1])
        self.assertNotIn("dones", truncated)
        self.assertIsNone(truncated.get("dones"))
        with self.assertRaisesRegex(KeyError, "dones"):
            truncated["dones"]
        copied = rows.copy()
        copied["terminateds"][0] = True
        self.assertEqual(copied["dones"].tolist(), [True, True, True])

    def test_rows_of_json_may_have_numbers_of_numpy(self):
        one = SampleBatch(infos=[{"n": np.float32(0.5)}, {"n": np.arange(2)}, {"n": np.array([np.inf])}])
        self.assertEqual(list(one["infos"]), [{"n": 0.5}, {"n": [0, 1]}, {"n": [np.inf]}])
        one = SampleBatch(infos=[{"n": {"c", "a", "b"}, None: frozenset({2, 1}), True: 3, np.int64(4): 5}])
        self.assertEqual(list(one["infos"]), [{"n": ["a", "b", "c"], "null": [1, 2], "true": 3, "4": 5}])
        with self.assertRaisesRegex(TypeError, r"infos\[1\].n is of object"):
            SampleBatch(infos=[{}, {"n": object()}])

    def test_errors_name_the_column_and_the_fix(self):
        for wrong in ({"obs": np.zeros(2)}, None):
            with self.assertRaisesRegex(TypeError, "a batch is a SampleBatch or a MultiAgentBatch, not"):
                concat_samples([batch(), wrong])
        with self.assertRaisesRegex(rollmesh.BatchError, "b"):
            SampleBatch({"a": [1, 2], "b": [1]})
        with self.assertRaisesRegex(TypeError, "'a' is of float16: convert it"):
            SampleBatch({"a": np.zeros(2, np.float16)})


if __name__ == "__main__":
    unittest.main()
