// Tests environments in JavaScript: they are sampled like any other, and errors name their mistakes.
import assert from "node:assert/strict";
import { test } from "node:test";

import { RollmeshError, RolloutWorker, VectorEnv, batchHash, envInfo, envs, init, registerEnv, registerMultiAgentEnv } from "rollmesh";

import { corridor } from "./support.mjs";

await init();

const worker = (env, changes = {}) =>
  new RolloutWorker({ env, num_envs: 3, rollout_fragment_length: 40, seed: 5, model_config: { fcnet_hiddens: [8] }, ...changes });

test("an environment in JavaScript is sampled bit-identically each time", () => {
  registerEnv("Corridor-v0", () => corridor(), { maxEpisodeSteps: 30 });
  const [one, other] = [worker("Corridor-v0"), worker("Corridor-v0")];
  const batch = one.sample(), rows = batch.single();
  assert.equal(rows.length, 120);
  assert.equal(batchHash([batch, one.sample()]), batchHash([other.sample(), other.sample()]));
  assert.notEqual(batchHash([worker("Corridor-v0", { seed: 6 }).sample()]), batchHash([batch]));
  assert.ok(one.metrics().episodes.every(({ length }) => length <= 30));
  for (const { rewards, terminateds } of rows.rows()) assert.equal(rewards, terminateds);
  assert.deepEqual(envInfo("Corridor-v0").spaces.action, { type: "discrete", n: 2 });
  assert.ok(envs().some(({ name, maxEpisodeSteps }) => name === "Corridor-v0" && maxEpisodeSteps === 30));
});

test("samples in slices and after a restore are the same", () => {
  registerEnv("Corridor-v1", () => corridor(), { maxEpisodeSteps: 30 });
  const whole = worker("Corridor-v1"), sliced = worker("Corridor-v1"), hash = batchHash([whole.sample()]);
  let batch;
  while (!batch) batch = sliced.sampleWithin(0);
  assert.equal(batchHash([batch]), hash);
  const restored = worker("Corridor-v1");
  restored.restore(whole.save());
  assert.equal(batchHash([restored.sample()]), batchHash([whole.sample()]));
});

test("every kind of space is handed over", () => {
  const seen = [];
  for (const [name, observationSpace, observation, actionSpace, check] of [
    ["Floats-v0", { type: "box", dtype: "float32", shape: [2], low: [-1], high: [1] }, [0.5, -1], { type: "box", dtype: "float32", shape: [2], low: [-2], high: [2] },
      (action) => action instanceof Float32Array && action.length === 2],
    ["Doubles-v0", { type: "box", dtype: "float64", shape: [1], low: [null], high: [null] }, Float64Array.of(1e9), { type: "multi_discrete", nvec: [2, 3] },
      (action) => Array.isArray(action) && action[0] < 2 && action[1] < 3],
    ["Pixels-v0", { type: "box", dtype: "uint8", shape: [2, 2], low: [0], high: [255] }, Uint8Array.of(0, 1, 2, 255), { type: "multi_binary", n: 2 },
      (action) => action.length === 2 && action.every((bit) => bit === 0 || bit === 1)],
    ["Bits-v0", { type: "multi_binary", n: 2 }, [true, false], { type: "discrete", n: 3 }, (action) => [0, 1, 2].includes(action)],
    ["Choices-v0", { type: "multi_discrete", nvec: [4, 2] }, [3, 1], { type: "discrete", n: 2 }, (action) => action === 0 || action === 1],
  ]) {
    const step = (action) => (seen.push(check(action)), { observation, reward: 0.5 });
    registerEnv(name, () => ({ observationSpace, actionSpace, reset: () => observation, step }), { maxEpisodeSteps: 10 });
    const rows = worker(name, { preprocessor_pref: "none" }).sample().single();
    const first = Array.from(rows.get("obs").data.slice(0, observation.length), Number);
    assert.deepEqual(first, Array.from(observation, Number), name);
  }
  assert.ok(seen.length > 100 && seen.every(Boolean));
});

