// Memory stays flat over as many iterations as a tab has in an hour of training.
import assert from "node:assert/strict";
import { test } from "node:test";

/** The memories of the package's wasm modules, in the order in which they are loaded; Node has modules of its own. */
const memories = [];
const { instantiate } = WebAssembly;
WebAssembly.instantiate = async (...args) => {
  const made = await instantiate(...args);
  const { exports } = made.instance ?? made;
  if (exports.__wbindgen_start) memories.push(exports.memory);
  return made;
};
const { Algorithm, init } = await import("rollmesh");

const WARM = 2_000, ITERATIONS = 10_000;
/** What fragmentation may take after the first iterations: 13 bytes of each later one, where a leak is of a row or a message. */
const MOST_GROWTH = 100 << 10;

test("wasm memory does not grow while a policy learns", async () => {
  await init();
  const config = { env: "CartPole-v1", num_slots: 4, rollout_fragment_length: 16, seed: 1, model_config: { fcnet_hiddens: [8] } };
  const algorithm = await Algorithm.create({ ...config, stop: { env_steps: ITERATIONS * 64 } });
  const bytes = () => memories.map((memory) => memory.buffer.byteLength);
  let warm, iterations = 0;
  for await (const { iteration } of algorithm.results()) {
    iterations = iteration;
    if (iteration === WARM) warm = bytes();
  }
  assert.equal(iterations, ITERATIONS);
  const after = bytes();
  assert.equal(after.length, 2, "the module that samples, and the one that learns");
  after.forEach((size, module) => assert.ok(size - warm[module] <= MOST_GROWTH, `${warm} bytes, then ${after}`));
  console.log(`bytes after ${WARM} and ${ITERATIONS} iterations: ${warm}, ${after}`);
});
