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

// The fragment stays in the address, so that a reload joins again.
const invitation = () => /^#join=([0-9a-f]{64})$/i.exec(location.hash)?.[1];
addEventListener('hashchange', () => invitation() && location.reload());

try {
  if (invitation()) {
    const { join } = await import(url('join.js'));
    join(invitation(), note);
  } else {
    const { default: init } = await import(url(js));
    await init({ module_or_path: url(wasm) });
    note.remove();
    performance.mark('dashboard');
  }
} catch (error) {
  note.textContent =
    `The dashboard could not be loaded (${error}). Reload the page; it needs a browser from 2021 or later.`;
  throw error;
}
