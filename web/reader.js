// The Web Worker in which the page reads a file of logged experience: it is posted the file and the episode from which it is
// replayed, and posts what it has found so far, and once the steps to be replayed. A file that was read before (`again`) is read up
// to these steps.
// The module that reads its format is loaded when the file is opened.

/** Bytes between two reports: some milliseconds of work. */
const SLICE = 1 << 20;
/** Milliseconds between two reports of tables. */
const REPORT_EVERY = 100;
/** Places that are named of each problem. */
const PLACES = 5;
/** How Parquet and HDF5 files begin. */
const TABLES = ['PAR1', '\x89HDF'];

onmessage = ({ data }) => {
  // The page hears of errors that are thrown outside of promises.
  inspect(data).catch((error) => setTimeout(() => { throw error; }));
};

async function inspect(task) {
  const start = await slice(task.file, 0, 4);
  if (!start) return;
  await (TABLES.includes(String.fromCharCode(...start)) ? inspectTables : inspectLines)(task);
}

async function inspectLines({ file, episode, again }) {
  const { default: init, DataHandle } = await import('./rollmesh_reader.js');
  await init();
  const data = new DataHandle(PLACES).replaying(episode);
  let read = 0;
  do {
    const piece = await slice(file, read, read + SLICE);
    if (!piece) return;
    try {
      data.push(piece);
    } catch (error) {
      return fail(error);
    }
    read += piece.length;
    if (read === file.size) data.finish();
    data.inspect();
  } while (!post(data, again, read, file.size) && read < file.size && !JSON.parse(data.report()).gave_up);
}

async function inspectTables({ file, episode, again }) {
  const { default: init, TableHandle } = await import('./rollmesh_tables.js');
  await init();
  try {
    const data = new TableHandle(file, PLACES, episode);
    for (let more = true; more;) {
      const until = performance.now() + REPORT_EVERY;
      do more = data.inspect(); while (more && performance.now() < until);
      if (post(data, again, more ? data.read() : file.size, file.size)) return;
    }
  } catch (error) {
    fail(error);
  }
}

/** Posts what was found. Returns whether that was all that is wanted. */
function post(data, again, read, size) {
  const clip = data.takeClip();
  const isAll = again && clip !== undefined;
  postMessage({ read: isAll ? size : read, report: again ? undefined : data.report(), clip });
  return isAll;
}

/** A part of the file; nothing, and the page hears of it, if it was changed or removed since it was chosen. */
async function slice(file, start, end) {
  try {
    return new Uint8Array(await file.slice(start, end).arrayBuffer());
  } catch {
    fail(new Error('the browser cannot read it any more; choose it again'));
  }
}

/** Nothing is shown of a file that was not read to its end. A module that has trapped has met what a decoder asserts. */
function fail(error) {
  const isTrap = error instanceof WebAssembly.RuntimeError;
  postMessage({ read: 0, error: isTrap ? 'its parts contradict each other' : error.message });
}
