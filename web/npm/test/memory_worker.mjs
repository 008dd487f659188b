// A Web Worker that says how much memory its wasm modules have when it is asked on the channel `memory`.
import { bytes } from "./memories.mjs";

import { init, serve } from "rollmesh";

const channel = new BroadcastChannel("memory");
channel.onmessage = ({ data }) => data === "ask" && channel.postMessage(bytes());
await init();
await serve();
