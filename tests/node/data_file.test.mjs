// Tests that reports of files of logged experience, read in chunks, equal those of the binary.
//
// ROLLMESH_WASM names the folder of the modules made by `wasm-bindgen --target nodejs`, ROLLMESH_BIN the binary.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { openAsBlob, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import { test } from "node:test";

const modules = (name) => createRequire(import.meta.url)(`${process.env.ROLLMESH_WASM}/${name}.js`);
const { BatchHandle } = modules("rollmesh_wasm"), { DataHandle } = modules("rollmesh_reader");

const golden = (name) => fileURLToPath(new URL(`../golden/conformance/data/${name}`, import.meta.url));

/** Reads everything in a file that arrives in chunks of `size` bytes. */
function read(bytes, size = bytes.length, longestLine) {
  const data = new DataHandle(10, longestLine);
  const batches = [];
  const take = () => {
    for (let bytes; (bytes = data.next()); ) batches.push(BatchHandle.decode(bytes).toObject());
  };
  for (let at = 0; at < bytes.length; at += size) {
    data.push(bytes.subarray(at, at + size));
    take();
  }
  data.finish();
  take();
  return { batches, report: JSON.parse(data.report()) };
}

/** Returns the report of `rollmesh data` about a file; problems also give an exit code. */
function rollmesh(command, path) {
  try {
    return JSON.parse(execFileSync(process.env.ROLLMESH_BIN, ["data", command, path, "--json"], { stdio: "pipe" }));
  } catch (error) {
    return JSON.parse(error.stdout);
  }
}

for (const name of ["single_plain", "single_lz4_all", "multi_compressed", "multi_plain", "sampler_out", "legacy_dones", "mal_bad_base64"]) {
  test(`${name}: as the binary reads it, however it is cut`, () => {
    const path = golden(`${name}.json`);
    const bytes = readFileSync(path);
    const { batches, report } = read(bytes);
    const { problems, gave_up, ...found } = report;
    assert.equal(gave_up, null);
    const { files, bytes: size, left_out, ...wanted } = rollmesh("inspect", path);
    assert.deepEqual(found, wanted);
    const places = Object.entries(rollmesh("validate", path).problems).map(([what, { count, places }]) => [
      what,
      { count, places: places.map((place) => place.replace(`${path}, `, "").replace(`${path}: `, "")) },
    ]);
    assert.deepEqual(problems, Object.fromEntries(places));
    assert.equal(batches.length, found.batches);
    assert.equal(batches.reduce((sum, batch) => sum + batch.envSteps, 0), found.env_steps);
    for (const size of [997, 100_003]) {
      assert.deepEqual(read(bytes, size), { batches, report });
    }
  });
}

test("columns are typed arrays", async () => {
  const data = new DataHandle(10);
  const file = await openAsBlob(golden("single_lz4_all.json"));
  for await (const piece of file.stream()) data.push(piece);
  data.finish();
  const { rows, columns } = BatchHandle.decode(data.next()).toObject().policies.default_policy;
  assert.equal(columns.obs.data.length, rows * columns.obs.shape.reduce((a, b) => a * b, 1));
  assert.equal(columns.obs.data.constructor.name, "Float32Array");
});

test("another format is named with what to do", () => {
  const bytes = readFileSync(golden("pendulum_small_contiguous.hdf5"));
  assert.throws(() => new DataHandle(10).push(bytes), /this is an HDF5 file.*rollmesh data convert/);
});

test("lines without end are passed over and not held", () => {
  const line = '{"type": "SampleBatch", "rewards": [1, 2]}\n';
  // The rest of the long line in its last chunk may itself be too long or not.
  for (const rest of [100_000, 101_000]) {
    const bytes = new TextEncoder().encode(line + "x".repeat(rest) + "\n" + line);
    const { batches, report } = read(bytes, 1000, 2000);
    assert.deepEqual([batches.length, report.corrupt_lines, report.gave_up], [2, 1, null]);
    assert.match(report.problems["lines that are no batches"].places[0], /^line 2 has 2000 bytes or more/);
  }
});

test("a file without batches is given up and not held", () => {
  const line = '{"type": "SampleBatch", "rewards": [1, 2]}\n';
  const bytes = new TextEncoder().encode(line + "a,b,c\n".repeat(200) + line);
  const { batches, report } = read(bytes, 100);
  assert.deepEqual([batches.length, report.corrupt_lines], [1, 101]);
  assert.match(report.gave_up, /^101 lines in a row are no batches/);
});