test("a game with a coloured screen is seen as DeepMind's agents see it", () => {
  const [screen, step] = [new Uint8Array(64 * 64 * 3).fill(200), () => ({ observation: screen, reward: 0.3 })];
  const space = { type: "box", dtype: "uint8", shape: [64, 64, 3], low: [0], high: [255] };
  registerEnv("Screen-v0", () => ({ observationSpace: space, actionSpace: { type: "discrete", n: 2 }, reset: () => screen, step }), { maxEpisodeSteps: 10 });
  const columns = (changes) => {
    const rows = worker("Screen-v0", { model_config: { fcnet_hiddens: [4], dim: 10, framestack: 2 }, ...changes }).sample().single();
    return [rows.get("obs").shape, rows.get("rewards").data[0]];
  };
  assert.deepEqual(columns({ preprocessor_pref: "deepmind" }), [[10, 10, 2], 1]);
  assert.deepEqual(columns({})[0], [64, 64, 3]);
});

const fields = [
  ["an exception", { step() { throw new TypeError("no such door"); } }, undefined, /step threw TypeError: no such door/],
  ["NaN", { step: () => ({ observation: NaN, reward: 0 }) }, "observation", /observation whose element 0 is NaN/],
  ["a wrong length", { step: () => ({ observation: [1, 2], reward: 0 }) }, "observation", /observation with 2 elements, the discrete space has 1/],
  ["a wrong type", { step: () => ({ observation: "door", reward: 0 }) }, "observation", /the text 'door', not a number/],
  ["a number outside", { step: () => ({ observation: 8, reward: 0 }) }, "observation", /8, not a whole number from 0 to 7/],
  ["no reward", { step: () => ({ observation: 0 }) }, "reward", /reward is undefined, not a finite number/],
  ["an infinite reward", { step: () => ({ observation: 0, reward: Infinity }) }, "reward", /reward is Infinity/],
  ["a flag that is none", { step: () => ({ observation: 0, reward: 0, terminated: 1 }) }, "terminated", /terminated is 1, not true or false/],
  ["nothing", { step() {} }, undefined, /step returned undefined, not an object/],
  ["a promise", { step: async () => ({ observation: 0, reward: 0 }) }, undefined, /a Promise: environments answer synchronously/],
];

for (const [name, { step }, field, message] of fields) {
  test(`${name}: the error names environment, step and field, and the worker is usable afterwards`, () => {
    let broken = true, calls = 0;
    registerEnv("Broken-v0", ({ index }) => corridor({
      step: (action) => (broken && index === 1 && ++calls === 6 ? step(action) : { observation: 0, reward: 0, terminated: false }),
    }));
    for (const sampler of [() => worker("Broken-v0"), () => worker("Broken-v0", { batch_mode: "complete_episodes", horizon: 9 })]) {
      broken = true;
      calls = 0;
      const sampling = sampler();
      assert.throws(() => sampling.sample(), (error) => {
        assert.ok(error instanceof RollmeshError, error);
        assert.deepEqual([error.kind, error.environment, error.step, error.field], ["environment", 1, 5, field], error.message);
        assert.match(error.message, message);
        assert.match(error.message, /environment 1, episode 0, step 5: .*'Broken-v0'/);
        if (name === "an exception") assert.ok(error.cause instanceof TypeError);
        return true;
      });
      broken = false;
      assert.ok(sampling.sample().envSteps >= 120);
      assert.ok(sampling.metrics().discardedEnvSteps > 0);
    }
  });
}

test("a reset that fails is named, and an environment that cannot be made", () => {
  registerEnv("Broken-v1", ({ index }) => corridor({ reset: () => { if (index === 2) throw new Error("no floor"); return 0; } }));
  assert.throws(() => worker("Broken-v1").sample(), { kind: "environment", message: /reset threw Error: no floor/ });
  registerEnv("Broken-v2", () => { throw new Error("no room"); });
  assert.throws(() => worker("Broken-v2"), { kind: "environment", environment: 0, message: /no room/ });
});

