// The game of game.rs, in JavaScript, and the client's errors for mistakes. In Node it plays with the hub that its
// arguments name; a page imports `play`.

async function playOne(client, number) {
  const pair = client.agents[0] !== 0, length = 4 + (number % 3);
  let last = 0;
  const episode = await client.startEpisode();
  for (let t = 0; t < length; t++) {
    const obs = [number, t, last];
    if (pair) {
      const both = [0, 2, 3].includes(t) ? { left: obs, right: [number, t, 1] } : { left: obs };
      last = (await episode.getAction(both)).left;
      const rewards = t <= 2 ? { left: last + 0.5 * t, right: -1 } : { left: last + 0.5 * t };
      episode.logReturns(rewards, { info: { left: { t } }, terminated: { right: t === 2 } });
    } else {
      if ((number + t) % 5 === 3) {
        last = (number + t) % 3;
        await episode.logAction(Float32Array.from(obs), last);
      } else {
        last = await episode.getAction(obs);
      }
      episode.logReturns(last + 0.5 * t, { info: { t } });
    }
  }
  const obs = [number, length, last];
  await episode.endEpisode(pair ? { left: obs } : obs, { truncated: number % 2 === 1 });
}

async function expectCode(code, promise) {
  const error = await promise.then(() => null, (error) => error);
  if (error?.code !== code) throw new Error(`${code} was expected, not ${error?.code}: ${error?.message}`);
}

async function makeMistakes(client) {
  const pair = client.agents[0] !== 0, episode = await client.startEpisode();
  await expectCode('bad_rows', episode.getAction(pair ? { left: [NaN, 0, 0] } : [NaN, 0, 0]));
  episode.logReturns(pair ? { left: 1 } : 1);
  await expectCode('out_of_turn', episode.abandon());
  await expectCode('not_open', episode.abandon());
}

/** Plays until the hub has sampled enough. */
export async function play(Client, url, token) {
  const refused = await Client.connect(url, '0'.repeat(64)).then(() => null, (error) => error);
  if (refused?.message !== 'the hub refused: the token is not valid for this role') throw refused;
  const client = await Client.connect(url, token);
  await makeMistakes(client);
  try {
    for (let number = 0; ; number++) await playOne(client, number);
  } catch (error) {
    if (error.name !== 'HubError' && error.code !== 'stopped') throw error;
  }
  client.close();
}

if (globalThis.process?.argv) {
  const { Client } = await import('../../../examples/external/rollmesh_client.js');
  await play(Client, ...process.argv.slice(2));
}
