// Notices of the crates whose code is in the wasm modules, with their licences: `notices(root)` returns the text.
import { execFileSync } from "node:child_process";
import { readFileSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";

const TARGET = "wasm32-unknown-unknown";
/** Licences under which a crate may be in the package, alone or as a choice. */
const ALLOWED = ["MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "0BSD", "BSL-1.0", "ISC", "Zlib", "Unicode-3.0", "CC0-1.0", "Unlicense"];

export function notices(root) {
  const cargo = (args) => execFileSync("cargo", [...args, "--locked"], { cwd: root, encoding: "utf8", maxBuffer: 1 << 28 });
  const tree = cargo(["tree", "--package", "rollmesh-modules", "--target", TARGET, "--edges", "normal", "--prefix", "none", "--format", "{p}"]);
  const used = new Set(tree.split("\n").map((line) => line.split(" ").slice(0, 2).join(" ")));
  const { packages } = JSON.parse(cargo(["metadata", "--format-version", "1", "--filter-platform", TARGET]));
  const others = packages.filter(({ name, version, source }) => source && used.has(`${name} v${version}`));
  const texts = new Map();
  for (const { name, version, license, repository, manifest_path } of others) {
    const choices = license?.split(/ OR |\//) ?? [];
    if (!choices.some((choice) => choice.replace(/[()]/g, "").split(" AND ").every((one) => ALLOWED.includes(one.trim())))) {
      throw new Error(`${name} ${version} is under ${license}, which is not among ${ALLOWED.join(", ")}`);
    }
    const folder = dirname(manifest_path);
    const files = readdirSync(folder).filter((file) => /^(licen[cs]e|copying|notice)/i.test(file) && !/apache/i.test(file));
    const text = files.map((file) => readFileSync(join(folder, file), "utf8").trim()).join("\n\n");
    const title = `${name} ${version}, ${license}${repository ? `, ${repository}` : ""}`;
    texts.set(text, [...(texts.get(text) ?? []), title]);
  }
  const parts = [...texts].map(([text, titles]) => `${titles.join("\n")}\n\n${text || "The licence is that of its name; its text is LICENSE-APACHE or LICENSE-MIT of this package."}`);
  return `The WebAssembly modules of this package hold code of these crates.\n\n${parts.join("\n\n----------------------------------------\n\n")}\n`;
}
