import { init, serve } from "./browser.js";

// `serve` posts that the Web Worker is ready, and waits for its task.
await init();
await serve();