test("spaces that are not supported are refused by name", () => {
  const make = (changes) => () => {
    registerEnv("Odd-v0", () => corridor(changes));
    return worker("Odd-v0");
  };
  assert.throws(make({ observationSpace: { type: "dict", spaces: {} } }), { kind: "environment", field: "observationSpace", message: /of type 'dict'.*box, discrete/ });
  assert.throws(make({ actionSpace: { type: "tuple", spaces: [] } }), { field: "actionSpace", message: /'tuple'/ });
  assert.throws(make({ actionSpace: { type: "box", dtype: "float64", shape: [1], low: [0], high: [1] } }), { field: "actionSpace", message: /box of float64.*float32/ });
  assert.throws(make({ observationSpace: undefined }), { field: "observationSpace", message: /undefined, not a space/ });
  assert.throws(make({ observationSpace: { type: "discrete", n: 0 } }), { kind: "environment", message: /space that makes no sense/ });
});

test("a registration that makes no sense is refused", () => {
  assert.throws(() => registerEnv(5, () => corridor()), { kind: "config", field: "name", message: /name is 5; it is a text/ });
  assert.throws(() => envInfo(5), { kind: "config", field: "name" });
  for (const maxEpisodeSteps of [0, -1, 1.5, NaN, 2 ** 32 + 5]) {
    assert.throws(() => registerEnv("Odd-v2", () => corridor(), { maxEpisodeSteps }), { kind: "config", field: "maxEpisodeSteps" });
  }
  assert.throws(() => envInfo("Odd-v2"), { kind: "config" });
});

test("built-in names are taken", () => {
  for (const name of ["CartPole-v1", "RockPaperScissors-v0"]) {
    assert.throws(() => registerEnv(name, () => corridor()), { kind: "config", message: new RegExp(`'${name}' is a built-in environment`) });
  }
});

test("a failed environment is restarted where the settings say so", () => {
  let made = 0;
  registerEnv("Fragile-v0", () => {
    let steps = 0;
    made++;
    return corridor({ step: () => { if (++steps === 25) throw new Error("worn out"); return { observation: 0, reward: 1, truncated: steps % 10 === 0 }; } });
  });
  const sampling = worker("Fragile-v0", { restart_failed_sub_environments: true });
  assert.equal(sampling.sample().envSteps, 120);
  assert.ok(made > 3);
  assert.equal(sampling.envs[0].picture(), undefined);
  assert.ok(sampling.metrics().episodes.some(({ faulty }) => /worn out/.test(faulty ?? "")));
});

test("an environment cannot use the worker that steps it", () => {
  let sampling;
  registerEnv("Selfish-v0", () => corridor({ step: () => { sampling?.metrics(); return { observation: 0, reward: 0 }; } }));
  sampling = worker("Selfish-v0");
  assert.throws(() => sampling.sample(), (error) => error.kind === "environment" && error.cause.kind === "busy");
});

test("an environment cannot free what steps it, which is freed afterwards", () => {
  let open = 0, used, caught;
  const step = () => {
    try {
      used.free();
    } catch (error) {
      caught = error;
    }
    return { observation: 0, reward: 0 };
  };
  registerEnv("Selfish-v1", () => (open++, corridor({ step, close: () => open-- })));
  for (const [make, use] of [
    [() => worker("Selfish-v1", { num_envs: 1, rollout_fragment_length: 1 }), () => used.sample()],
    [() => new VectorEnv("Selfish-v1"), () => used.step([0])],
  ]) {
    caught = undefined;
    used = make();
    if (used instanceof VectorEnv) used.reset();
    assert.ok(use());
    assert.deepEqual([caught?.name, caught?.kind, open], ["RollmeshError", "busy", 0]);
    assert.throws(use, { kind: "freed" });
  }
});

test("an environment may use another worker, and random numbers stay its own", () => {
  registerEnv("Inner-v0", () => corridor());
  registerEnv("Outer-v0", () => {
    const inner = worker("Inner-v0", { num_envs: 1, rollout_fragment_length: 1 });
    return corridor({ step: (_, random) => { inner.sample(); return { observation: Math.floor(8 * random()), reward: 0 }; } });
  });
  registerEnv("Alone-v0", () => corridor({ step: (_, random) => ({ observation: Math.floor(8 * random()), reward: 0 }) }));
  assert.equal(batchHash([worker("Outer-v0").sample()]), batchHash([worker("Alone-v0").sample()]));
});

