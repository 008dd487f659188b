// The Web Worker with the hub of a page that has no native hub. Their messages: web/wasm/modules/src/trainer/main.rs.
import init, { serve } from './rollmesh_trainer.js';

await init();
// One worker per core: the hub is idle while its workers sample.
serve(Math.min(Math.max(navigator.hardwareConcurrency, 1), 4));
