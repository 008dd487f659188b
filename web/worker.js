// The Web Worker in which a tab works for a hub. Its messages: web/wasm/src/tab/mod.rs.
import init, { work } from './rollmesh_wasm.js';

onmessage = ({ data }) => work(data);
await init();
postMessage({ state: 'ready' });
