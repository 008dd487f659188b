// The Web Worker in which the page reads a file of logged experience: it is posted the file, and posts what it has found so far.
// Its module is loaded when the first file is opened.
import init, { DataHandle } from './rollmesh_reader.js';

/** Bytes between two reports: some milliseconds of work. */
const SLICE = 1 << 20;
/** Places that are named of each problem. */
const PLACES = 5;

onmessage = ({ data: file }) => {
  // The page hears of errors that are thrown outside of promises.
  inspect(file).catch((error) => setTimeout(() => { throw error; }));
};

async function inspect(file) {
  await init();
  const data = new DataHandle(PLACES);
  let read = 0;
  const post = (error) => postMessage({ read, report: data.report(), error });
  do {
    let piece;
    try {
      piece = new Uint8Array(await file.slice(read, read + SLICE).arrayBuffer());
    } catch {
      // It was changed or removed since it was chosen.
      return post('the browser cannot read it any more; choose it again');
    }
    try {
      data.push(piece);
    } catch (error) {
      return post(error.message);
    }
    read += piece.length;
    if (read === file.size) data.finish();
    data.inspect();
    post();
  } while (read < file.size && !JSON.parse(data.report()).gave_up);
}
