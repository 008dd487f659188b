// Tests that workers sample the same batches as the program, and that their errors name the cause.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { MultiAgentBatch, RollmeshError, RolloutWorker, SampleBatch, batchHash, init, rolloutHash } from "rollmesh";

import { rollmesh, settingsFile } from "./support.mjs";

await init();

const config = { env: "CartPole-v1", num_envs: 4, rollout_fragment_length: 50, seed: 3, model_config: { fcnet_hiddens: [16] } };

test("a rollout has the hash that the program prints", () => {
  const settings = { env: "CartPole-v1", num_envs: 8, seed: 1, rollout_fragment_length: 64, model_config: { fcnet_hiddens: [16] } };
  const { rollout_hash } = rollmesh("sample", "--env", "CartPole-v1", "--policy", "mlp", "--hidden", 16, "--num-envs", 8,
    "--rollout-fragment-length", 100, "--env-steps", 5000, "--seed", 1, "--json");
  assert.equal(rolloutHash(settings, 5000), rollout_hash);
  assert.notEqual(rolloutHash({ ...settings, seed: 2 }, 5000), rollout_hash);
});

for (const [name, changes] of Object.entries({
  "one agent": {},
  "several agents": { env: "MultiAgentCartPole-v1", num_envs: 2, batch_mode: "complete_episodes" },
})) {
  test(`samples of ${name} have the hash that the program prints`, (t) => {
    const settings = { ...config, ...changes };
    const worker = new RolloutWorker(settings);
    const first = worker.sample();
    const native = rollmesh("sample", "--config", settingsFile(t, settings), "--env-steps", first.envSteps + 1, "--json");
    assert.equal(native.samples, 2);
    assert.equal(batchHash([first, worker.sample()]), native.batch_hash);
  });
}

const kinds = JSON.parse(readFileSync(join(process.env.ROLLMESH_ROOT, "tests/golden/kinds.json"), "utf8"));

test("every kind is sampled with its golden hash", () => {
  for (const { config, samples, batch_hash } of kinds.samples) {
    const worker = new RolloutWorker(config);
    assert.equal(batchHash(Array.from({ length: samples }, () => worker.sample())), batch_hash, JSON.stringify(config));
    worker.free();
  }
  for (const { config } of kinds.native) {
    assert.throws(() => new RolloutWorker(config), { kind: "config", message: /sample_async|remote_worker_envs/ });
  }
});

test("a sample in slices is the one without a limit", () => {
  const [whole, sliced] = [new RolloutWorker(config), new RolloutWorker(config)];
  let batch, calls = 0;
  while (!batch) {
    batch = sliced.sampleWithin(0);
    calls++;
  }
  assert.equal(calls, 50);
  assert.equal(batchHash([batch]), batchHash([whole.sample()]));
  assert.equal(batchHash([sliced.sampleWithin(Infinity)]), batchHash([whole.sample()]));
});

test("metrics have the episodes that ended, once", () => {
  const worker = new RolloutWorker({ ...config, rollout_fragment_length: 200 });
  assert.equal(worker.stepsPerSample, 800);
  const ends = worker.sample().single().get("terminateds", "bool").data.reduce((sum, flag) => sum + flag, 0);
  const { episodes, ...rest } = worker.metrics();
  assert.ok(ends > 5 && episodes.length === ends);
  assert.ok(episodes.every(({ length, episodeReturn }) => length === episodeReturn));
  assert.deepEqual(rest, { discardedEnvSteps: 0, discardedAgentSteps: 0, quarantined: [], warnings: [] });
  assert.deepEqual(worker.metrics().episodes, []);
});