test("environments are closed with their worker", () => {
  let open = 0;
  registerEnv("Door-v0", () => (open++, corridor({ close: () => open-- })));
  const sampling = worker("Door-v0");
  assert.ok(open >= 3);
  sampling.free();
  assert.equal(open, 0);
});

/** A game in which two agents count alternately; the one that reaches twenty wins. */
const twenty = () => {
  let count = 0, player = 0;
  return {
    agents: ["left", "right"],
    observationSpaces: { left: { type: "discrete", n: 21 }, right: { type: "discrete", n: 21 } },
    actionSpaces: { left: { type: "discrete", n: 2 }, right: { type: "discrete", n: 2 } },
    reset() {
      [count, player] = [0, 0];
      return { left: 0 };
    },
    step(actions) {
      const name = this.agents[player];
      count = Math.min(20, count + 1 + actions[name]);
      player = 1 - player;
      const over = count === 20;
      return { observations: { [this.agents[player]]: count }, rewards: over ? { [name]: 1 } : {}, terminateds: { __all__: over } };
    },
  };
};

test("agents in JavaScript act sequentially under policies of their own", () => {
  registerMultiAgentEnv("Twenty-v0", twenty);
  const settings = { policy_mapping_fn: "agent_id", policies: { left: {}, right: { policy: "random" } } };
  const [one, other] = [worker("Twenty-v0", settings), worker("Twenty-v0", settings)];
  const batch = one.sample();
  assert.deepEqual([batch.envSteps, batch.policyIds], [120, ["left", "right"]]);
  const won = batch.policyIds.map((id) => batch.get(id).get("rewards", "float32").data.reduce((sum, reward) => sum + reward, 0));
  assert.equal(won[0] + won[1], one.metrics().episodes.length);
  assert.equal(batchHash([batch]), batchHash([other.sample()]));
  assert.deepEqual(Object.keys(envInfo("Twenty-v0").agents), ["left", "right"]);
});

test("mistakes of agents are named", () => {
  let answer;
  registerMultiAgentEnv("Odd-v1", () => ({ ...twenty(), step: () => answer }));
  const fails = (given, expected) => {
    answer = given;
    assert.throws(() => worker("Odd-v1", { num_envs: 1 }).sample(), { kind: "environment", environment: 0, step: 0, ...expected });
  };
  fails({ observations: { right: 21 }, rewards: {} }, { field: "observation", message: /agent 'right'.*21, not a whole number/ });
  fails({ observations: { middle: 1 }, rewards: {} }, { field: "observations", message: /'middle', which is not among agents/ });
  fails({ observations: { right: 1 }, rewards: { left: NaN } }, { field: "reward", message: /reward of agent 'left' is NaN/ });
  fails({ observations: { right: 1 }, rewards: {}, terminateds: { __all__: "yes" } }, { field: "terminateds" });
});

test("vectors of environments in JavaScript are stepped", () => {
  registerEnv("Corridor-v2", () => corridor({ render: () => ({ width: 2, height: 1, data: Uint8ClampedArray.of(1, 2, 3, 255, 4, 5, 6, 255) }) }));
  const env = new VectorEnv("Corridor-v2", { numEnvs: 2, seed: 5 });
  const first = env.reset();
  const { observations, rewards } = env.step([1, 0]);
  assert.deepEqual([observations[0], observations[1], rewards.length], [first[0] + 1, Math.max(0, first[1] - 1), 2]);
  assert.deepEqual(Array.from(env.picture(1).data), [1, 2, 3, 255, 4, 5, 6, 255]);
  registerEnv("Corridor-v3", () => corridor({ render: () => { throw new Error("no paint"); } }));
  const dark = new VectorEnv("Corridor-v3");
  assert.throws(() => dark.picture(), { kind: "environment", message: /render threw Error: no paint/ });
});
