// The Web Worker in which a tab works for a hub. What it is posted, and posts, says web/wasm/src/tab/mod.rs.
import init, { work } from './rollmesh_wasm.js';

onmessage = ({ data }) => work(data);
await init();
postMessage({ state: 'ready' });
