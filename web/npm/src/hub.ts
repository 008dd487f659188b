import { type Point, type TrainConfig, type TrainResult, toResult } from "./algorithm.js";
import { Freeable, Handle, engine } from "./engine.js";
import { RollmeshError } from "./error.js";
import { Policy } from "./policy.js";
import { count, settings, text } from "./rows.js";
import { spawn as spawnDefault } from "./spawn.js";
import type { OperatorHandle } from "./wasm/rollmesh_wasm.js";

/** The options of a hub in a page. */
export interface HubOptions {
  /** The number of Web Workers with which a run begins; by default one per core, at most 4. */
  workers?: number;
  /** Starts a Web Worker that calls {@link serve}; one of your own can register environments before that. */
  spawn?: () => globalThis.Worker;
  /** Called with each notice of the hub and its level: 0 information, 1 warning, 2 error. */
  onNotice?: (text: string, level: number) => void;
}

/** The status of the run. */
export interface HubStatus {
  /** The number of the run, 0 before the first. */
  run: number;
  phase: string;
  iteration: number;
  envSteps: number;
  /** The reason why the run has failed, else empty. */
  error: string;
  /** The number of failed fragments, for example by an exception of an environment, and the last reason. */
  failures: number;
  lastFailure: string;
}

/** A worker of the hub. */
export interface HubWorker {
  id: number;
  name: string;
  state: string;
  /** The reason why the worker does not sample, else empty. */
  reason: string;
  slots: number;
  envSteps: number;
  stepsPerSecond: number;
}

/** A port for a peer of the hub: for {@link Worker}, also in another Web Worker or frame of this origin. */
export interface Invitation {
  port: MessagePort;
  token: string;
}

/** A message of the hub, which has one of the fields. */
interface Said {
  iteration?: Point & { run: number };
  reply?: { request: number; error: string; run: number };
  notice?: { level: number; text: string };
  status?: HubStatus;
  worker?: HubWorker;
  gone?: number;
  end?: string;
}

/** The messages of the hub's Web Worker other than frames and the reason of its failure. */
interface Posted {
  state?: string;
  token: string;
  port?: MessagePort;
  start?: number;
  closed?: number;
  invited?: number | null;
  run?: number;
  weights_hash?: string;
  name?: string;
  bytes?: Uint8Array;
  error?: string;
}

interface Waiting<Value> {
  resolve: (value: Value) => void;
  reject: (error: RollmeshError) => void;
}

/** A Web Worker that the hub has asked for, and the timer of its start. */
interface Started {
  worker: globalThis.Worker;
  late: ReturnType<typeof setTimeout>;
}

/** The time within which a Web Worker must be ready; otherwise it is replaced. */
const START_TIMEOUT_MS = 60_000;

const ENDED = new Set(["finished", "solved", "stopped", "failed"]);

/**
 * A hub in this page: a Web Worker with the learner, and Web Workers that sample for it. It is the hub of `rollmesh hub`, whose runs learn
 * the same weights with any number of workers, even if some exit.
 */
export class Hub extends Freeable {
  readonly #options: Required<Pick<HubOptions, "spawn">> & HubOptions;
  readonly #thread: globalThis.Worker;
  readonly #workers = new Map<number, Started>();
  readonly #rows = new Map<number, HubWorker>();
  readonly #requests = new Map<number, Waiting<number>>();
  readonly #invitations: Waiting<Invitation>[] = [];
  readonly #files = new Map<string, Waiting<Uint8Array>[]>();
  #operator: Handle<OperatorHandle> | undefined;
  #status: HubStatus = { run: 0, phase: "idle", iteration: 0, envSteps: 0, error: "", failures: 0, lastFailure: "" };
  #results: TrainResult[] = [];
  /** The latest iteration of the run. */
  #iteration = 0;
  #hash: { run: number; hash: string } | undefined;
  #changed: (() => void)[] = [];
  #fault: RollmeshError | undefined;
  #ready: Waiting<Hub> | undefined;

  private constructor(options: HubOptions, ready: Waiting<Hub>) {
    super();
    this.#options = { spawn: spawnDefault, ...options };
    this.#ready = ready;
    this.#thread = this.#options.spawn();
    this.#thread.onmessage = ({ data }: MessageEvent<Posted | Uint8Array | string>) => this.#hear(data);
    this.#thread.onerror = ({ message }) => this.#fail(`the hub's Web Worker cannot run: ${message}`);
  }

