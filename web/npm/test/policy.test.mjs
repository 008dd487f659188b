// Tests that policies act as they do in workers and in the program.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { Policy, RolloutWorker, VectorEnv, init } from "rollmesh";

import { folder } from "./support.mjs";

await init();

const config = { env: "CartPole-v1", num_envs: 2, rollout_fragment_length: 60, seed: 3, explore: false };

for (const [name, changes] of Object.entries({
  "discrete actions": {},
  "continuous actions": { env: "Pendulum-v1" },
  "tables": { env: "FrozenLake-v1" },
})) {
  test(`a worker's policy and its weights alone do the same as the worker: ${name}`, () => {
    const settings = { ...config, ...changes }, worker = new RolloutWorker(settings);
    const acting = worker.policy();
    const alone = Policy.fromSafetensors(worker.weights().default_policy, { env: settings.env });
    const env = new VectorEnv(settings.env, { numEnvs: 2, seed: 3 });
    const rows = worker.sample().single();
    const values = rows.get("vf_preds", "float32").data;
    let observations = env.reset(), rewards = [];
    for (let step = 0; step < 60; step++) {
      const [one, other] = [acting, alone].map((policy) => policy.computeActions(observations, { deterministic: true }));
      assert.deepEqual(one, other);
      assert.deepEqual(Array.from(one.vfPreds), [values[step], values[60 + step]]);
      const steps = env.step(one.actions);
      observations = steps.observations;
      rewards.push(steps.rewards[0]);
    }
    assert.deepEqual(Float32Array.from(rewards), rows.get("rewards", "float32").data.slice(0, 60));
  });
}

test("drawn actions follow from the seed and the calls", () => {
  const weights = new RolloutWorker(config).weights().default_policy;
  const draws = (seed) => {
    const policy = Policy.fromSafetensors(weights, { env: "CartPole-v1", seed });
    return Array.from({ length: 8 }, () => Array.from(policy.computeActions(new Float32Array(4 * 32)).actions).join("")).join();
  };
  assert.equal(draws(1), draws(1));
  assert.notEqual(draws(1), draws(2));
  assert.ok(new Set(draws(1).split(",")).size > 1);
});

test("a policy with memory hands its states on", () => {
  const model = { use_lstm: true, lstm_cell_size: 8 };
  const weights = new RolloutWorker({ ...config, model_config: model }).weights().default_policy;
  const policy = Policy.fromSafetensors(weights, { env: "CartPole-v1", model });
  const rows = Float32Array.of(0.1, 0.2, 0.3, 0.4), first = policy.computeActions(rows, { deterministic: true });
  assert.equal(first.state.length, 16);
  const next = policy.computeActions(rows, { deterministic: true, state: first.state });
  assert.notDeepEqual(next.vfPreds, first.vfPreds);
  assert.throws(() => policy.computeActions(rows, { state: new Float32Array(3) }), { kind: "policy" });
});

test("a model sees the previous step that the caller gives", () => {
  const model = { use_lstm: true, lstm_cell_size: 4, lstm_use_prev_action: true, lstm_use_prev_reward: true };
  const weights = new RolloutWorker({ ...config, model_config: model }).weights().default_policy;
  const policy = Policy.fromSafetensors(weights, { env: "CartPole-v1", model });
  const rows = Float32Array.of(0.1, 0.2, 0.3, 0.4), { actions, state } = policy.computeActions(rows, { deterministic: true });
  const value = (before) => policy.computeActions(rows, { deterministic: true, state, ...before }).vfPreds[0];
  assert.equal(value({ prevAction: actions, prevReward: [0] }), value({}));
  assert.notEqual(value({ prevReward: [1] }), value({}));
  assert.notEqual(value({ prevAction: [1 - actions[0]] }), value({}));
  assert.throws(() => value({ prevAction: [2] }), { kind: "policy", message: /previous actions/ });
  assert.throws(() => value({ prevReward: [1, 2] }), { kind: "policy", message: /previous rewards/ });
});

