// Tests that bundlers find the wasm module and the Web Worker, and that their bundles run. Node runs them with a `fetch` that reads files.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { test } from "node:test";

const project = join(dirname(fileURLToPath(import.meta.url)), "..");
const source = join(project, "source");
mkdirSync(source, { recursive: true });
writeFileSync(join(source, "main.js"), `import { Algorithm, Policy, RolloutWorker, VectorEnv, Worker, init, registerEnv, rolloutHash } from "rollmesh";
await init();
const batch = new RolloutWorker({ env: "CartPole-v1", rollout_fragment_length: 20 }).sample();
globalThis.join = (url, token) => new Worker({ url, token });
const algorithm = await Algorithm.create({ env: "CartPole-v1", num_slots: 2, rollout_fragment_length: 16, stop: { env_steps: 32 } });
const { iteration } = await algorithm.train();
const policy = Policy.fromCheckpoint(algorithm.policyJson, algorithm.weights), env = new VectorEnv("CartPole-v1");
const { actions } = policy.computeActions(env.reset());
let place = 0;
registerEnv("Corridor-v0", () => ({
  observationSpace: { type: "discrete", n: 8 },
  actionSpace: { type: "discrete", n: 2 },
  reset: () => (place = 0),
  step: (action) => ({ observation: (place = Math.max(0, place + (action === 1 ? 1 : -1))), reward: 0, terminated: place === 7 }),
}), { maxEpisodeSteps: 20 });
const mine = new RolloutWorker({ env: "Corridor-v0", rollout_fragment_length: 10 }).sample();
console.log(batch.envSteps, batch.single().columns.includes("obs"), iteration, actions.length, mine.envSteps);
console.log(rolloutHash({ env: "CartPole-v1", num_envs: 64, seed: 1 }, 10_000));
`);
writeFileSync(join(source, "index.html"), '<!doctype html><script type="module" src="main.js"></script>');
writeFileSync(join(source, "fetch.mjs"), `import { readFile } from "node:fs/promises";
globalThis.fetch = async (url) => new Response(await readFile(new URL(url)), { headers: { "content-type": "application/wasm" } });
`);

/** Asserts that the hash is the one that `rollmesh sample` prints natively. */
const PRINTED = "20 true 1 1 10\n10d1fec351b6ad99d6718deb7290f82f\n";

for (const [runtime, args] of [["node", []], ["deno", ["run", "--allow-read", "--allow-env"]], ["bun", ["run"]]]) {
  test(`without a bundler in ${runtime}`, () => {
    const program = runtime === "node" ? process.execPath : join(project, "node_modules/.bin", runtime);
    assert.equal(execFileSync(program, [...args, join(source, "main.js")], { encoding: "utf8" }), PRINTED);
  });
}

/** Runs the bundle in a folder, and checks the number of its files. */
function check(folder, entry) {
  const all = readdirSync(folder, { recursive: true });
  const count = (extension) => all.filter((name) => name.endsWith(extension)).length;
  assert.equal(count(".wasm"), 3, all.join());
  assert.ok(count(".js") + count(".mjs") >= 2, all.join());
  const preload = ["--import", join(source, "fetch.mjs")];
  assert.equal(execFileSync(process.execPath, [...preload, join(folder, entry(all))], { encoding: "utf8" }), PRINTED);
}

test("vite", async () => {
  const { build } = await import("vite");
  const outDir = join(project, "vite");
  const modulePreload = { polyfill: false };
  await build({ root: source, base: "./", logLevel: "warn", build: { outDir, emptyOutDir: true, modulePreload, target: "esnext" }, worker: { format: "es" } });
  check(outDir, (all) => all.find((name) => /index-.*\.js$/.test(name)));
});

test("webpack", async () => {
  const { default: webpack } = await import("webpack");
  const path = join(project, "webpack");
  const stats = await new Promise((resolve, reject) => webpack({
    context: source, entry: "./main.js", mode: "production", target: ["web", "es2022"],
    experiments: { outputModule: true }, output: { path, filename: "main.mjs", module: true, publicPath: "auto", clean: true },
  }, (error, stats) => (error ? reject(error) : resolve(stats))));
  assert.ok(!stats.hasErrors(), stats.toString());
  check(path, () => "main.mjs");
});
