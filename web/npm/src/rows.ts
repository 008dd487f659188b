import { RollmeshError, type ErrorKind } from "./error.js";
import type { DType, NumberArray, Rows, Space, TypedArrays } from "./types.js";

/** Numbers in a point of a space of arrays. */
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

/** Rows in the typed array that the wasm module takes for them. */
export function typed(dtype: DType, rows: Rows, kind: ErrorKind, what: string): TypedArrays[DType] {
  if (rows instanceof CLASSES[dtype]) return rows;
  const values: ArrayLike<unknown> = typeof rows === "object" ? rows : [rows];
  const numbers = Array.from(values, (value, at) => {
    const number = typeof value === "boolean" || typeof value === "bigint" ? Number(value) : value;
    if (typeof number === "number" && !(dtype === "int64" && !Number.isInteger(number))) return number;
    const found = typeof value === "number" ? String(value) : typeof value;
    throw new RollmeshError(kind, `${what}: element ${at} is ${found}, not a value of ${dtype}`);
  });
  return dtype === "int64" ? BigInt64Array.from(numbers, BigInt) : CLASSES[dtype].from(numbers);
}

/** Rows of the wasm module as numbers. */
export function numbers(rows: TypedArrays[DType]): NumberArray {
  return rows instanceof BigInt64Array ? Float64Array.from(rows, Number) : rows;
}

/** The type of elements that a typed array has in a column. */
export function dtypeOf(array: TypedArrays[DType]): DType {
  const found = (Object.keys(CLASSES) as DType[]).find((dtype) => array instanceof CLASSES[dtype]);
  if (!found) throw new RollmeshError("batch", "a column is a typed array of float32, float64, int32, int64 or uint8, or an object with one");
  return found;
}
