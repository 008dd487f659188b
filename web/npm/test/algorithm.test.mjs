// Tests that runs learn the same weights as the program, in environments of the core and of JavaScript.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { test } from "node:test";

import { Algorithm, RollmeshError, VectorEnv, init, registerEnv } from "rollmesh";

import { corridor, folder, settingsFile } from "./support.mjs";

await init();

const config = { env: "CartPole-v1", num_slots: 8, seed: 3, rollout_fragment_length: 64, model_config: { fcnet_hiddens: [16] }, stop: { env_steps: 1024 } };

test("a run learns the weights of the program", async (t) => {
  const algorithm = await Algorithm.create(config), results = [];
  for await (const result of algorithm.results()) results.push(result);
  assert.deepEqual(results.map(({ iteration, envSteps }) => [iteration, envSteps]), [[1, 512], [2, 1024]]);
  assert.ok(results.every(({ policyLoss, entropy }) => Number.isFinite(policyLoss) && entropy > 0));
  const run = join(folder(t), "run");
  const sets = ["env=CartPole-v1", "num_slots=8", "seed=3", "rollout_fragment_length=64", "model_config.fcnet_hiddens=[16]", "stop.env_steps=1024"];
  const args = ["train", "--workers", "0", "--run-dir", run, "--json", ...sets.flatMap((set) => ["--set", set])];
  const printed = execFileSync(process.env.ROLLMESH_BIN, args, { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
  assert.equal(algorithm.weightsHash, JSON.parse(printed.trim().split("\n").at(-1)).weights_hash);
  await assert.rejects(algorithm.train(), { kind: "busy", message: /the run is over/ });
});

test("several policies learn, or those that the settings name, the weights of the program", async (t) => {
  const players = { ...config, env: "RockPaperScissors-v0", policy_mapping_fn: "agent_id", policies: { 0: {}, 1: { policy: "a2c" } } };
  const weights = async (changes) => {
    const algorithm = await Algorithm.create({ ...players, ...changes });
    while (!algorithm.isOver) await algorithm.train();
    const file = settingsFile(t, { ...players, ...changes });
    const args = ["train", "--workers", "0", "--config", file, "--run-dir", join(folder(t), "run"), "--json"];
    const printed = execFileSync(process.env.ROLLMESH_BIN, args, { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
    const summary = JSON.parse(printed.trim().split("\n").at(-1));
    assert.equal(algorithm.weightsHash, summary.weights_hash);
    return summary.policies;
  };
  const both = await weights({}), one = await weights({ policies_to_train: ["0"] });
  assert.notEqual(one["1"], both["1"]);
});

test("the policy of a run plays", async () => {
  const algorithm = await Algorithm.create(config);
  await algorithm.train();
  const policy = algorithm.policy(), env = new VectorEnv("CartPole-v1", { numEnvs: 2, seed: 1 });
  const { actions } = policy.computeActions(env.reset(), { deterministic: true });
  assert.equal(actions.length, 2);
  assert.equal(JSON.parse(algorithm.policyJson).weights_hash, algorithm.weightsHash);
  assert.deepEqual(policy.weights, algorithm.weights);
  algorithm.free();
  assert.throws(() => algorithm.weights, { kind: "freed" });
});

test("a run learns in an environment of JavaScript", async () => {
  registerEnv("Corridor-v0", () => corridor(), { maxEpisodeSteps: 50 });
  const algorithm = await Algorithm.create({ ...config, env: "Corridor-v0", stop: { env_steps: 4096 } });
  let last;
  for await (const result of algorithm.results()) last = result;
  assert.equal(last.envSteps, 4096);
  assert.ok(last.episodeReturnMean > 0);
});

test("the event loop is not blocked while a run learns, and only one call trains", async () => {
  // Sampling takes many slices on any machine: 512 steps of 0.2 ms.
  registerEnv("Slow-v0", () => {
    const env = corridor();
    return corridor({
      reset: env.reset,
      step(action) {
        for (const end = performance.now() + 0.2; performance.now() < end;);
        return env.step(action);
      },
    });
  }, { maxEpisodeSteps: 50 });
  const algorithm = await Algorithm.create({ ...config, env: "Slow-v0" });
  let turns = 0;
  const timer = setInterval(() => turns++);
  const training = algorithm.train();
  await assert.rejects(algorithm.train(), { kind: "busy", message: /await/ });
  await training;
  while (turns === 0 && !algorithm.isOver) await algorithm.train();
  clearInterval(timer);
  assert.ok(turns > 0);
});

test("mistakes say what to change", async () => {
  for (const [changes, message] of [
    [{ env: "Nowhere-v0" }, /Nowhere-v0/],
    [{ num_slots: 0 }, /num_slots/],
    [{ algorithm: "bc" }, /logged experience/],
    [{ host: { device: "cuda" } }, /host/],
  ]) {
    await assert.rejects(Algorithm.create({ ...config, ...changes }), { name: "RollmeshError", kind: "config", message });
  }
  await assert.rejects(Algorithm.create(), { kind: "config", field: "config" });
  await assert.rejects(Algorithm.create({ ...config, seed: -1 }), { kind: "config", field: "seed" });
});

test("what of an environment's answer ends the run is named", async () => {
  registerEnv("Broken-v1", () => corridor({ step: () => ({ observation: 0, reward: NaN }) }));
  const algorithm = await Algorithm.create({ ...config, env: "Broken-v1" });
  await assert.rejects(algorithm.train(), { kind: "environment", environment: 0, step: 0, field: "reward" });
});

test("an environment that throws ends the run with what it said", async () => {
  registerEnv("Broken-v0", () => corridor({ step() { throw new Error("the door is shut"); } }));
  const algorithm = await Algorithm.create({ ...config, env: "Broken-v0" });
  await assert.rejects(async () => { for (;;) await algorithm.train(); }, (error) => {
    assert.ok(error instanceof RollmeshError, error);
    assert.deepEqual([error.kind, error.environment, error.episode, error.step], ["environment", 0, 0, 0]);
    assert.match(error.message, /Broken-v0, slot 0.*the door is shut.*restart_failed_sub_environments/);
    assert.equal(error.cause?.message, "the door is shut");
    return true;
  });
  assert.ok(algorithm.isOver);
});