  /**
   * Starts a hub without a run; it loads the wasm module of hub and learner.
   *
   * @throws {RollmeshError} of kind `unsupported` in a runtime without Web Workers
   */
  static start(options: HubOptions = {}): Promise<Hub> {
    engine();
    if (options.workers !== undefined) count("workers", options.workers);
    if (typeof globalThis.Worker === "undefined") {
      throw new RollmeshError("unsupported", "there are no Web Workers here: an Algorithm trains in this thread, and natively `rollmesh hub` is a hub");
    }
    return new Promise((resolve, reject) => void new Hub(options, { resolve, reject }));
  }

  /**
   * Begins a run, and returns its number.
   *
   * @throws {RollmeshError} of kind `hub`, with the reason, for invalid settings, or while another run is in progress
   */
  async train(config: TrainConfig): Promise<number> {
    const run = await this.#request("start", settings(config));
    this.#results = [];
    this.#iteration = 0;
    return run;
  }

  /**
   * Iterates over the results of the current run as they arrive, until the run ends.
   *
   * @throws {RollmeshError} of kind `sample` if the run has failed
   */
  async *results(): AsyncGenerator<TrainResult, void, undefined> {
    for (;;) {
      const result = this.#results.shift();
      if (result) {
        yield result;
        continue;
      }
      if (this.#fault) throw this.#fault;
      // The status of a run that has ended may arrive before its last iteration.
      if (ENDED.has(this.#status.phase) && this.#iteration >= this.#status.iteration) break;
      await new Promise<void>((resolve) => this.#changed.push(resolve));
    }
    if (this.#status.phase === "failed") throw new RollmeshError("sample", this.#status.error);
  }

  /** The status of the run. */
  get status(): HubStatus {
    return this.#status;
  }

  /** The workers of the hub. */
  get workers(): HubWorker[] {
    return [...this.#rows.values()];
  }

  /** The hash of the weights of a run that has ended, which `rollmesh train` prints for the same settings. */
  get weightsHash(): string | undefined {
    return this.#hash?.run === this.#status.run ? this.#hash.hash : undefined;
  }

  /** Pauses the run. */
  async pause(): Promise<void> {
    await this.#request("pause");
  }

  /** Resumes the run. */
  async resume(): Promise<void> {
    await this.#request("resume");
  }

  /** Ends the run immediately. */
  async stop(): Promise<void> {
    await this.#request("stop");
  }

  /** Ends the run when its leases have ended. */
  async drain(): Promise<void> {
    await this.#request("drain");
  }

  /** Starts one more worker. */
  async addWorker(): Promise<void> {
    await this.#request("add");
  }

  /** Ends a worker after its lease. */
  async removeWorker(id: number): Promise<void> {
    await this.#request("remove", String(id));
  }

  /**
   * Opens a port for a worker that the hub has not started itself, or for another dashboard.
   *
   * @throws {RollmeshError} of kind `hub` for another role, of kind `config` for a role that is not a string
   */
  async invite(role: "worker" | "viewer" | "operator" = "worker"): Promise<Invitation> {
    if (this.#fault) throw this.#fault;
    // The hub ignores a message without a string, and its answers settle the calls in order, so the role is checked here.
    this.#thread.postMessage({ invite: text("role", role) });
    return new Promise((resolve, reject) => this.#invitations.push({ resolve, reject }));
  }

  /** Returns a policy with the run's current weights. */
  async policy(id = "default_policy"): Promise<Policy> {
    const [description, weights] = await Promise.all([this.file("policy.json"), this.file("weights.safetensors")]);
    return Policy.fromCheckpoint(new TextDecoder().decode(description), weights, id);
  }

  /**
   * Returns a file of the current policy, as `rollmesh train` writes it.
   *
   * @throws {RollmeshError} of kind `hub` before the first run, and for another name, of kind `config` for a name that is not a string
   */
  async file(name: "policy.json" | "weights.safetensors"): Promise<Uint8Array> {
    if (this.#fault) throw this.#fault;
    this.#thread.postMessage({ file: text("name", name) });
    return new Promise((resolve, reject) => {
      this.#files.set(name, [...(this.#files.get(name) ?? []), { resolve, reject }]);
    });
  }

  /** Ends the hub, its run and its workers. */
  free(): void {
    this.#fail("it was freed");
  }

  #request(what: string, value = ""): Promise<number> {
    if (this.#fault || !this.#operator) return Promise.reject(this.#fault ?? new RollmeshError("hub", "the hub has not started"));
    const request = this.#operator.raw.request(what, value);
    this.#send();
    return new Promise((resolve, reject) => this.#requests.set(request, { resolve, reject }));
  }

  #send(): void {
    for (let frame; (frame = this.#operator?.raw.poll()); ) this.#thread.postMessage(frame);
  }

  #hear(data: Posted | Uint8Array | string): void {
    if (this.#fault) return;
    if (typeof data === "string") return this.#fail(data);
    if (data instanceof Uint8Array) {
      const said = this.#operator?.raw.handle(data);
      this.#send();
      if (said !== undefined) this.#learn(JSON.parse(said) as Said);
      return;
    }
    const { state, start, closed, invited, run, weights_hash: hash, name, bytes, error, token, port } = data;
    if (state === "ready") {
      const cores = globalThis.navigator?.hardwareConcurrency ?? 1;
      this.#thread.postMessage({ hub: true, workers: this.#options.workers ?? Math.min(cores, 4) });
    } else if (start !== undefined && port) this.#startWorker(start, token, port);
    else if (invited !== undefined) settle(this.#invitations.shift(), port && { port, token }, error);
    else if (closed !== undefined) this.#endWorker(closed);
    else if (run !== undefined && hash !== undefined) this.#hash = { run, hash };
    else if (name !== undefined) settle(this.#files.get(name)?.shift(), bytes, error);
    else if (token) {
      this.#operator = new Handle("Hub", new (engine().OperatorHandle)(token));
      this.#send();
      this.#ready?.resolve(this);
    }
  }

  #learn({ iteration, reply, notice, status, worker, gone, end }: Said): void {
    if (iteration) {
      this.#iteration = iteration.iteration;
      this.#results.push(toResult(iteration));
    }
    if (reply) {
      const waiting = this.#requests.get(reply.request);
      this.#requests.delete(reply.request);
      settle(waiting, reply.error ? undefined : reply.run, reply.error);
    }
    if (status) this.#status = status;
    if (worker) this.#rows.set(worker.id, worker);
    if (gone !== undefined) this.#rows.delete(gone);
    if (end !== undefined) return this.#fail(end);
    for (const wake of this.#changed.splice(0)) wake();
    // This call is the last one, since it may throw.
    if (notice) this.#options.onNotice?.(notice.text, notice.level);
  }

  #startWorker(number: number, token: string, port: MessagePort): void {
    let worker: globalThis.Worker;
    const ended = (reason: string) => {
      clearTimeout(late);
      this.#thread.postMessage({ ended: number, reason });
    };
    const late = setTimeout(() => ended(`it is not ready after ${START_TIMEOUT_MS / 1_000} s: does its script call serve()?`), START_TIMEOUT_MS);
    try {
      worker = this.#options.spawn();
    } catch (error) {
      return ended(`it cannot be started: ${error instanceof Error ? error.message : String(error)}`);
    }
    this.#workers.set(number, { worker, late });
    worker.onmessage = ({ data: { state, reason } }: MessageEvent<{ state: string; reason: string }>) => {
      if (state === "ready") {
        clearTimeout(late);
        worker.postMessage({ port, token, name: `worker-${number}` }, [port]);
      } else if (state === "ended") ended(reason);
    };
    worker.onerror = ({ message }) => ended(message || "its script cannot be loaded");
  }

  #endWorker(number: number): void {
    const started = this.#workers.get(number);
    clearTimeout(started?.late);
    started?.worker.terminate();
    this.#workers.delete(number);
  }

  #fail(reason: string): void {
    if (this.#fault) return;
    this.#fault = new RollmeshError("hub", reason);
    this.#thread.terminate();
    for (const number of [...this.#workers.keys()]) this.#endWorker(number);
    const files = [...this.#files.values()].flat();
    for (const { reject } of [...this.#requests.values(), ...this.#invitations, ...files]) reject(this.#fault);
    this.#ready?.reject(this.#fault);
    for (const wake of this.#changed.splice(0)) wake();
    this.#operator?.free();
  }
}

/** Resolves a pending call with a value, or rejects it with the hub's error. */
function settle<Value>(waiting: Waiting<Value> | undefined, value: Value | undefined, error = "the hub has not said why"): void {
  if (value === undefined) waiting?.reject(new RollmeshError("hub", error));
  else waiting?.resolve(value);
}
