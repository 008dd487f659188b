import { Freeable } from "./engine.js";
import { RollmeshError } from "./error.js";
import { settings } from "./rows.js";
import { spawn as spawnDefault } from "./spawn.js";
import type { RolloutConfig } from "./types.js";

/** The hub to work for: one with an address, or one in this page, whose port {@link Hub.invite} returns. */
export interface JoinOptions {
  /** The hub's address, for example `wss://hub.example.org:7878`. */
  url?: string;
  /** The port of a hub in this page. */
  port?: MessagePort;
  /** A worker's token, 64 hexadecimal digits. */
  token: string;
  /** A name for display. */
  name?: string;
  /** Starts a Web Worker that calls {@link serve}; one of your own can register environments before that. */
  spawn?: () => globalThis.Worker;
  /** Called four times per second while the status changes. */
  onStatus?: (status: WorkerStatus) => void;
}

/** The status of the work. */
export interface WorkerStatus {
  state: "starting" | "connecting" | "waiting" | "idle" | "unable" | "sampling" | "evaluating" | "ended";
  /** The reason why this tab is unable to sample for the hub's run, or why the work has ended. */
  reason: string;
  /** The id that the hub assigned, 0 before. */
  worker: number;
  /** The numbers of env steps and leases done, over all connections. */
  envSteps: number;
  fragments: number;
  /** The number of evaluations with a result. */
  evaluations: number;
  weightsVersion: number;
  stepsPerSecond: number;
}

/** The settings of an evaluation worker, and the name by which programs find it at the hub. */
export interface EvalOptions extends JoinOptions {
  /** The name, of up to 64 characters of a-z, A-Z, 0-9, `_`, `-` and `.`. */
  name: string;
  /** The settings of a run: environment, model, seed. The weights come from the programs that request evaluations. */
  run: RolloutConfig & { evaluation?: Record<string, unknown> };
}

/** A message of the Web Worker. */
interface Posted {
  state: WorkerStatus["state"] | "ready";
  reason: string;
  worker: number;
  env_steps: number;
  fragments: number;
  evaluations: number;
  weights_version: number;
  steps_per_s: number;
}

/**
 * A Web Worker that works for a hub, and reconnects when its connection breaks. It has the built-in environments, and those that its Web
 * Worker registers.
 */
class TabWorker extends Freeable {
  readonly #thread: globalThis.Worker;
  #status: WorkerStatus = {
    state: "starting", reason: "", worker: 0, envSteps: 0, fragments: 0, evaluations: 0, weightsVersion: 0, stepsPerSecond: 0,
  };
  #end: (reason: RollmeshError) => void = () => {};
  /** Resolves when the work has ended and reconnecting would not help, with the reason: the hub's, or that the worker was freed. */
  readonly ended: Promise<RollmeshError>;

  protected constructor({ url = "", port, token, name = "tab", onStatus, spawn = spawnDefault }: JoinOptions, run?: EvalOptions["run"]) {
    super();
    if (!/^[0-9a-f]{64}$/i.test(token)) throw new RollmeshError("config", "a token has 64 hexadecimal digits", { field: "token" });
    if (!url && !port) throw new RollmeshError("config", "a worker needs the hub's url, or the port of a hub in this page", { field: "url" });
    if (typeof globalThis.Worker === "undefined") throw new RollmeshError("unsupported", "there are no Web Workers here: natively `rollmesh worker` does this work");
    const hub = port ? { port } : { url: `${url.replace(/\/(ws)?$/, "")}/ws` };
    // The task is built before the Web Worker starts, since an error in the message handler would reach no caller.
    const task = run ? { ...hub, token, name, run: settings({ preset: "none", ...run } as RolloutConfig) } : { ...hub, token, name };
    this.ended = new Promise((resolve) => (this.#end = resolve));
    this.#thread = spawn();
    this.#thread.onmessage = ({ data }: MessageEvent<Posted>) => {
      if (data.state === "ready") {
        this.#thread.postMessage(task, port ? [port] : []);
        return;
      }
      const { env_steps: envSteps, fragments, evaluations, weights_version: weightsVersion, steps_per_s: stepsPerSecond, worker } = data;
      const { state, reason } = data;
      if (state === "ended") this.#over(reason);
      else this.#status = { state, reason, worker, envSteps, fragments, evaluations, weightsVersion, stepsPerSecond };
      // This call is the last one, since it may throw.
      onStatus?.(this.#status);
    };
    this.#thread.onerror = ({ message }) => this.#over(`the Web Worker cannot run: ${message}`);
  }

  /** The status of the work. */
  get status(): WorkerStatus {
    return this.#status;
  }

  /** Ends the work immediately. The hub re-grants its leases to another worker. */
  free(): void {
    this.#over("it was freed");
  }

  #over(reason: string): void {
    this.#thread.terminate();
    this.#status = { ...this.#status, state: "ended", reason };
    this.#end(new RollmeshError("hub", reason));
  }
}

/** This tab as a worker of a hub's run or of a `WorkerGroup`: it gets leases, or commands, like any other worker. */
export class Worker extends TabWorker {
  /** Joins a hub. */
  constructor(options: JoinOptions) {
    super(options);
  }
}

/** This tab as an evaluation worker: programs find it at the hub by its name, and request evaluations of their weights. */
export class EvalWorker extends TabWorker {
  /** Joins a hub. */
  constructor({ run, ...options }: EvalOptions) {
    super(options, run);
  }
}
