// The Web Worker in which a page without a hub trains. What it exchanges with the page says web/wasm/src/bin/trainer/main.rs.
import init, { serve } from './rollmesh_trainer.js';

await init();
serve();
