// Tests that the examples of the README compile in strict mode against the package's types, and run; and so the tutorial's program.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { test } from "node:test";

const here = dirname(fileURLToPath(import.meta.url));
const home = dirname(createRequire(import.meta.url).resolve("rollmesh/package.json"));
const examples = [...readFileSync(join(home, "README.md"), "utf8").matchAll(/```ts\n([^]*?)```/g)].map(([, code]) => code);
const folder = join(here, "readme");

test("examples compile in strict mode", () => {
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder);
  examples.forEach((code, at) => writeFileSync(join(folder, `example${at}.ts`), code));
  const tsc = [process.env.ROLLMESH_TSC, "--strict", "--exactOptionalPropertyTypes", "--noUncheckedIndexedAccess", "--target", "ES2022",
    "--module", "NodeNext", "--lib", "ES2022,DOM,DOM.Iterable,DOM.AsyncIterable", "--noEmitOnError"];
  const files = examples.map((_, at) => join(folder, `example${at}.ts`));
  try {
    execFileSync(process.execPath, [...tsc, ...files], { encoding: "utf8" });
  } catch (error) {
    assert.fail(error.stdout);
  }
  assert.ok(examples.length >= 6);
});

test("the types are enough for a project without those of browsers", () => {
  const file = join(here, "plain.ts");
  writeFileSync(file, `import { type Space, VectorEnv, init } from "rollmesh";
await init();
const space: Space = { type: "box", dtype: "float32", shape: [2] };
console.log(space, new VectorEnv("CartPole-v1").reset());
`);
  const tsc = [process.env.ROLLMESH_TSC, "--strict", "--exactOptionalPropertyTypes", "--target", "ES2022", "--module", "NodeNext", "--lib", "ES2022", "--noEmit"];
  try {
    execFileSync(process.execPath, [...tsc, file], { encoding: "utf8" });
  } catch (error) {
    assert.fail(error.stdout);
  }
});

for (const at of examples.keys()) {
  test(`example ${at} runs`, async () => {
    await import(join(folder, `example${at}.js`));
  });
}

test("the tutorial's program runs", async () => {
  const page = readFileSync(join(process.env.ROLLMESH_ROOT, "docs/tutorials/tab.md"), "utf8");
  const blocks = [...page.matchAll(/```js\n([^]*?)```/g)].map(([, code]) => code);
  const programs = blocks.filter((code) => code.includes('from "rollmesh"'));
  assert.equal(programs.length, 1);
  writeFileSync(join(folder, "tutorial.mjs"), programs[0]);
  await import(join(folder, "tutorial.mjs"));
});
