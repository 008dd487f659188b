// The Web Worker in which a page without a native hub has its own. What they exchange says web/wasm/modules/src/trainer/main.rs.
import init, { serve } from './rollmesh_trainer.js';

await init();
// The hub waits while its workers sample.
serve(Math.min(Math.max(navigator.hardwareConcurrency, 1), 4));