test("weights go from one worker to another and change what it does", () => {
  const [one, other] = [new RolloutWorker(config), new RolloutWorker({ ...config, policies: { default_policy: { policy: "ppo" } }, seed: 4 })];
  const weights = one.weights();
  assert.deepEqual(Object.keys(weights), ["default_policy"]);
  assert.notDeepEqual(other.weights(), weights);
  other.setWeights(weights);
  assert.deepEqual(other.weights(), weights);
  const wide = new RolloutWorker({ ...config, model_config: { fcnet_hiddens: [8] } });
  assert.throws(() => wide.setWeights(weights), { kind: "policy", message: /tensor 'policy\.0/ });
  assert.throws(() => one.setWeights({ rival: weights.default_policy }), { kind: "policy", message: /rival/ });
  assert.throws(() => one.setWeights({ default_policy: Uint8Array.of(1, 2) }), { kind: "policy", message: /safetensors/ });
});

test("a state continues in another worker", () => {
  const [one, other] = [new RolloutWorker(config), new RolloutWorker(config)];
  one.sample();
  other.restore(one.save());
  assert.equal(batchHash([other.sample()]), batchHash([one.sample()]));
  assert.throws(() => other.restore(Uint8Array.of(1)), { kind: "worker" });
});

test("policies are found by id, added and removed", () => {
  const worker = new RolloutWorker({ ...config, env: "RockPaperScissors-v0", policies: { 0: {}, 1: {} }, policy_mapping_fn: "agent_id" });
  assert.deepEqual([worker.policies.size, ...worker.policies.keys()], [2, "0", "1"]);
  worker.policies.add("c", "random");
  assert.deepEqual([...worker.policies].map(([id]) => id), ["0", "1", "c"]);
  assert.equal(worker.policies.get("c"), worker.policies.get("c"));
  assert.equal(worker.sample().envSteps, 200);
  worker.policies.delete("c");
  assert.equal(worker.policies.has("c"), false);
  assert.equal(worker.sample().envSteps, 200);
  assert.throws(() => worker.policy("c"), { kind: "policy", message: /'c'/ });
});

test("environments of a worker have pictures", () => {
  const worker = new RolloutWorker(config);
  assert.equal(worker.envs.length, 4);
  const { width, height, data } = worker.envs[1].picture();
  assert.equal(data.length, 4 * width * height);
});

test("samples are of one policy or of several", () => {
  assert.ok(new RolloutWorker(config).sample() instanceof SampleBatch);
  const agents = { ...config, env: "RockPaperScissors-v0", policy_mapping_fn: "agent_id", policies: { 0: {}, 1: { policy: "random" } } };
  const batch = new RolloutWorker(agents).sample();
  assert.ok(batch instanceof MultiAgentBatch);
  assert.deepEqual(batch.policyIds, ["0", "1"]);
});

test("mistakes are errors of a kind that say what there is", () => {
  for (const [changes, message] of [
    [{ num_env: 1 }, /num_envs/],
    [{ env: "CartPole-v9" }, /'CartPole-v9'.*CartPole-v1/],
    [{ num_envs: 0 }, /num_envs/],
    [{ sample_async: true }, /sample_async/],
  ]) {
    assert.throws(() => new RolloutWorker({ ...config, ...changes }), (error) => {
      assert.ok(error instanceof RollmeshError);
      assert.equal(error.kind, "config");
      assert.match(error.message, message);
      return true;
    });
  }
});

test("arguments that are of no use are named, before the wasm module reads them", () => {
  const worker = new RolloutWorker(config), wrong = (field, message = /./) => ({ name: "RollmeshError", kind: "config", field, message });
  for (const steps of [2 ** 32, -1, 1.5, NaN, "9", undefined]) assert.throws(() => rolloutHash(config, steps), wrong("envSteps", /from 0 to 4294967295/));
  for (const settings of [undefined, null, "CartPole-v1"]) assert.throws(() => new RolloutWorker(settings), wrong("config", /an object/));
  for (const seed of [2 ** 53, -1, 0.5, NaN, 1n]) assert.throws(() => new RolloutWorker({ ...config, seed }), wrong("seed"));
  assert.throws(() => new RolloutWorker({ ...config, horizon: NaN }), wrong("horizon", /horizon is NaN/));
  for (const use of [() => worker.policy(3), () => worker.exportPolicy(3), () => worker.importPolicy(worker.exportPolicy(), 3),
    () => worker.policies.add(3), () => worker.policies.delete(3)]) assert.throws(use, wrong("id", /id is 3; it is a text/));
  assert.equal(worker.sample().envSteps, 200);
});

test("a freed policy of a worker is recreated on request", () => {
  const worker = new RolloutWorker(config), policy = worker.policy(), { weights } = policy;
  policy.free();
  assert.throws(() => policy.weights, { kind: "freed" });
  assert.deepEqual(worker.policy().weights, weights);
  assert.deepEqual(worker.weights().default_policy, weights);
  assert.equal(worker.policy(), worker.policy());
});

test("a freed object says so when it is used", () => {
  const worker = new RolloutWorker(config), policy = worker.policy(), batch = worker.sample();
  worker.free();
  worker[Symbol.dispose]();
  batch.free();
  for (const use of [() => worker.sample(), () => policy.weights, () => batch.length]) assert.throws(use, { kind: "freed" });
});
