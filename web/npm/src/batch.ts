import { Freeable, Handle, engine } from "./engine.js";
import { RollmeshError } from "./error.js";
import { count, dtypeOf, seedOf, text } from "./rows.js";
import type { ArrayColumn, Column, DType, TypedArrays } from "./types.js";
import type { BatchHandle } from "./wasm/rollmesh_wasm.js";

/** The rows of one policy as plain objects, which can be cloned, posted and transferred. */
export interface SampleBatchObject {
  /** The number of rows of every column. */
  rows: number;
  /** The columns by name, in RLlib's order. */
  columns: Record<string, Column>;
  /** The number of rows of each sequence, for a recurrent policy. */
  seqLens?: Int32Array;
}

/** The rows of several policies as plain objects. */
export interface MultiAgentBatchObject {
  envSteps: number;
  agentSteps: number;
  policies: Record<string, SampleBatchObject>;
}

/** A row: a number for a column of scalars, an array for one of vectors, bytes for a ragged one. */
export type Row = Record<string, number | bigint | TypedArrays[DType]>;

/** A worker's sample: rows of the default policy alone, or of several policies. Both kinds have `single` and `asMultiAgent`. */
export type AnyBatch = SampleBatch | MultiAgentBatch;

/** @internal */
export function wrapBatch(raw: BatchHandle): AnyBatch {
  return raw.isMulti ? MultiAgentBatch.wrap(raw) : SampleBatch.wrap(raw);
}

/** Named columns of one length: the experience of one policy. Batches are immutable; slices share their memory. */
export class SampleBatch extends Freeable {
  readonly #handle: Handle<BatchHandle>;

  private constructor(raw: BatchHandle) {
    super();
    this.#handle = new Handle("SampleBatch", raw);
  }

  /** @internal */
  static wrap(raw: BatchHandle): SampleBatch {
    return new SampleBatch(raw);
  }

  /** @internal */
  static share(batch: SampleBatch): BatchHandle {
    return batch.#handle.raw.share();
  }

  /** Creates a batch of columns by name: objects as {@link get} returns them, or typed arrays with one element per row. */
  static from(columns: Record<string, Column | TypedArrays[DType]>, seqLens?: Int32Array): SampleBatch {
    const objects = Object.values(columns).map((column) =>
      ArrayBuffer.isView(column) ? { dtype: dtypeOf(column), shape: [], data: column } : column);
    return new SampleBatch(engine().BatchHandle.ofColumns(Object.keys(columns), objects, seqLens));
  }

  /** Concatenates batches. */
  static concat(batches: Iterable<SampleBatch>): SampleBatch {
    return new SampleBatch(engine().BatchHandle.concat(Array.from(batches, SampleBatch.share)));
  }

  /** The number of steps. */
  get length(): number {
    return this.#handle.raw.agentSteps;
  }

  /** An alias of {@link length}. */
  get envSteps(): number {
    return this.#handle.raw.envSteps;
  }

  /** An alias of {@link length}. */
  get agentSteps(): number {
    return this.#handle.raw.agentSteps;
  }

  /** The size of all columns in bytes. */
  get sizeBytes(): number {
    return this.#handle.raw.sizeBytes;
  }

  /** The names of the columns: `obs`, `actions`, `rewards`, `terminateds`, `truncateds`, `eps_id`, … */
  get columns(): string[] {
    return this.#handle.raw.names();
  }

  /** The number of rows of each sequence, for a recurrent policy. */
  get seqLens(): Int32Array | undefined {
    return this.#handle.raw.seqLens();
  }

  /** Returns whether the batch has such a column. */
  has(name: string): boolean {
    return this.columns.includes(name);
  }

  /**
   * Returns a copy of a column. With a `dtype` it throws if the elements are of another type.
   *
   * @throws {RollmeshError} of kind `batch` for a column that is missing or of another type
   */
  get(name: string): Column;
  get<D extends DType>(name: string, dtype: D): ArrayColumn<D>;
  get(name: string, dtype?: DType): Column {
    const column = this.#handle.raw.column(text("name", name)) as Column | undefined;
    if (!column) {
      throw new RollmeshError("batch", `the batch has no column '${name}'; it has ${this.columns.join(", ")}`, { field: name });
    }
    if (dtype && column.dtype !== dtype) {
      throw new RollmeshError("batch", `column '${name}' is of ${column.dtype}, not of ${dtype}`, { field: name });
    }
    return column;
  }

  /** Returns 1 for each row where an episode ends, terminated or truncated, else 0. */
  dones(): Uint8Array {
    return this.#handle.raw.dones();
  }

  /** Iterates over the rows. Columns with one row per sequence are omitted. */
  *rows(): Generator<Row, void, undefined> {
    const columns = Object.entries(this.toObject().columns).filter(([name]) => !this.seqLens || !name.startsWith("state_in_"));
    for (let at = 0; at < this.length; at++) {
      yield Object.fromEntries(columns.map(([name, column]) => [name, rowOf(column, at)]));
    }
  }

