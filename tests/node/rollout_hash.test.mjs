// Tests that the wasm module in Node computes the same bits as the command line.
//
// ROLLMESH_WASM names the folder of the modules made by `wasm-bindgen --target nodejs`, ROLLMESH_BIN the binary `rollmesh`.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { test } from "node:test";

const wasm = createRequire(import.meta.url)(`${process.env.ROLLMESH_WASM}/rollmesh_wasm.js`);

const rollout = (env, hidden, num_envs, seed, steps) => wasm.rollout_hash(JSON.stringify({
  env, num_envs, seed, ...(hidden ? { model_config: { fcnet_hiddens: hidden } } : { policies: { default_policy: { policy: "random" } } }),
}), steps);

const rollmesh = (...args) => JSON.parse(execFileSync(process.env.ROLLMESH_BIN, args, { encoding: "utf8" }));

function sampled({ env = "CartPole-v1", hidden, envs, seed, steps, fragment, kernels = "auto" }) {
  const options = {
    "--env": env,
    ...(hidden ? { "--policy": "mlp", "--hidden": hidden.join(",") } : { "--policy": "random" }),
    "--num-envs": envs,
    "--rollout-fragment-length": fragment,
    "--env-steps": steps,
    "--seed": seed,
    "--kernels": kernels,
  };
  return rollmesh("sample", ...Object.entries(options).flat().map(String), "--json").rollout_hash;
}

// Numbers of steps that fill all slots equally, and others; fragments that cut episodes, and fragments longer than the rollout.
const rollouts = [
  { hidden: [64, 64], envs: 8, seed: 0, steps: 1_000_000, fragment: 200 },
  { hidden: [64, 64], envs: 1, seed: 1, steps: 20_000, fragment: 7 },
  { hidden: [64, 64], envs: 5, seed: 2, steps: 20_001, fragment: 50_000 },
  { hidden: [16], envs: 64, seed: 2 ** 53 - 1, steps: 20_000, fragment: 32 },
];

for (const settings of rollouts) {
  test(`rollout ${JSON.stringify(settings)}`, () => {
    const { hidden, envs, seed, steps } = settings;
    const hash = rollout("CartPole-v1", hidden, envs, seed, steps);
    for (const kernels of ["portable", "auto"]) {
      assert.equal(sampled({ ...settings, kernels }), hash, `${kernels} kernels`);
    }
  });
}

const envs = rollmesh("envs", "--json");

for (const { name: env } of envs.filter(({ agents }) => !agents)) {
  test(`${env} under random actions`, () => {
    const settings = { env, envs: 4, seed: 5, steps: 20_000, fragment: 64 };
    assert.equal(rollout(env, undefined, 4, 5, 20_000), sampled(settings));
  });
}

// Whole batches of several agents, under one policy for each and under one for all.
for (const { name: env, agents } of envs.filter(({ agents }) => agents)) {
  test(`${env} with ${agents.length} agents`, (t) => {
    const own = agents.length <= 4;
    const ids = own ? agents.map(({ agent }) => agent) : ["car_policy1", "car_policy2", "traffic_light_policy"];
    const config = {
      env,
      num_envs: 3,
      rollout_fragment_length: 50,
      seed: 7,
      policy_mapping_fn: own ? "agent_id" : "traffic",
      policies: Object.fromEntries(ids.map((id) => [id, { policy: "net", config: { model: { fcnet_hiddens: [16] } } }])),
    };
    const file = join(mkdtempSync(join(tmpdir(), "rollmesh-")), "config.json");
    t.after(() => rmSync(dirname(file), { recursive: true }));
    writeFileSync(file, JSON.stringify(config));
    const native = rollmesh("sample", "--config", file, "--env-steps", "300", "--json");
    assert.equal(native.samples, 2);
    assert.equal(wasm.sample_hash(JSON.stringify(config), 2), native.batch_hash);
  });
}

// The hashes of an earlier commit for single agents, which the native suite recomputes, too.
const golden = (name) => JSON.parse(readFileSync(new URL(`../golden/${name}`, import.meta.url), "utf8"));
const frozen = golden("frozen.json");

for (const { env, policy, seed, rollout_hash } of frozen.hashes.filter((entry) => entry.rollout_hash)) {
  test(`${env} under ${policy} with seed ${seed} keeps its frozen rollout`, () => {
    const hidden = policy === "net" ? frozen.hidden : undefined;
    assert.equal(rollout(env, hidden, frozen.num_envs, seed, frozen.env_steps), rollout_hash);
  });
}

// Batches of every kind of environment and policy, including filters and recurrent policies.
for (const { config, samples, batch_hash } of golden("kinds.json").samples) {
  test(`${config.env} under ${Object.keys(config.policies ?? { default_policy: {} })} has the golden batches`, () => {
    assert.equal(wasm.sample_hash(JSON.stringify(config), samples), batch_hash);
  });
}

test("wrong settings are an error that says what there is", () => {
  assert.throws(() => wasm.sample_hash('{"num_env": 1}', 1), /num_envs/);
});

test("another seed makes other bits", () => {
  const hash = (seed) => rollout("CartPole-v1", [64, 64], 2, seed, 1_000);
  assert.notEqual(hash(1), hash(2));
});

test("an unknown environment is an error that names it", () => {
  assert.throws(() => rollout("CartPole-v9", [64, 64], 1, 0, 10), /CartPole-v9/);
});
