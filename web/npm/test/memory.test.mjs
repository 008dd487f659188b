// Tests that memory stays flat over as many iterations as a tab performs in an hour when it trains CartPole-v1 with its default settings
// (about eleven per second). Each iteration has few env steps, so that the test takes minutes.
import assert from "node:assert/strict";
import { test } from "node:test";

import { bytes } from "./memories.mjs";
import { Thread } from "./thread.mjs";

import { Algorithm, Hub, init } from "rollmesh";

const ITERATIONS = 40_000;
/** The iterations of a hub, half as many, since its messages pass between threads. */
const OF_HUB = 20_000;
/**
 * The bytes that fragmentation may take after the first iterations: a few per later iteration, whereas a leak would take a row or a
 * message.
 */
const MOST_GROWTH = 100 << 10;

const settings = (iterations) => ({
  env: "CartPole-v1", num_slots: 4, rollout_fragment_length: 16, seed: 1, model_config: { fcnet_hiddens: [8] },
  stop: { env_steps: iterations * 64 },
});

/** Compares the memory of modules after the first iterations and after all. */
async function assertFlat(results, first, iterations, measure) {
  let warm, last = 0;
  for await (const { iteration } of results) {
    last = iteration;
    if (iteration === first) warm = await measure();
  }
  assert.equal(last, iterations);
  const after = await measure();
  assert.equal(after.length, warm.length);
  after.forEach((size, module) => assert.ok(size - warm[module] <= MOST_GROWTH, `${warm} bytes, then ${after}`));
  console.log(`bytes after ${first} and ${iterations} iterations: ${warm}, ${after}`);
  return after;
}

test("wasm memory does not grow while a policy learns", async () => {
  await init();
  const algorithm = await Algorithm.create(settings(ITERATIONS));
  const modules = await assertFlat(algorithm.results(), 2_000, ITERATIONS, bytes);
  assert.equal(modules.length, 2, "the module that samples, and the one that learns");
});

test("wasm memory of a hub and its workers does not grow", async (t) => {
  t.after(() => Thread.terminateAll());
  globalThis.Worker = Thread;
  const channel = new BroadcastChannel("memory");
  t.after(() => channel.close());
  // The hub has loaded both modules, and each worker one.
  const measure = () => new Promise((resolve) => {
    const answers = [];
    channel.onmessage = ({ data }) => answers.push(data) === 3 && resolve(answers.flat().sort((one, other) => one - other));
    channel.postMessage("ask");
  });
  const hub = await Hub.start({ workers: 2, spawn: () => new Thread(new URL("./memory_worker.mjs", import.meta.url)) });
  await hub.train(settings(OF_HUB));
  // A hub stores the points of 4,096 iterations for its pages.
  const modules = await assertFlat(hub.results(), 6_000, OF_HUB, measure);
  assert.equal(modules.length, 4, "those of the hub and of its two workers");
  hub.free();
});
