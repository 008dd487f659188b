// A Web Worker that reports the memory of its wasm modules on request over the channel `memory`.
import { bytes } from "./memories.mjs";

import { init, serve } from "rollmesh";

const channel = new BroadcastChannel("memory");
channel.onmessage = ({ data }) => data === "ask" && channel.postMessage(bytes());
await init();
await serve();
