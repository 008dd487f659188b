import { RollmeshError, type ErrorKind, shown } from "./error.js";
import type { DType, NumberArray, Rows, Space, TypedArrays } from "./types.js";

/** Returns the number of elements of a point of a space. */
export function elements(space: Space): number {
  switch (space.type) {
    case "box": return space.shape.reduce((product, size) => product * size, 1);
    case "discrete": return 1;
    case "multi_discrete": return space.nvec.length;
    case "multi_binary": return space.n;
    case "tuple": return space.spaces.reduce((sum, part) => sum + elements(part), 0);
    case "dict": return Object.values(space.spaces).reduce((sum, part) => sum + elements(part), 0);
  }
}

const CLASSES = {
  float32: Float32Array, float64: Float64Array, int32: Int32Array, int64: BigInt64Array, uint8: Uint8Array, bool: Uint8Array,
} as const;

/** Converts rows to the typed array that the wasm module takes. */
export function typed(dtype: DType, rows: Rows, kind: ErrorKind, what: string): TypedArrays[DType] {
  if (rows instanceof CLASSES[dtype]) return rows;
  const values: ArrayLike<unknown> = typeof rows === "object" && rows !== null && "length" in rows ? rows : [rows];
  const numbers = Array.from(values, (value, at) => {
    const number = typeof value === "boolean" || typeof value === "bigint" ? Number(value) : value;
    if (typeof number === "number" && !(dtype === "int64" && !Number.isInteger(number))) return number;
    const found = typeof value === "number" ? String(value) : typeof value;
    throw new RollmeshError(kind, `${what}: element ${at} is ${found}, not a value of ${dtype}`);
  });
  return dtype === "int64" ? BigInt64Array.from(numbers, BigInt) : CLASSES[dtype].from(numbers);
}

/** Returns the same rows. Throws if a number is not finite. */
export function finite<Of extends TypedArrays[DType]>(rows: Of, what: string): Of {
  const at = rows instanceof BigInt64Array ? -1 : rows.findIndex((number) => !Number.isFinite(number));
  if (at < 0) return rows;
  throw new RollmeshError("policy", `${what}: element ${at} is ${rows[at]}, not a finite number`);
}

/** Converts rows of the wasm module to numbers. */
export function numbers(rows: TypedArrays[DType]): NumberArray {
  return rows instanceof BigInt64Array ? Float64Array.from(rows, Number) : rows;
}

/** Returns the element type of a typed array in a column. */
export function dtypeOf(array: TypedArrays[DType]): DType {
  const found = (Object.keys(CLASSES) as DType[]).find((dtype) => array instanceof CLASSES[dtype]);
  if (!found) throw new RollmeshError("batch", "a column is a typed array of float32, float64, int32, int64 or uint8, or an object with one");
  return found;
}

/** Checks an integer from `least` to `most`, by default of 32 bits. */
export function count(name: string, value: unknown, least = 0, most = 0xffff_ffff): number {
  if (Number.isInteger(value) && (value as number) >= least && (value as number) <= most) return value as number;
  throw new RollmeshError("config", `${name} is ${shown(value)}; it is a whole number from ${least} to ${most}`, { field: name });
}

/** Checks that a seed, if given, is an integer below 2^53. */
export function checkSeed({ seed = 0 }: { seed?: number | bigint }): number {
  return count("seed", seed, 0, Number.MAX_SAFE_INTEGER);
}

/** Checks that a seed is an integer below 2^53, or a bigint of 64 bits. */
export function seedOf(seed: number | bigint): bigint {
  return typeof seed === "bigint" && BigInt.asUintN(64, seed) === seed ? seed : BigInt(checkSeed({ seed }));
}

/** Checks that a value is a string: the wasm module would read another value as an address. */
export function text(name: string, value: unknown): string {
  if (typeof value === "string") return value;
  throw new RollmeshError("config", `${name} is ${shown(value)}; it is a text`, { field: name });
}

/** Returns the settings of a run or a worker as JSON. */
export function settings(config: { seed?: number }): string {
  const settings = json(config);
  checkSeed(config);
  return settings;
}

/** Returns settings as JSON. Infinite numbers become null, which means no bound of a space, or no limit. */
export function json(config: unknown): string {
  if (typeof config !== "object" || config === null) {
    throw new RollmeshError("config", `the settings are ${shown(config)}; they are an object`, { field: "config" });
  }
  return JSON.stringify(config, (name, value: unknown) => {
    if (typeof value !== "bigint" && !Number.isNaN(value)) return value;
    throw new RollmeshError("config", `${name} is ${shown(value)}, which settings cannot have`, { field: name });
  });
}
