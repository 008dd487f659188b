// Connections that break, and several episodes in one round trip.

import { Client, EpisodeError, HubError } from '../../../examples/external/rollmesh_client.js';

const [url, token] = process.argv.slice(2);
/** The sockets that clients have created. */
const sockets = [];

class Socket extends WebSocket {
  constructor(...args) {
    super(...args);
    sockets.push(this);
  }
}

function check(holds, what) {
  if (!holds) throw new Error(what);
}

async function play(client) {
  const episodes = await Promise.all([0, 1, 2].map(() => client.startEpisode()));
  for (let t = 0; t < 4; t++) {
    const actions = await client.getActions(new Map(episodes.map((episode, at) => [episode, [at, t, 0]])));
    check([...actions.values()].every((action) => [0, 1, 2].includes(action)), `actions ${[...actions.values()]}`);
    for (const episode of episodes) episode.logReturns(1);
  }
  const mixed = await client.getActions(new Map([[episodes[0], [0, 4, 0]], [episodes[1], [NaN, 0, 0]]]));
  check(mixed.get(episodes[1]) instanceof EpisodeError && mixed.get(episodes[1]).code === 'bad_rows', 'no bad rows');
  check([0, 1, 2].includes(mixed.get(episodes[0])), 'no action');
  await episodes[0].endEpisode([0, 5, 0]);
  await Promise.all(episodes.slice(1).map((episode) => episode.abandon()));
}

const codeOf = (promise) => promise.then(() => 'none', (error) => error.code ?? error.name);

const client = await Client.connect(url, token, { reconnect: 60, WebSocket: Socket });
await play(client);
const episode = await client.startEpisode();
await episode.getAction([0, 0, 0]);
sockets.at(-1).close();
check((await codeOf(episode.getAction([0, 1, 0]))) === 'lost', 'not lost');
check((await codeOf(episode.abandon())) === 'lost', 'not lost afterwards');
await play(client);
check(sockets.length === 2, `${sockets.length} sockets`);
client.close();
check((await client.closed) instanceof HubError, 'no reason');

const once = await Client.connect(url, token, { WebSocket: Socket });
sockets.at(-1).close();
await once.closed;
check((await codeOf(once.startEpisode())) === 'HubError', 'it connected again');
console.log('played');
