// Loads the page's module. A file of its own, so that the hub's Content-Security-Policy needs no exception for
// inline scripts; trunk writes the names of the built files into the script element.
const { js, wasm } = document.getElementById('boot').dataset;
const note = document.getElementById('boot-note');
const url = (name) => new URL(name, document.baseURI);

try {
  const theme = localStorage.getItem('rollmesh-theme');
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // Storage may be forbidden; then the system's theme it is.
}

// The token of a tab that is a worker: a link brings it in the fragment, and the tab keeps it for reloads, until another fragment
// comes. It is removed from the address, so that it stays out of the history and of shared links.
const STORAGE_KEY = 'rollmesh-join';
const invited = () => /^#join=([0-9a-f]{64})$/i.exec(location.hash)?.[1];
let token = invited();
if (token) history.replaceState(null, '', location.pathname + location.search);
try {
  if (token) sessionStorage.setItem(STORAGE_KEY, token);
  else if (location.hash) sessionStorage.removeItem(STORAGE_KEY);
  else token = sessionStorage.getItem(STORAGE_KEY);
} catch {
  // A browser that keeps nothing needs the link again after a reload.
}
addEventListener('hashchange', () => (token || invited()) && location.reload());

try {
  if (token) {
    const { join } = await import(url('join.js'));
    join(token, note);
  } else {
    const { default: init } = await import(url(js));
    await init({ module_or_path: url(wasm) });
    note.remove();
    performance.mark('dashboard');
  }
} catch (error) {
  const what = token ? 'The worker of this tab' : 'The dashboard';
  note.textContent = `${what} could not be loaded (${error}). Reload the page; it needs a browser from 2021 or later.`;
  throw error;
}
