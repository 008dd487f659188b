// Tests the content of the package, and its loading.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { gzipSync } from "node:zlib";

import * as rollmesh from "rollmesh";

const home = dirname(createRequire(import.meta.url).resolve("rollmesh/package.json"));
const manifest = JSON.parse(readFileSync(join(home, "package.json"), "utf8"));

test("before it is loaded everything says what to do", () => {
  assert.throws(() => new rollmesh.RolloutWorker({ env: "CartPole-v1" }), { name: "RollmeshError", kind: "not_loaded", message: /await init\(\)/ });
});

test("where there is no SIMD loading says so, and succeeds later where there is", async (t) => {
  const validate = t.mock.method(WebAssembly, "validate", () => false);
  await assert.rejects(rollmesh.init(), { kind: "unsupported", message: /SIMD/ });
  validate.mock.restore();
  await rollmesh.init();
  assert.match(rollmesh.coreFingerprint(), /^[0-9a-f]{32}$/);
});

test("the inlined build shares the module that is loaded", async () => {
  const inline = await import("rollmesh/inline");
  await inline.init();
  assert.equal(inline.RolloutWorker, rollmesh.RolloutWorker);
});

test("the inlined build loads by itself", () => {
  const code = 'import { coreFingerprint, init } from "rollmesh/inline"; await init(); console.log(coreFingerprint());';
  const printed = execFileSync(process.execPath, ["--input-type=module", "-e", code], { encoding: "utf8" });
  assert.equal(printed.trim(), rollmesh.coreFingerprint());
});

for (const module of ["rollmesh_wasm", "rollmesh_trainer"]) {
  test(`${module} reports the message of a panic`, () => {
    // The class of errors cannot be replaced while it constructs an error.
    const code = `
      import { readFileSync } from "node:fs";
      const wasm = await import("${join(home, "dist/wasm", module)}.js");
      await wasm.default({ module_or_path: readFileSync("${join(home, "dist/wasm", module)}_bg.wasm") });
      console.error = (text) => console.log(text);
      wasm.useErrorClass(class { constructor() { wasm.useErrorClass(Error); } });
      try { wasm.registerEnv("CartPole-v1", () => {}, undefined, false); } catch {}`;
    const printed = execFileSync(process.execPath, ["--input-type=module", "-e", code], { encoding: "utf8" });
    assert.match(printed, /panicked at/);
  });
}

test("the version is the workspace's", () => {
  const workspace = readFileSync(join(process.env.ROLLMESH_ROOT, "Cargo.toml"), "utf8");
  assert.equal(manifest.version, /\[workspace\.package\]\nversion = "(.*)"/.exec(workspace)[1]);
});

test("the package holds what is built, with licences and types, and nothing else", () => {
  const [{ files }] = JSON.parse(execFileSync("npm", ["pack", "--dry-run", "--json"], { cwd: home, encoding: "utf8" }));
  const paths = files.map(({ path }) => path);
  const sources = readdirSync(join(process.env.ROLLMESH_ROOT, "web/npm/src")).map((name) => name.replace(/\.ts$/, ""));
  const modules = [...sources, "rollmesh_client"].flatMap((name) => [`dist/${name}.d.ts`, `dist/${name}.js`]);
  const wasm = ["rollmesh_reader", "rollmesh_trainer", "rollmesh_wasm"].flatMap((name) =>
    [".d.ts", ".js", "_bg.wasm", "_inline.d.ts", "_inline.js"].map((end) => `dist/wasm/${name}${end}`));
  const texts = ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "THIRD_PARTY_NOTICES", "package.json"];
  assert.deepEqual(paths.sort(), [...modules, ...wasm, ...texts].sort());
  for (const entry of Object.values(manifest.exports).flatMap((entry) => typeof entry === "string" ? entry : Object.values(entry))) {
    assert.ok(paths.includes(entry.slice(2)), entry);
  }
  assert.deepEqual(Object.keys(manifest).filter((key) => /dependencies/i.test(key)), []);
});

test("notices name the crates of the modules, none of the workspace's", () => {
  const text = readFileSync(join(home, "THIRD_PARTY_NOTICES"), "utf8");
  for (const crate of ["candle-core", "safetensors", "serde_json", "wasm-bindgen"]) assert.match(text, new RegExp(`^${crate} \\d`, "m"));
  assert.doesNotMatch(text, /^rollmesh/m);
});

// docs/performance.md has the goals, and the reasons why they are missed.
test("modules do not grow", () => {
  for (const [name, most] of [["rollmesh_wasm", 911], ["rollmesh_trainer", 1_402], ["rollmesh_reader", 170]]) {
    const { length } = gzipSync(readFileSync(join(home, `dist/wasm/${name}_bg.wasm`)));
    assert.ok(length <= most * 1_000, `${name} is ${length} bytes compressed, at most ${most} kB`);
  }
});

test("the types have no any", () => {
  const dist = join(home, "dist");
  for (const name of readdirSync(dist).filter((name) => name.endsWith(".d.ts"))) {
    const code = readFileSync(join(dist, name), "utf8").replace(/\/\*[^]*?\*\//g, "");
    assert.doesNotMatch(code, /\bany\b/, name);
  }
});
