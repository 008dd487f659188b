// Bundlers find the wasm module and the Web Worker, and what they make runs. Node runs it with a `fetch` that reads files.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { test } from "node:test";

const project = join(dirname(fileURLToPath(import.meta.url)), "..");
const source = join(project, "source");
mkdirSync(source, { recursive: true });
writeFileSync(join(source, "main.js"), `import { Algorithm, RolloutWorker, Worker, init } from "rollmesh";
await init();
const batch = new RolloutWorker({ env: "CartPole-v1", rollout_fragment_length: 20 }).sample();
globalThis.join = (url, token) => new Worker({ url, token });
const algorithm = await Algorithm.create({ env: "CartPole-v1", num_slots: 2, rollout_fragment_length: 16, stop: { env_steps: 32 } });
const { iteration } = await algorithm.train();
console.log(batch.envSteps, batch.single().columns.includes("obs"), iteration);
`);
writeFileSync(join(source, "index.html"), '<!doctype html><script type="module" src="main.js"></script>');
writeFileSync(join(source, "fetch.mjs"), `import { readFile } from "node:fs/promises";
globalThis.fetch = async (url) => new Response(await readFile(new URL(url)), { headers: { "content-type": "application/wasm" } });
`);

/** Runs the bundle in a folder, whose files are as many as wanted. */
function check(folder, entry) {
  const all = readdirSync(folder, { recursive: true });
  const count = (extension) => all.filter((name) => name.endsWith(extension)).length;
  assert.equal(count(".wasm"), 4, all.join());
  assert.ok(count(".js") + count(".mjs") >= 2, all.join());
  const preload = ["--import", join(source, "fetch.mjs")];
  assert.equal(execFileSync(process.execPath, [...preload, join(folder, entry(all))], { encoding: "utf8" }), "20 true 1\n");
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
    experiments: { outputModule: true }, output: { path, filename: "main.mjs", module: true, publicPath: "", clean: true },
  }, (error, stats) => (error ? reject(error) : resolve(stats))));
  assert.ok(!stats.hasErrors(), stats.toString());
  check(path, () => "main.mjs");
});
