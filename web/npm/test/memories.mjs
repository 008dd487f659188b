// The memory sizes of the package's wasm modules in this thread. To be imported before the package.

/** The memories, in the order in which the modules are loaded; Node's own modules are not among them. */
const memories = [];
const { instantiate } = WebAssembly;
WebAssembly.instantiate = async (...args) => {
  const made = await instantiate(...args);
  const { exports } = made.instance ?? made;
  if (exports.__wbindgen_start) memories.push(exports.memory);
  return made;
};

/** Returns the bytes of each module. */
export const bytes = () => memories.map((memory) => memory.buffer.byteLength);