test("an unsuitable model, space or observation is named", () => {
  const weights = new RolloutWorker(config).weights().default_policy;
  const make = (options) => () => Policy.fromSafetensors(weights, options);
  assert.throws(make({ env: "MountainCar-v0" }), { kind: "policy", message: /tensor/ });
  assert.throws(make({ env: "RockPaperScissors-v0" }), { kind: "config", message: /several agents/ });
  assert.throws(make({ env: "CartPole-v1", model: { fcnet_hidden: [1] } }), { kind: "config", message: /fcnet_hiddens/ });
  const policy = make({ env: "CartPole-v1" })();
  assert.throws(() => policy.computeActions([1, 2, 3]), { kind: "policy", message: /observations: .*whole rows/ });
  assert.throws(() => policy.computeActions([1, 2, 3, "4"]), { kind: "policy", message: /element 3 is string/ });
  for (const [at, number] of [[1, NaN], [2, Infinity], [3, 1e300]]) {
    const rows = new Array(8).fill(0).with(at, number);
    assert.throws(() => policy.computeActions(rows), { kind: "policy", message: new RegExp(`observations: element ${at} is (NaN|Infinity), not a finite`) });
  }
  assert.throws(() => policy.computeActions({}), { kind: "policy", message: /element 0 is object/ });
  assert.throws(() => policy.computeActions(null), { kind: "policy", message: /element 0 is object/ });
  assert.throws(make({ env: "CartPole-v1", seed: -1 }), { kind: "config", field: "seed" });
  const cart = policy.observationSpace;
  const spaced = make({ observationSpace: cart, actionSpace: { type: "discrete", n: 2 } })();
  assert.deepEqual(spaced.computeActions(new Float32Array(4), { deterministic: true }), policy.computeActions(new Float32Array(4), { deterministic: true }));
});

test("a policy of rollmesh train plays as rollmesh evaluate says", (t) => {
  const run = join(folder(t), "run");
  const train = ["train", "--env", "CartPole-v1", "--seed", "1", "--workers", "0", "--max-env-steps", "20000", "--run-dir", run, "--hidden", "16", "--quiet"];
  execFileSync(process.env.ROLLMESH_BIN, train.filter((word) => word !== "--quiet"), { stdio: "pipe" });
  const read = (name) => readFileSync(join(run, name));
  const policy = Policy.fromCheckpoint(read("policy.json").toString(), read("weights.safetensors"));
  assert.deepEqual(Buffer.from(policy.weights), read("weights.safetensors"));
  const env = new VectorEnv("CartPole-v1", { numEnvs: 4, seed: 9 });
  let observations = env.reset(), steps = 0, ended = 0;
  while (steps < 500) {
    const step = env.step(policy.computeActions(observations, { deterministic: true }).actions);
    ended += step.terminateds.reduce((sum, flag) => sum + flag, 0);
    observations = step.observations;
    steps++;
  }
  // Untrained, some fifty episodes of each environment end within 500 steps.
  assert.ok(ended < 60, `${ended} episodes`);
  assert.throws(() => Policy.fromCheckpoint("{}", read("weights.safetensors")), { kind: "policy", message: /policies/ });
  assert.throws(() => Policy.fromCheckpoint(read("policy.json").toString(), Uint8Array.of(0)), { kind: "policy", message: /safetensors/ });
});

test("a policy travels in bytes to another worker, where it may be a new one", () => {
  const here = new RolloutWorker(config), there = new RolloutWorker({ ...config, seed: 4 });
  const weights = (worker, id) => Buffer.from(worker.policy(id).weights).toString("hex");
  assert.notEqual(weights(here), weights(there));
  const state = here.exportPolicy();
  there.importPolicy(state);
  there.importPolicy(state, "guest");
  assert.deepEqual(there.policies.keys(), ["default_policy", "guest"]);
  assert.equal(weights(there), weights(here));
  assert.equal(weights(there, "guest"), weights(here));
  state[9] ^= 1;
  assert.throws(() => there.importPolicy(state));
  assert.throws(() => here.exportPolicy("absent"), /absent/);
});
