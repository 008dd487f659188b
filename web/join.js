// A tab that only works: its Web Worker joins the hub of this page, as the link of an invitation asks for.
const url = (name) => new URL(name, document.baseURI);

/** Joins with the token; the element tells how it goes. */
export function join(token, element) {
  element.setAttribute('role', 'status');
  const tell = (text) => (element.textContent = text);
  const hub = url('ws');
  hub.protocol = hub.protocol.replace('http', 'ws');
  const worker = new Worker(url('worker.js'), { type: 'module' });
  worker.onerror = ({ message }) => tell(`This tab cannot work: ${message || 'its Web Worker cannot be loaded'}.`);
  worker.onmessage = ({ data: { state, reason, worker: id, env_steps: steps } }) => {
    if (state === 'ready') worker.postMessage({ url: hub.href, token, name: 'browser tab' });
    else if (state === 'ended') tell(`This tab no longer works for ${location.host}: ${reason}. Reload the page to join again.`);
    else if (id) tell(`This tab is worker ${id} of ${location.host}: ${Math.round(steps).toLocaleString('en')} env steps. Keep it open.`);
    else tell(`This tab joins ${location.host}: ${reason || state}.`);
  };
}
