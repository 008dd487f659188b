/**
 * The kind of a failure:
 *
 * - `not_loaded`: {@link init} was not awaited;
 * - `unsupported`: this browser or runtime lacks something, such as SIMD or Web Workers;
 * - `config`: a setting or an argument is invalid, or names something that is not registered;
 * - `environment`: an environment, built-in or written in JavaScript;
 * - `policy`: a policy, or its weights do not fit;
 * - `batch`: a batch or a column;
 * - `sample`, `worker`: sampling, or the worker's state;
 * - `learner`: learning from a batch;
 * - `data`: a file of logged experience;
 * - `busy`: an environment has used the worker that was stepping it, or an algorithm is training or has ended;
 * - `freed`: an object was used after its `free`;
 * - `hub`: a hub has refused this page or ended its work.
 */
export type ErrorKind =
  | "not_loaded" | "unsupported" | "config" | "environment" | "policy" | "batch" | "sample" | "worker" | "learner" | "data" | "busy"
  | "freed" | "hub";

/** The place of a failure, as far as it is known. */
export interface ErrorDetails {
  environment?: number;
  episode?: number;
  step?: number;
  field?: string;
  cause?: unknown;
}

/** The error that this package throws: `kind` is for programs, `message` for display. */
export class RollmeshError extends Error {
  override readonly name = "RollmeshError";
  readonly kind: ErrorKind;
  /** The index of the environment in its worker. */
  readonly environment: number | undefined;
  /** The number of the episode in its environment. */
  readonly episode: number | undefined;
  /** The step of the episode, counted from 0. */
  readonly step: number | undefined;
  /** The invalid field: `observation`, `reward`, `action`, `terminated`, … */
  readonly field: string | undefined;

  constructor(kind: ErrorKind, message: string, { environment, episode, step, field, cause }: ErrorDetails = {}) {
    super(message, cause === undefined ? undefined : { cause });
    this.kind = kind;
    this.environment = environment;
    this.episode = episode;
    this.step = step;
    this.field = field;
  }
}

/** Formats a value for an error. */
export function shown(value: unknown): string {
  if (typeof value === "number" || value === undefined || value === null) return String(value);
  if (typeof value === "string") return `the text '${value.slice(0, 40)}'`;
  return typeof value === "object" ? value.constructor?.name ?? "an object" : `a ${typeof value}`;
}
