import start from "./wasm/rollmesh_worker.js";

// From here on the Web Worker speaks for itself: it posts that it is ready, and is posted what to do.
await start({ module_or_path: new URL("./wasm/rollmesh_worker_bg.wasm", import.meta.url) });
