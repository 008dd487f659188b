// Tests the Web Worker in which a policy plays, with a module that fails when the test requests it.
import assert from "node:assert/strict";
import { cpSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";

const MODULE = `
export default async () => {};
export const describeEnvs = () => JSON.stringify([{ spaces: { action: { type: "discrete", n: 2 } } }]);
export class PolicyHandle {
  act = () => ({ actions: [0] });
  free() {}
}
export class LanesHandle {
  #steps = 0;
  reset() {
    if (this.#steps > 0) throw new Error("no reset");
    return [0];
  }
  step() {
    if (++this.#steps === 3) throw new Error("the motor is stuck");
    return { observations: [0], rewards: [1], ends: [] };
  }
  free() {}
}
`;

test("what has ended the game stays said, until a policy is opened anew", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "rollmesh-"));
  t.after(() => rmSync(folder, { recursive: true }));
  cpSync(fileURLToPath(new URL("../../web/player.js", import.meta.url)), join(folder, "player.mjs"));
  writeFileSync(join(folder, "rollmesh_wasm.js"), MODULE);
  writeFileSync(join(folder, "package.json"), '{ "type": "module" }');
  const posted = [];
  let heard = () => {};
  Object.assign(globalThis, { onmessage: null, postMessage: (said) => (posted.push(said), heard()) });
  await import(pathToFileURL(join(folder, "player.mjs")));
  const until = async (is) => {
    while (!is()) await new Promise((resolve) => (heard = resolve));
  };
  const open = (name, text) => globalThis.onmessage({ data: { name, bytes: new TextEncoder().encode(text) } });
  const play = () => open("policy.json", '{ "policies": ["default_policy"], "model": {}, "run": { "env": "Toy-v0" } }');
  t.mock.timers.enable({ apis: ["setTimeout"] });
  open("weights.safetensors", "");
  play();
  await until(() => posted.at(-1).steps === 1);
  for (let frame = 0; frame < 10; frame++) t.mock.timers.tick(40);
  assert.deepEqual(posted.map(({ missing, steps, error }) => missing ?? steps ?? error), ["policy.json", 1, 2, "the motor is stuck"]);
  play();
  await until(() => posted.at(-1).steps === 1);
});
