// A tab that is a worker and has no dashboard: its Web Worker joins the hub of this page, as an invitation asks.
const url = (name) => new URL(name, document.baseURI);

/** Joins with the token, and shows the status in `element`. */
export function join(token, element) {
  element.setAttribute('role', 'status');
  const show = (text) => (element.textContent = text);
  const hub = url('ws');
  hub.protocol = hub.protocol.replace('http', 'ws');
  const worker = new Worker(url('worker.js'), { type: 'module' });
  worker.onerror = ({ message }) => show(`This tab cannot work: ${message || 'its Web Worker cannot be loaded'}.`);
  worker.onmessage = ({ data: { state, reason, worker: id, env_steps: steps } }) => {
    if (state === 'ready') worker.postMessage({ url: hub.href, token, name: 'browser tab' });
    else if (state === 'ended') show(`This tab no longer works for ${location.host}: ${reason}. Reload the page to join again.`);
    else if (state === 'unable') show(`This tab is worker ${id} of ${location.host} and cannot run its run: ${reason}.`);
    else if (id) show(`This tab is worker ${id} of ${location.host}: ${Math.round(steps).toLocaleString('en')} env steps. Keep it open.`);
    else show(`This tab joins ${location.host}: ${reason || state}.`);
  };
  // A browser may cache a page that was left, to go back to: its worker would stay connected without answering.
  addEventListener('pagehide', () => worker.terminate());
  addEventListener('pageshow', ({ persisted }) => persisted && location.reload());
}
