/** Starts the Web Worker in which a tab works for a hub. Bundlers find its file in this form. */
export function spawn(): Worker {
  return new Worker(new URL("./web_worker.js", import.meta.url), { type: "module" });
}
