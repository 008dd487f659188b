// How much memory the package's wasm modules have in this thread. To be imported before the package.

/** The memories, in the order in which the modules are loaded; Node has modules of its own. */
const memories = [];
const { instantiate } = WebAssembly;
WebAssembly.instantiate = async (...args) => {
  const made = await instantiate(...args);
  const { exports } = made.instance ?? made;
  if (exports.__wbindgen_start) memories.push(exports.memory);
  return made;
};

/** Bytes of each module. */
export const bytes = () => memories.map((memory) => memory.buffer.byteLength);
