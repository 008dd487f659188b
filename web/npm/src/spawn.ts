/** Starts the Web Worker in which a tab works for a hub. In this form bundlers find its file. */
export function spawn(): Worker {
  return new Worker(new URL("./web_worker.js", import.meta.url), { type: "module" });
}
