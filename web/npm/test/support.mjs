// Functions that the tests share. ROLLMESH_BIN names the program `rollmesh`, ROLLMESH_ROOT the repository.
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Returns the JSON that the program prints. */
export const rollmesh = (...args) => JSON.parse(execFileSync(process.env.ROLLMESH_BIN, args.map(String), { encoding: "utf8" }));

/** Creates a folder that is removed after the test. */
export function folder(t) {
  const path = mkdtempSync(join(tmpdir(), "rollmesh-"));
  t.after(() => rmSync(path, { recursive: true }));
  return path;
}

/** Writes a file of settings. */
export function settingsFile(t, settings) {
  const path = join(folder(t), "config.json");
  writeFileSync(path, JSON.stringify(settings));
  return path;
}

/** A corridor of eight places: the agent starts at a random one, moves left or right, and gets a reward at the right end. */
export const corridor = (changes = {}) => {
  let place = 0;
  return {
    observationSpace: { type: "discrete", n: 8 },
    actionSpace: { type: "discrete", n: 2 },
    reset(random) {
      place = Math.floor(random() * 4);
      return place;
    },
    step(action) {
      place = Math.max(0, place + (action === 1 ? 1 : -1));
      return { observation: place, reward: place === 7 ? 1 : 0, terminated: place === 7 };
    },
    ...changes,
  };
};
