// Tests that batches have the core's methods, with the same results.
import assert from "node:assert/strict";
import { test } from "node:test";

import { MultiAgentBatch, RolloutWorker, SampleBatch, init } from "rollmesh";

await init();

const batch = () => SampleBatch.from({
  obs: { dtype: "float32", shape: [2], data: Float32Array.from({ length: 10 }, (_, at) => at) },
  t: BigInt64Array.of(0n, 1n, 2n, 0n, 1n),
  eps_id: BigInt64Array.of(7n, 7n, 7n, 8n, 8n),
  agent_index: BigInt64Array.of(0n, 0n, 0n, 0n, 0n),
  terminateds: { dtype: "bool", shape: [], data: Uint8Array.of(0, 0, 1, 0, 0) },
  truncateds: { dtype: "bool", shape: [], data: Uint8Array.of(0, 0, 0, 0, 0) },
  infos: { dtype: "json", offsets: Uint32Array.of(0, 2, 4, 6, 8, 10), data: new TextEncoder().encode("{}{}{}{}{}") },
});

const ts = (batch) => Array.from(batch.get("t", "int64").data, Number);

test("columns are typed arrays with shapes", () => {
  const rows = batch();
  assert.equal(rows.length, 5);
  assert.deepEqual(rows.columns, ["obs", "t", "eps_id", "agent_index", "terminateds", "truncateds", "infos"]);
  const { dtype, shape, data } = rows.get("obs");
  assert.deepEqual([dtype, shape, data.length, data.constructor], ["float32", [2], 10, Float32Array]);
  assert.equal(data.buffer.byteLength, data.byteLength);
  assert.throws(() => rows.get("reward"), { kind: "batch", field: "reward", message: /no column 'reward'; it has obs, t/ });
  assert.throws(() => rows.get("obs", "int64"), { kind: "batch", message: /is of float32, not of int64/ });
  assert.deepEqual(structuredClone(rows.toObject()), rows.toObject());
  assert.match(rows.toString(), /^SampleBatch\(5: \['obs'/);
});

test("rows are objects", () => {
  const rows = [...batch().rows()];
  assert.deepEqual(rows[1].obs, Float32Array.of(2, 3));
  assert.deepEqual([rows[2].t, rows[2].terminateds, new TextDecoder().decode(rows[2].infos)], [2n, 1, "{}"]);
});

test("slices are cut and rejoined", () => {
  const rows = batch();
  assert.deepEqual(ts(rows.slice(1, 4)), [1, 2, 0]);
  assert.deepEqual([ts(rows.slice()), rows.slice(3, 99).length, rows.slice(9).length], [ts(rows), 2, 0]);
  assert.deepEqual(ts(rows.slice(-1, 1)), [0, 0]);
  assert.deepEqual(rows.splitByEpisode().map(ts), [[0, 1, 2], [0, 1]]);
  assert.deepEqual(rows.splitByEpisode("dones").map(ts), [[0, 1, 2], [0, 1]]);
  assert.deepEqual(rows.timeslices({ size: 2 }).map(ts), [[0, 1], [2, 0], [1]]);
  assert.deepEqual(rows.timeslices({ numSlices: 2 }).map(ts), [[0, 1], [2, 0, 1]]);
  assert.deepEqual(SampleBatch.concat(rows.timeslices({ size: 2 })).toObject(), rows.toObject());
  assert.throws(() => rows.timeslices({ size: 0 }), { kind: "batch" });
  assert.deepEqual(Array.from(rows.dones()), [0, 0, 1, 0, 0]);
});

test("shuffling keeps rows together and follows from the seed", () => {
  const rows = batch(), shuffled = rows.shuffle(1);
  const pairs = (of) => [...of.rows()].map(({ obs, t, eps_id }) => [...obs, Number(t), Number(eps_id)].join());
  assert.deepEqual(pairs(shuffled).sort(), pairs(rows).sort());
  assert.deepEqual(pairs(rows.shuffle(1)), pairs(shuffled));
  assert.ok([2, 3, 4].some((seed) => pairs(rows.shuffle(seed)).join() !== pairs(shuffled).join()));
  assert.deepEqual(ts(rows), [0, 1, 2, 0, 1]);
});

test("rows of several policies are counted by env step", () => {
  const both = MultiAgentBatch.from({ p: batch(), q: batch().slice(0, 3) }, 5);
  assert.deepEqual([both.envSteps, both.agentSteps, both.policyIds], [5, 8, ["p", "q"]]);
  assert.deepEqual(both.timeslices(3).map((slice) => [slice.envSteps, slice.agentSteps]), [[3, 6], [2, 2]]);
  assert.equal(MultiAgentBatch.concat([both, batch()]).agentSteps, 13);
  assert.deepEqual(ts(both.get("q")), [0, 1, 2]);
  assert.equal(both.get("r"), undefined);
  assert.throws(() => both.single(), { kind: "batch", message: /'p'/ });
  assert.equal(batch().asMultiAgent().single().length, 5);
});

test("numbers and names that make no sense are named", () => {
  const rows = batch(), both = MultiAgentBatch.from({ p: rows }, 5), wrong = (field) => ({ kind: "config", field });
  for (const steps of [-1, 1.5, 2 ** 32 + 3, "2", undefined]) {
    assert.throws(() => rows.timeslices({ size: steps }), wrong("size"));
    assert.throws(() => rows.timeslices({ numSlices: steps }), wrong("numSlices"));
    assert.throws(() => both.timeslices(steps), wrong("envSteps"));
    assert.throws(() => MultiAgentBatch.from({ p: rows }, steps), wrong("envSteps"));
  }
  for (const seed of [-1, 1.5, 2 ** 53, 1n << 64n]) assert.throws(() => rows.shuffle(seed), wrong("seed"));
  assert.throws(() => rows.splitByEpisode(5), wrong("key"));
  assert.throws(() => rows.get(5), wrong("name"));
  assert.throws(() => both.get(5), wrong("policy"));
});

test("columns that do not fit are named", () => {
  const make = (columns) => () => SampleBatch.from(columns);
  assert.throws(make({ a: Float32Array.of(1), b: Float32Array.of(1, 2) }), { kind: "batch", message: /'b' has 2 rows, the batch has 1/ });
  assert.throws(make({ a: { dtype: "float16", shape: [], data: Float32Array.of(1) } }), { kind: "batch", message: /'a'.*float16/ });
  assert.throws(make({ a: { dtype: "float64", shape: [], data: Float32Array.of(1) } }), { kind: "batch", message: /'a'.*float64/ });
  assert.throws(make({ a: { dtype: "float32", shape: [2], data: Float32Array.of(1, 2, 3) } }), { kind: "batch", message: /'a'.*whole rows/ });
  assert.throws(make({ a: { dtype: "bool", shape: [], data: Uint8Array.of(2) } }), { kind: "batch", message: /'a'/ });
  assert.throws(make({ a: [1, 2] }), { kind: "batch", message: /'a'/ });
  assert.throws(make({ a: new Int8Array(2) }), { kind: "batch" });
});

test("sequences of a recurrent policy are not split", () => {
  const worker = new RolloutWorker({ env: "StatelessCartPole-v1", rollout_fragment_length: 60, model_config: { use_lstm: true, lstm_cell_size: 8 } });
  const rows = worker.sample().single();
  assert.equal(rows.seqLens.reduce((sum, length) => sum + length, 0), 60);
  const again = SampleBatch.from(rows.toObject().columns, rows.seqLens);
  assert.deepEqual(again.toObject(), rows.toObject());
  assert.equal([...rows.rows()].length, 60);
});