  /**
   * Returns the steps from `start` to `end`, excluding `end`. A negative `start` prepends that many rows of zeros, as in RLlib; an `end`
   * beyond the batch is its end.
   */
  slice(start = 0, end = Infinity): SampleBatch {
    return new SampleBatch(this.#handle.raw.slice(start, end));
  }

  /** Returns a batch for each episode: by the column `eps_id` if there is one, else by the flags; or by the given key. */
  splitByEpisode(key?: "eps_id" | "dones"): SampleBatch[] {
    return this.#handle.raw.splitByEpisode(key === undefined ? key : text("key", key)).map(SampleBatch.wrap);
  }

  /** Returns consecutive slices: of `size` steps each, or `numSlices` of them. */
  timeslices(by: { size: number } | { numSlices: number }): SampleBatch[] {
    const [size, slices] = "size" in by ? [count("size", by.size), undefined] : [undefined, count("numSlices", by.numSlices)];
    return this.#handle.raw.timeslices(size, slices).map(SampleBatch.wrap);
  }

  /** Returns the same rows in an order that follows from the seed. */
  shuffle(seed: number | bigint = 0): SampleBatch {
    return new SampleBatch(this.#handle.raw.shuffled(seedOf(seed)));
  }

  /** Returns this batch, like a {@link MultiAgentBatch} of the default policy alone. */
  single(): SampleBatch {
    return this;
  }

  /** Returns a batch of several policies, with these rows as those of the default policy. */
  asMultiAgent(): MultiAgentBatch {
    return MultiAgentBatch.wrap(this.#handle.raw.asMultiAgent());
  }

  /** Returns a copy as plain objects. */
  toObject(): SampleBatchObject {
    const { policies } = this.#handle.raw.toObject() as MultiAgentBatchObject;
    return Object.values(policies)[0] as SampleBatchObject;
  }

  /** Describes the batch, for example `SampleBatch(3: ['obs', 'actions'])`. */
  override toString(): string {
    return this.#handle.raw.describe();
  }

  free(): void {
    this.#handle.free();
  }
}

/** The experience of several policies. */
export class MultiAgentBatch extends Freeable {
  readonly #handle: Handle<BatchHandle>;

  private constructor(raw: BatchHandle) {
    super();
    this.#handle = new Handle("MultiAgentBatch", raw);
  }

  /** @internal */
  static wrap(raw: BatchHandle): MultiAgentBatch {
    return new MultiAgentBatch(raw);
  }

  /** @internal */
  static share(batch: MultiAgentBatch): BatchHandle {
    return batch.#handle.raw.share();
  }

  /** Creates a batch of batches by policy, from the given number of env steps. */
  static from(policies: Record<string, SampleBatch>, envSteps: number): MultiAgentBatch {
    const shared = Object.values(policies).map(SampleBatch.share);
    return new MultiAgentBatch(engine().BatchHandle.ofPolicies(Object.keys(policies), shared, count("envSteps", envSteps)));
  }

  /** Joins batches policy by policy, and adds up their env steps. */
  static concat(batches: Iterable<AnyBatch>): MultiAgentBatch {
    const raw = engine().BatchHandle.concat(Array.from(batches, (batch) => shareAny(batch.asMultiAgent())));
    return new MultiAgentBatch(raw.isMulti ? raw : raw.asMultiAgent());
  }

  /** The number of steps of the environments. */
  get envSteps(): number {
    return this.#handle.raw.envSteps;
  }

  /** The number of rows of all policies. */
  get agentSteps(): number {
    return this.#handle.raw.agentSteps;
  }

  /** The size of all columns in bytes. */
  get sizeBytes(): number {
    return this.#handle.raw.sizeBytes;
  }

  /** The ids of the policies with rows, in order. */
  get policyIds(): string[] {
    return this.#handle.raw.policyIds();
  }

  /** Returns the rows of a policy; `undefined` if there are none. */
  get(policy: string): SampleBatch | undefined {
    const raw = this.#handle.raw.policy(text("policy", policy));
    return raw && SampleBatch.wrap(raw);
  }

  /** Returns slices of the given number of env steps each; the last one may be shorter. */
  timeslices(envSteps: number): MultiAgentBatch[] {
    return this.#handle.raw.timeslices(count("envSteps", envSteps), undefined).map(MultiAgentBatch.wrap);
  }

  /** Returns the rows of the default policy, if there are no others. */
  single(): SampleBatch {
    return SampleBatch.wrap(this.#handle.raw.asSingle());
  }

  /** Returns this batch. */
  asMultiAgent(): MultiAgentBatch {
    return this;
  }

  /** Returns a copy as plain objects. */
  toObject(): MultiAgentBatchObject {
    return this.#handle.raw.toObject() as MultiAgentBatchObject;
  }

  /** Describes the batch, for example `MultiAgentBatch({p: SampleBatch(3: ['a'])}, env_steps=3)`. */
  override toString(): string {
    return this.#handle.raw.describe();
  }

  free(): void {
    this.#handle.free();
  }
}

/** Returns the hash of a sequence of batches, which `rollmesh sample` prints as `batch_hash` of the same samples. */
export function batchHash(batches: Iterable<AnyBatch>): string {
  return engine().batchHash(Array.from(batches, shareAny));
}

function shareAny(batch: AnyBatch): BatchHandle {
  return batch instanceof SampleBatch ? SampleBatch.share(batch) : MultiAgentBatch.share(batch);
}

function rowOf(column: Column, at: number): Row[string] {
  if ("offsets" in column) return column.data.subarray(column.offsets[at], column.offsets[at + 1]);
  const { shape, data } = column, width = shape.reduce((product, size) => product * size, 1);
  return shape.length === 0 ? data[at] as number | bigint : data.subarray(at * width, (at + 1) * width);
}
