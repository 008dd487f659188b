// A thread of Node that acts as a Web Worker for the package: `new Thread(script)` in the main thread, and this file in the other one.
import { Worker, isMainThread, parentPort, workerData } from "node:worker_threads";

/** A Web Worker in a thread of Node, which runs a module. */
export class Thread {
  static #all = new Set();
  #thread;

  constructor(script) {
    this.#thread = new Worker(new URL(import.meta.url), { workerData: String(script) });
    this.#thread.on("message", (data) => this.onmessage?.({ data, target: this }));
    this.#thread.on("error", (error) => this.onerror?.({ message: String(error) }));
    Thread.#all.add(this);
  }

  postMessage(data, transfer) {
    this.#thread.postMessage(data, transfer);
  }

  terminate() {
    Thread.#all.delete(this);
    return this.#thread.terminate();
  }

  static async terminateAll() {
    await Promise.all([...Thread.#all].map((thread) => thread.terminate()));
  }
}

if (!isMainThread) {
  globalThis.postMessage = (data, transfer) => parentPort.postMessage(data, transfer);
  Object.defineProperty(globalThis, "onmessage", {
    get: () => undefined,
    set: (hear) => {
      parentPort.removeAllListeners("message");
      parentPort.on("message", (data) => hear({ data }));
    },
  });
  await import(workerData);
}
