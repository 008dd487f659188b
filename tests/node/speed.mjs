// Compares the speed of the wasm module in Node with that of the command line's portable kernels, in turns. Exits with 1 if the
// median ratio is below the goal. It measures wall-clock time, so it needs an idle machine.
//
// ROLLMESH_WASM names the folder of the modules made by `wasm-bindgen --target nodejs`, ROLLMESH_BIN the binary `rollmesh`.
import { execFileSync } from "node:child_process";
import { createRequire } from "node:module";

const GOAL = 0.8, TURNS = 7, SAMPLES = 80;
const { WorkerHandle } = createRequire(import.meta.url)(`${process.env.ROLLMESH_WASM}/rollmesh_wasm.js`);
const worker = new WorkerHandle(JSON.stringify({ env: "CartPole-v1", num_envs: 64, rollout_fragment_length: 200, seed: 1 }));
const steps = SAMPLES * worker.stepsPerSample;
const command = `sample --env CartPole-v1 --num-envs 64 --env-steps ${steps} --seed 1 --kernels portable --no-hash --json`;
const native = () => JSON.parse(execFileSync(process.env.ROLLMESH_BIN, command.split(" "), { encoding: "utf8" })).steps_per_s;

function inNode() {
  const start = performance.now();
  for (let sample = 0; sample < SAMPLES; sample++) worker.sample().free();
  return (1_000 * steps) / (performance.now() - start);
}

// V8 optimises the module while it runs.
inNode();
const turns = Array.from({ length: TURNS }, () => ({ node: inNode(), native: native() }));
const ratios = turns.map(({ node, native }) => node / native).sort((a, b) => a - b);
const [least, median, most] = [0, TURNS >> 1, TURNS - 1].map((place) => ratios[place].toFixed(2));
const best = (of) => Math.round(Math.max(...turns.map((turn) => turn[of])) / 1_000);
console.log(`CartPole-v1, 64 environments, thousands of env steps per second: Node ${best("node")}, portable kernels ${best("native")}`);
console.log(`ratio ${median} (${least} to ${most}), wanted: ${GOAL}`);
process.exitCode = ratios[TURNS >> 1] < GOAL ? 1 : 0;
