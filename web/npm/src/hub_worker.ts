import { Freeable } from "./engine.js";
import { RollmeshError } from "./error.js";
import { settings } from "./rows.js";
import { spawn as spawnDefault } from "./spawn.js";
import type { RolloutConfig } from "./types.js";

/** Which hub to work for: one with an address, or one in this page, for whose port {@link Hub.invite} is asked. */
export interface JoinOptions {
  /** The hub's address, for example `wss://hub.example.org:7878`. */
  url?: string;
  /** The port of a hub in this page. */
  port?: MessagePort;
  /** A worker's token, 64 hexadecimal digits. */
  token: string;
  /** A name for people. */
  name?: string;
  /** Starts a Web Worker that calls {@link serve}; one of your own can register environments before that. */
  spawn?: () => globalThis.Worker;
  /** Is called four times a second while something changes. */
  onStatus?: (status: WorkerStatus) => void;
}

/** How the work goes. */
export interface WorkerStatus {
  state: "starting" | "connecting" | "waiting" | "idle" | "unable" | "sampling" | "evaluating" | "ended";
  /** Why this tab is unable to run the hub's run, or why the work has ended. */
  reason: string;
  /** The id that the hub gave, 0 before. */
  worker: number;
  /** Env steps and leases done, over all connections. */
  envSteps: number;
  fragments: number;
  /** Evaluations that came to a result. */
  evaluations: number;
  weightsVersion: number;
  stepsPerSecond: number;
}

/** What an evaluation worker evaluates, and the name by which programs find it at the hub. */
export interface EvalOptions extends JoinOptions {
  /** Up to 64 of a-z, A-Z, 0-9, `_`, `-` and `.`. */
  name: string;
  /** The settings of a run: environment, model, seed. Weights come from programs that ask. */
  run: RolloutConfig & { evaluation?: Record<string, unknown> };
}

/** What the Web Worker posts. */
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

/** A Web Worker that works for a hub, and connects again when its connection breaks. It knows the built-in environments, and those that
 * its Web Worker registers. */
class TabWorker extends Freeable {
  readonly #thread: globalThis.Worker;
  #status: WorkerStatus = {
    state: "starting", reason: "", worker: 0, envSteps: 0, fragments: 0, evaluations: 0, weightsVersion: 0, stepsPerSecond: 0,
  };
  #end: (reason: RollmeshError) => void = () => {};
  /** Resolves when the work is over and another connection would not help, with the reason: the hub's, or that it was freed. */
  readonly ended: Promise<RollmeshError>;

  protected constructor({ url = "", port, token, name = "tab", onStatus, spawn = spawnDefault }: JoinOptions, run?: EvalOptions["run"]) {
    super();
    if (!/^[0-9a-f]{64}$/i.test(token)) throw new RollmeshError("config", "a token has 64 hexadecimal digits", { field: "token" });
    if (!url && !port) throw new RollmeshError("config", "a worker needs the hub's url, or the port of a hub in this page", { field: "url" });
    if (typeof globalThis.Worker === "undefined") throw new RollmeshError("unsupported", "there are no Web Workers here: natively `rollmesh worker` does this work");
    const hub = port ? { port } : { url: `${url.replace(/\/(ws)?$/, "")}/ws` };
    // Before the Web Worker is started: an error in its message handler would reach no caller.
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
      // Last, since it may throw.
      onStatus?.(this.#status);
    };
    this.#thread.onerror = ({ message }) => this.#over(`the Web Worker cannot run: ${message}`);
  }

  /** How the work goes. */
  get status(): WorkerStatus {
    return this.#status;
  }

  /** Ends the work immediately. What it was doing, the hub gives to another worker. */
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

/** This tab as an evaluation worker: programs find it at the hub by its name, and ask how good their weights are. */
export class EvalWorker extends TabWorker {
  /** Joins a hub. */
  constructor({ run, ...options }: EvalOptions) {
    super(options, run);
  }
}
