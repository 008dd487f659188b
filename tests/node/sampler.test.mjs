// Tests that a sampler with short slices of time returns the same batches as one that is not interrupted.
//
// ROLLMESH_WASM names the folder of the modules made by `wasm-bindgen --target nodejs`.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";

const { WorkerHandle } = createRequire(import.meta.url)(`${process.env.ROLLMESH_WASM}/rollmesh_wasm.js`);

const config = { env: "CartPole-v1", num_envs: 4, rollout_fragment_length: 100, seed: 3 };

/** A worker whose batches are plain objects. */
function sampler(changes) {
  const worker = new WorkerHandle(JSON.stringify({ ...config, ...changes }));
  const step = (budgetMs) => worker.sampleWithin(budgetMs)?.toObject();
  return { step, metrics: () => worker.metrics(), stepsPerSample: worker.stepsPerSample };
}

/** Returns the next batch, sampled in slices between which the event loop runs, and the number of slices. */
async function sliced(sampler, budgetMs) {
  for (let slices = 1; ; slices++) {
    const batch = sampler.step(budgetMs);
    if (batch) return { batch, slices };
    await setImmediate();
  }
}

const configs = {
  "lanes in lockstep": {},
  "whole episodes of several agents under a filter": {
    env: "MultiAgentCartPole-v1",
    num_envs: 2,
    batch_mode: "complete_episodes",
    observation_filter: "MeanStdFilter",
  },
  "two policies with memory": {
    env: "MultiAgentTrafficGrid-v0",
    num_envs: 2,
    rollout_fragment_length: 40,
    policy_mapping_fn: "traffic",
    policies: { car_policy1: {}, car_policy2: {}, traffic_light_policy: { policy: "random" } },
    model_config: { use_lstm: true, lstm_cell_size: 8 },
  },
};

for (const [name, changes] of Object.entries(configs)) {
  test(`${name}: within a millisecond, or none, as without a limit`, async () => {
    const [whole, short, shortest] = [0, 1, 2].map(() => sampler(changes));
    for (let sample = 0; sample < 3; sample++) {
      const wanted = whole.step(Infinity);
      assert.deepEqual((await sliced(short, 1)).batch, wanted);
      const { batch, slices } = await sliced(shortest, 0);
      assert.deepEqual(batch, wanted);
      assert.ok(slices >= 40, `${slices} slices`);
    }
    const metrics = whole.metrics();
    assert.ok(metrics.episodes.length > 0 || name === "two policies with memory");
    assert.deepEqual(short.metrics(), metrics);
    assert.deepEqual(shortest.metrics(), metrics);
  });
}

test("a call without time takes one step of all environments", async () => {
  assert.equal((await sliced(sampler(), 0)).slices, 100);
});

test("a batch is plain objects and typed arrays", () => {
  const worker = sampler();
  assert.equal(worker.stepsPerSample, 400);
  const { envSteps, agentSteps, policies } = worker.step(Infinity);
  assert.deepEqual([envSteps, agentSteps, Object.keys(policies)], [400, 400, ["default_policy"]]);
  const { rows, columns, seqLens } = policies.default_policy;
  assert.deepEqual([rows, seqLens], [400, undefined]);
  const found = Object.entries(columns).map(([name, { dtype, shape, data }]) => {
    assert.equal(data.length, rows * shape.reduce((a, b) => a * b, 1), name);
    // The column has its own memory, so it can be transferred.
    assert.equal(data.buffer.byteLength, data.byteLength, name);
    return [name, dtype, shape, data.constructor.name];
  });
  for (const wanted of [
    ["obs", "float32", [4], "Float32Array"],
    ["actions", "int64", [], "BigInt64Array"],
    ["rewards", "float32", [], "Float32Array"],
    ["terminateds", "bool", [], "Uint8Array"],
    ["eps_id", "int64", [], "BigInt64Array"],
    ["advantages", "float32", [], "Float32Array"],
  ]) {
    assert.deepEqual(found.find(([name]) => name === wanted[0]), wanted);
  }
  assert.ok(columns.rewards.data.every((reward) => reward === 1));
  assert.deepEqual(structuredClone(policies), policies);
});

test("compressed observations come as they were", () => {
  const plain = sampler().step(Infinity);
  assert.deepEqual(sampler({ compress_observations: "bulk" }).step(Infinity), plain);
});

test("sequences of a policy with memory have lengths", () => {
  const config = { model_config: { use_lstm: true, lstm_cell_size: 8 }, rollout_fragment_length: 30 };
  const { rows, columns, seqLens } = sampler(config).step(Infinity).policies.default_policy;
  assert.equal(seqLens.reduce((a, b) => a + b, 0), rows);
  assert.deepEqual(columns.state_in_0.shape, [8]);
});

test("metrics report each finished episode once", () => {
  const worker = sampler({ rollout_fragment_length: 200 });
  const { eps_id, terminateds } = worker.step(Infinity).policies.default_policy.columns;
  const { episodes, ...rest } = worker.metrics();
  assert.equal(episodes.length, terminateds.data.reduce((a, b) => a + b, 0));
  for (const { id, env, length, episodeReturn, faulty } of episodes) {
    assert.deepEqual([length, faulty], [episodeReturn, undefined]);
    assert.equal(env, Number(id >> 32n));
    assert.equal(eps_id.data.filter((of) => of === id).length, length);
  }
  assert.deepEqual(rest, { discardedEnvSteps: 0, discardedAgentSteps: 0, quarantined: [], warnings: [] });
  assert.equal(worker.metrics().episodes.length, 0);
});

test("wrong settings are an error that says what there is", () => {
  assert.throws(() => sampler({ num_env: 1 }), /num_envs/);
  assert.throws(() => sampler({ env: "CartPole-v9" }), /CartPole-v9/);
});

test("a budget that is no positive number of milliseconds samples nothing", () => {
  const worker = sampler();
  for (const budget of [NaN, -1, 0, undefined]) {
    assert.equal(worker.step(budget), undefined);
  }
});
