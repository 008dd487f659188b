// Builds the package: `node build.mjs STAGE`. Reads the output of wasm-bindgen in STAGE/src/wasm and that of `npm install` in
// STAGE/node_modules, and writes the package to STAGE/package.
import { execFileSync } from "node:child_process";
import { copyFileSync, cpSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

import { notices } from "./notices.mjs";

const here = dirname(fileURLToPath(import.meta.url)), root = resolve(here, "../..");
const stage = resolve(process.argv[2]), out = join(stage, "package"), wasm = join(stage, "src/wasm");

// The sources, and the client of external environments, which is a separate example.
for (const name of readdirSync(join(here, "src"))) copyFileSync(join(here, "src", name), join(stage, "src", name));
copyFileSync(join(root, "examples/external/rollmesh_client.js"), join(stage, "src/rollmesh_client.js"));
copyFileSync(join(here, "tsconfig.json"), join(stage, "tsconfig.json"));
for (const module of ["rollmesh_wasm", "rollmesh_reader", "rollmesh_trainer"]) {
  const inlined = readFileSync(join(wasm, `${module}_bg.wasm`)).toString("base64");
  writeFileSync(join(wasm, `${module}_inline.js`), `export const wasm = "${inlined}";\n`);
  writeFileSync(join(wasm, `${module}_inline.d.ts`), "export const wasm: string;\n");
}

rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
execFileSync(process.execPath, [join(stage, "node_modules/typescript/bin/tsc"), "-p", stage], { stdio: "inherit" });
cpSync(wasm, join(out, "dist/wasm"), { recursive: true, filter: (path) => !path.endsWith("_bg.wasm.d.ts") });

const { devDependencies, ...manifest } = JSON.parse(readFileSync(join(here, "package.json"), "utf8"));
writeFileSync(join(out, "package.json"), JSON.stringify(manifest, null, 2) + "\n");
copyFileSync(join(here, "README.md"), join(out, "README.md"));
for (const licence of ["LICENSE-MIT", "LICENSE-APACHE"]) copyFileSync(join(root, licence), join(out, licence));
writeFileSync(join(out, "THIRD_PARTY_NOTICES"), notices(root));
