// Tests built-in environments that are stepped from JavaScript.
import assert from "node:assert/strict";
import { test } from "node:test";

import { CanvasRenderer, RolloutWorker, VectorEnv, init } from "rollmesh";

await init();

for (const [name, seed] of [["CartPole-v1", 3], ["FrozenLake-v1", 4], ["Pendulum-v1", 5]]) {
  test(`${name}: the actions of a worker lead through its observations`, () => {
    const settings = { env: name, num_envs: 3, rollout_fragment_length: 250, seed, normalize_actions: false, preprocessor_pref: "none" };
    const rows = new RolloutWorker(settings).sample().single();
    const [obs, actions] = [rows.get("obs").data, rows.get("actions").data];
    const [next, terminateds] = [rows.get("new_obs").data, rows.get("terminateds").data];
    const width = obs.length / 750, actionWidth = actions.length / 750;
    const env = new VectorEnv(name, { numEnvs: 3, seed });
    let observations = env.reset();
    for (let step = 0; step < 250; step++) {
      const at = [0, 1, 2].map((lane) => lane * 250 + step);
      const taken = at.flatMap((row) => Array.from(actions.slice(row * actionWidth, (row + 1) * actionWidth)));
      at.forEach((row, lane) => assert.deepEqual(
        Array.from(observations.slice(lane * width, (lane + 1) * width)), Array.from(obs.slice(row * width, (row + 1) * width), Number), `${step}`));
      const steps = env.step(taken);
      at.forEach((row, lane) => {
        assert.deepEqual(Array.from(steps.finalObservations.slice(lane * width, (lane + 1) * width)), Array.from(next.slice(row * width, (row + 1) * width), Number));
        assert.equal(steps.terminateds[lane], terminateds[row]);
      });
      observations = steps.observations;
    }
  });
}

test("spaces are described and a time limit truncates", () => {
  const env = new VectorEnv("MountainCar-v0", { numEnvs: 2 });
  assert.deepEqual(env.actionSpace, { type: "discrete", n: 3 });
  assert.deepEqual([env.observationSpace.type, env.observationSpace.shape], ["box", [2]]);
  env.reset();
  let steps = 0;
  while (env.step([1, 1]).truncateds[0] === 0) steps++;
  assert.equal(steps, 199);
});

test("wrong actions are named and move nothing", () => {
  const env = new VectorEnv("CartPole-v1", { numEnvs: 2, seed: 1 });
  assert.throws(() => env.step([0, 0]), { kind: "environment", message: /call reset first/ });
  env.reset();
  assert.throws(() => env.step([0]), { kind: "environment", field: "action", message: /1 rows, one for each of 2/ });
  assert.throws(() => env.step([0, 2]), { kind: "environment", environment: 1, field: "action" });
  assert.throws(() => env.step([0, "1"]), { kind: "environment", message: /element 1 is string/ });
  assert.throws(() => env.step([0, 0.5]), { kind: "environment", message: /element 1 is 0.5/ });
  const other = new VectorEnv("CartPole-v1", { numEnvs: 2, seed: 1 });
  other.reset();
  assert.deepEqual(env.step([0, 1]), other.step([0, 1]));
});

test("an environment that cannot be made says why", () => {
  assert.throws(() => new VectorEnv("Nowhere-v0"), { kind: "config", message: /'Nowhere-v0'/ });
  assert.throws(() => new VectorEnv("RockPaperScissors-v0"), { kind: "config", message: /several agents.*RolloutWorker/ });
  for (const numEnvs of [0, -1, 1.5, NaN, 2 ** 32 + 2]) {
    assert.throws(() => new VectorEnv("CartPole-v1", { numEnvs }), { kind: "config", message: new RegExp(`numEnvs is ${numEnvs}`) });
  }
  for (const seed of [-1, 1.5, 2 ** 53, -1n, 1n << 64n]) assert.throws(() => new VectorEnv("CartPole-v1", { seed }), { kind: "config", field: "seed" });
  assert.ok(new VectorEnv("CartPole-v1", { seed: (1n << 64n) - 1n }));
  assert.throws(() => new VectorEnv(undefined), { kind: "config", field: "name" });
  assert.throws(() => new VectorEnv("CartPole-v1", { config: null }), { kind: "config", field: "config" });
  assert.throws(() => new VectorEnv("FrozenLake-v1", { config: { slippery: 1 } }), { kind: "environment", message: /slippery/ });
});

test("pictures are drawn to a canvas of their size", (t) => {
  globalThis.ImageData ??= class { constructor(width, height) { Object.assign(this, { width, height, data: new Uint8ClampedArray(4 * width * height) }); } };
  t.after(() => delete globalThis.ImageData);
  const drawn = [], canvas = { width: 1, height: 1, getContext: () => ({ putImageData: (image) => drawn.push(image) }) };
  const env = new VectorEnv("CartPole-v1"), renderer = new CanvasRenderer(canvas);
  env.reset();
  assert.ok(renderer.draw(env.picture()) && !renderer.draw(undefined));
  assert.deepEqual([canvas.width, canvas.height, drawn.length], [300, 200, 1]);
  assert.deepEqual(drawn[0].data, env.picture().data);
  assert.equal(env.picture(7), undefined);
  assert.throws(() => new CanvasRenderer({ getContext: () => null }), { kind: "unsupported" });
});
