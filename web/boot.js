// Loads the page's module. This is a separate file, so that the hub's Content-Security-Policy needs no exception for
// inline scripts; trunk writes the names of the built files into the script element.
const { js, wasm } = document.getElementById('boot').dataset;
const note = document.getElementById('boot-note');
const url = (name) => new URL(name, document.baseURI);

try {
  const theme = localStorage.getItem('rollmesh-theme');
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // Without access to storage, the page keeps the system's theme.
}

// The token of a tab that is a worker. A link contains it in the fragment, and the tab stores it for reloads, until the
// fragment changes. The page removes it from the address, which keeps it out of the history and of shared links.
const STORAGE_KEY = 'rollmesh-join';
const invited = () => /^#join=([0-9a-f]{64})$/i.exec(location.hash)?.[1];
let token = invited();
if (token) history.replaceState(null, '', location.pathname + location.search);
try {
  if (token) sessionStorage.setItem(STORAGE_KEY, token);
  else if (location.hash) sessionStorage.removeItem(STORAGE_KEY);
  else token = sessionStorage.getItem(STORAGE_KEY);
} catch {
  // Without access to storage, a reload needs the link again.
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
