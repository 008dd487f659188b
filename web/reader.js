// The Web Worker in which the page reads a file of logged experience. It receives the file and the episode at which the
// replay begins. It posts its findings so far, and once the steps to replay. A file that was read before (`again`) is
// read up to these steps only.
// The module that reads its format is loaded when the file is opened.

/** Bytes between two reports: some milliseconds of work. */
const SLICE = 1 << 20;
/** Milliseconds between two reports of tables. */
const REPORT_EVERY = 100;
/** Number of places that are named for each problem. */
const PLACES = 5;
/** First bytes of Parquet and HDF5 files. */
const TABLES = ['PAR1', '\x89HDF'];

onmessage = ({ data }) => {
  // Only errors that are thrown outside of promises reach the page.
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

/** Posts the findings. Returns whether the request is complete. */
function post(data, again, read, size) {
  const clip = data.takeClip();
  const isAll = again && clip !== undefined;
  postMessage({ read: isAll ? size : read, report: again ? undefined : data.report(), clip });
  return isAll;
}

/** Reads a part of the file. Posts an error and returns nothing if it was changed or removed since it was chosen. */
async function slice(file, start, end) {
  try {
    return new Uint8Array(await file.slice(start, end).arrayBuffer());
  } catch {
    fail(new Error('the browser cannot read it any more; choose it again'));
  }
}

/** Posts an error, in place of the findings. A trap means that the file violates an assertion of a decoder. */
function fail(error) {
  const isTrap = error instanceof WebAssembly.RuntimeError;
  postMessage({ read: 0, error: isTrap ? 'its parts contradict each other' : error.message });
}
