import { type AnyBatch, wrapBatch } from "./batch.js";
import { Freeable, Handle, engine, reader } from "./engine.js";
import { RollmeshError, shown } from "./error.js";
import { count } from "./rows.js";
import type { DataHandle } from "./wasm/rollmesh_reader.js";

/** The number of places that a report names of each problem. */
const PLACES = 10;

/** The content and the problems of a file, with the names of `rollmesh data inspect --json`. */
export interface DataReport {
  batches: number;
  env_steps: number;
  /** The number of lines that are not batches, which are skipped. */
  corrupt_lines: number;
  /** The reason why the rest of the file was not read: too many consecutive lines are not batches. */
  gave_up: string | null;
  /** The policies by id; that of single agents is `default_policy`. */
  policies: Record<string, PolicyReport>;
  /** The data that no policy should learn from, as in `rollmesh data validate`: the number of occurrences, and the first places. */
  problems: Record<string, { count: number; places: string[] }>;
}

/** The rows of one policy. */
export interface PolicyReport {
  rows: number;
  columns: Record<string, ColumnReport>;
  /** The number of episodes that have ended. */
  episodes: number;
  /** The number of episodes whose end is not in the file. */
  unfinished: number;
  /** The returns and lengths of episodes that have ended. */
  return: Spread;
  length: Spread;
  /** The histogram of returns, in adjacent bins; a bin excludes its `to`. */
  histogram: { from: number; to: number; count: number }[];
}

/** A summary of numbers; `min`, `max` and `mean` are null without numbers. */
export interface Spread {
  count: number;
  /** The number of values that are not finite, which the other fields exclude. */
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
 * Reads a file of logged experience, RLlib's lines of JSON, that arrives in chunks: from a `File` that was dropped on a page, a `Response`
 * or a Node stream. It holds one chunk, one line and its batch in memory, independently of the file's size.
 */
export class DataFile extends Freeable {
  readonly #handle: Handle<DataHandle>;

  private constructor(raw: DataHandle) {
    super();
    this.#handle = new Handle("DataFile", raw);
  }

  /**
   * Opens a file whose chunks are pushed; the first call loads the reader's wasm module. A line and its decompressed data may each have
   * `longestLine` bytes (64 MiB by default); longer lines are skipped.
   */
  static async open({ longestLine }: { longestLine?: number } = {}): Promise<DataFile> {
    if (longestLine !== undefined) count("longestLine", longestLine, 1);
    const { DataHandle } = await reader();
    return new DataFile(new DataHandle(PLACES, longestLine));
  }

  /** Iterates over all batches of a stream of chunks. Afterwards {@link report} describes the content. */
  async *batches(pieces: AsyncIterable<Uint8Array>): AsyncGenerator<AnyBatch, void, undefined> {
    for await (const piece of pieces) {
      this.push(piece);
      yield* this.#ready();
    }
    this.finish();
    yield* this.#ready();
  }

  /**
   * Takes the next chunk; call {@link next} until it returns `undefined` before the next chunk.
   *
   * @throws {RollmeshError} of kind `data` if the chunk is not a `Uint8Array`, or the file is of another format, with its name and a remedy
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

  /** Ends the input, so that the last line needs no line break. */
  finish(): void {
    this.#handle.raw.finish();
  }

  /** Returns the next batch; `undefined` until another chunk is pushed, and after the last batch. */
  next(): AnyBatch | undefined {
    const bytes = this.#handle.raw.next();
    return bytes && wrapBatch(engine().BatchHandle.decode(bytes));
  }

  /** Returns the report of the data read so far. */
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
