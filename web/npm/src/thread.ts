import { engine, trainer } from "./engine.js";
import { registerAll } from "./env.js";

/** The first message of a page to a Web Worker: to become a hub, or the task of a worker. */
type First = { hub: true; workers: number } | { hub?: false };

/**
 * Makes this Web Worker a hub or a worker, as the page requests. A custom Web Worker registers environments before that, and is started by
 * the `spawn` of {@link Hub}, {@link Worker} or {@link EvalWorker}.
 */
export async function serve(): Promise<void> {
  const first = new Promise<First>((resolve) => (globalThis.onmessage = ({ data }: MessageEvent<First>) => resolve(data)));
  globalThis.postMessage({ state: "ready" });
  const task = await first;
  if (!task.hub) return engine().work(task);
  const module = await trainer();
  registerAll(module);
  module.serve(task.workers);
}
