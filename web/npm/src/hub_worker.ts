import { Freeable } from "./engine.js";
import { RollmeshError } from "./error.js";
import { spawn } from "./spawn.js";

/** Which hub to work for. */
export interface JoinOptions {
  /** The hub's address, for example `wss://hub.example.org:7878`. */
  url: string;
  /** A worker's token, 64 hexadecimal digits. */
  token: string;
  /** A name for people. */
  name?: string;
  /** Is called four times a second while something changes. */
  onStatus?: (status: WorkerStatus) => void;
}

/** How the work goes. */
export interface WorkerStatus {
  state: "starting" | "connecting" | "waiting" | "idle" | "unable" | "sampling" | "ended";
  /** Why this tab is unable to run the hub's run, or why the work has ended. */
  reason: string;
  /** The id that the hub gave, 0 before. */
  worker: number;
  /** Env steps and leases done, over all connections. */
  envSteps: number;
  fragments: number;
  weightsVersion: number;
  stepsPerSecond: number;
}

/** What the Web Worker posts. */
interface Posted {
  state: WorkerStatus["state"] | "ready";
  reason: string;
  worker: number;
  env_steps: number;
  fragments: number;
  weights_version: number;
  steps_per_s: number;
}

/**
 * This tab as a worker of a hub's run or of a `WorkerGroup`: a Web Worker that gets leases, or commands, like any other worker,
 * and connects again when its connection breaks. It knows the built-in environments alone.
 */
export class Worker extends Freeable {
  readonly #thread: globalThis.Worker;
  #status: WorkerStatus = {
    state: "starting", reason: "", worker: 0, envSteps: 0, fragments: 0, weightsVersion: 0, stepsPerSecond: 0,
  };
  #end: (reason: RollmeshError) => void = () => {};
  /** Resolves when the work is over and another connection would not help, with the reason: the hub's, or that it was freed. */
  readonly ended: Promise<RollmeshError>;

  /** Joins a hub. */
  constructor({ url, token, name = "tab", onStatus }: JoinOptions) {
    super();
    if (!/^[0-9a-f]{64}$/i.test(token)) throw new RollmeshError("config", "a token has 64 hexadecimal digits", { field: "token" });
    if (typeof globalThis.Worker === "undefined") throw new RollmeshError("unsupported", "there are no Web Workers here: natively `rollmesh worker` does this work");
    this.ended = new Promise((resolve) => (this.#end = resolve));
    this.#thread = spawn();
    this.#thread.onmessage = ({ data }: MessageEvent<Posted>) => {
      if (data.state === "ready") {
        this.#thread.postMessage({ url: `${url.replace(/\/(ws)?$/, "")}/ws`, token, name });
        return;
      }
      const { env_steps: envSteps, fragments, weights_version: weightsVersion, steps_per_s: stepsPerSecond, worker } = data;
      const { state, reason } = data;
      this.#status = state === "ended" ? { ...this.#status, state, reason }
        : { state, reason, worker, envSteps, fragments, weightsVersion, stepsPerSecond };
      onStatus?.(this.#status);
      if (state === "ended") this.#over(reason);
    };
    this.#thread.onerror = ({ message }) => this.#over(`the Web Worker cannot run: ${message}`);
  }

  /** How the work goes. */
  get status(): WorkerStatus {
    return this.#status;
  }

  /** Ends the work at once. What it was doing, the hub gives to another worker. */
  free(): void {
    this.#over("it was freed");
  }

  #over(reason: string): void {
    this.#thread.terminate();
    this.#status = { ...this.#status, state: "ended", reason };
    this.#end(new RollmeshError("hub", reason));
  }
}
