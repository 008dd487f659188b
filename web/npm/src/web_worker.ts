import { init, serve } from "./browser.js";

// From here on the Web Worker speaks for itself: it posts that it is ready, and is posted what to do.
await init();
await serve();
