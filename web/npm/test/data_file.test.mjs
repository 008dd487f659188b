// Tests that reports of files of logged experience equal those of the program.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { DataFile, init } from "rollmesh";

import { rollmesh } from "./support.mjs";

await init();

const golden = (name) => join(process.env.ROLLMESH_ROOT, "tests/golden/conformance/data", name);

async function* pieces(bytes, size) {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

for (const name of ["single_lz4_all.json", "multi_plain.json"]) {
  test(`${name} is read as the program reads it`, async () => {
    const file = await DataFile.open(), batches = [];
    for await (const batch of file.batches(pieces(readFileSync(golden(name)), 1000))) batches.push(batch);
    const { gave_up, problems, ...found } = file.report();
    const { files, bytes, left_out, ...wanted } = rollmesh("data", "inspect", golden(name), "--json");
    assert.deepEqual(found, wanted);
    assert.equal(batches.reduce((sum, batch) => sum + batch.envSteps, 0), found.env_steps);
    file.free();
    assert.throws(() => file.report(), { kind: "freed" });
  });
}

test("another format is named with what to do", async () => {
  const bytes = readFileSync(golden("pendulum_small_contiguous.hdf5"));
  const file = await DataFile.open();
  assert.throws(() => file.push(bytes), { kind: "data", message: /this is an HDF5 file.*rollmesh data convert/ });
  assert.throws(() => file.push("a text"), { name: "RollmeshError", kind: "data", message: /the text 'a text'; it is a Uint8Array/ });
  for (const longestLine of [0, -1, NaN]) await assert.rejects(DataFile.open({ longestLine }), { kind: "config", field: "longestLine" });
});
