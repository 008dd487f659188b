import { type AnyBatch, wrapBatch } from "./batch.js";
import { Freeable, Handle, engine, reader } from "./engine.js";
import { RollmeshError, shown } from "./error.js";
import { count } from "./rows.js";
import type { DataHandle } from "./wasm/rollmesh_reader.js";

/** Places that are named of each problem. */
const PLACES = 10;

/** What is in a file and what is wrong with it, with the names that `rollmesh data inspect --json` has. */
export interface DataReport {
  batches: number;
  env_steps: number;
  /** Lines that are no batches; they are skipped. */
  corrupt_lines: number;
  /** Why the rest of the file was not read: too many lines in a row are no batches. */
  gave_up: string | null;
  /** By id; of single agents `default_policy`. */
  policies: Record<string, PolicyReport>;
  /** What nothing should be learned from, as `rollmesh data validate` finds it: how often, and the first places. */
  problems: Record<string, { count: number; places: string[] }>;
}

/** The rows of one policy. */
export interface PolicyReport {
  rows: number;
  columns: Record<string, ColumnReport>;
  /** Episodes that have ended. */
  episodes: number;
  /** Episodes whose end is not in the file. */
  unfinished: number;
  /** The returns and lengths of episodes that have ended. */
  return: Spread;
  length: Spread;
  /** How many have which return, in adjacent bins; `to` is not in a bin. */
  histogram: { from: number; to: number; count: number }[];
}

/** A summary of numbers; least, greatest and mean are null where there are no numbers. */
export interface Spread {
  count: number;
  /** Numbers that are not finite, and in no other field. */
  not_finite: number;
  min: number | null;
  max: number | null;
  mean: number | null;
}

/** A column: a summary of its elements, and its types, for example `float32 (4)`. */
export interface ColumnReport extends Spread {
  type: string[];
  rows: number;
}

/**
 * Reads a file of logged experience, RLlib's lines of JSON, that comes piece by piece: from a `File` that was dropped on a page,
 * a `Response` or a stream of Node's. What is held is a piece, a line and its batch, whatever the file's size.
 */
export class DataFile extends Freeable {
  readonly #handle: Handle<DataHandle>;

  private constructor(raw: DataHandle) {
    super();
    this.#handle = new Handle("DataFile", raw);
  }

  /**
   * Opens a file whose pieces are pushed; the first call loads the wasm module that reads. A line, and what is compressed in it,
   * may have `longestLine` bytes each (64 MiB by default); longer ones are skipped.
   */
  static async open({ longestLine }: { longestLine?: number } = {}): Promise<DataFile> {
    if (longestLine !== undefined) count("longestLine", longestLine, 1);
    const { DataHandle } = await reader();
    return new DataFile(new DataHandle(PLACES, longestLine));
  }

  /** All batches of a stream of pieces. What is in it says {@link report} then. */
  async *batches(pieces: AsyncIterable<Uint8Array>): AsyncGenerator<AnyBatch, void, undefined> {
    for await (const piece of pieces) {
      this.push(piece);
      yield* this.#ready();
    }
    this.finish();
    yield* this.#ready();
  }

  /**
   * Takes the next piece; take its batches before the next one.
   *
   * @throws {RollmeshError} of kind `data` if the piece is not a `Uint8Array`, or the file is of another format, with its name and what to do
   */
  push(piece: Uint8Array): void {
    const { raw } = this.#handle;
    if (!(piece instanceof Uint8Array)) throw new RollmeshError("data", `a piece of a file is ${shown(piece)}; it is a Uint8Array`);
    try {
      raw.push(piece);
    } catch (cause) {
      throw new RollmeshError("data", cause instanceof Error ? cause.message : String(cause));
    }
  }

  /** No other piece comes: the last line needs no end. */
  finish(): void {
    this.#handle.raw.finish();
  }

  /** The next batch; `undefined` until another piece comes, and after the last one. */
  next(): AnyBatch | undefined {
    const bytes = this.#handle.raw.next();
    return bytes && wrapBatch(engine().BatchHandle.decode(bytes));
  }

  /** What was found so far. */
  report(): DataReport {
    return JSON.parse(this.#handle.raw.report()) as DataReport;
  }

  free(): void {
    this.#handle.free();
  }

  *#ready(): Generator<AnyBatch, void, undefined> {
    for (let batch; (batch = this.next()); ) yield batch;
  }
}
