/**
 * A client of a rollmesh hub: runs episodes of its own environment with the policy that the hub is training.
 *
 * One module without dependencies, for browsers and for Node: 22 and newer as they are, 20 and 21 with
 * `node --experimental-websocket`, others with any class like the browser's, `Client.connect(url, token, { WebSocket })`.
 *
 * ```js
 * const client = await Client.connect('ws://127.0.0.1:7878', token);
 * const episode = await client.startEpisode();
 * let observation = world.reset(), done = false;
 * while (!done) {
 *   const action = await episode.getAction(observation);
 *   const step = world.step(action);
 *   episode.logReturns(step.reward);
 *   ({ observation, done } = step);
 * }
 * await episode.endEpisode(observation);
 * ```
 *
 * `client.getActions(new Map([[episode, observation], …]))` asks for several episodes in one round trip. With `reconnect` a
 * client connects again when the connection breaks; its open episodes are lost then. With several agents observations, actions
 * and rewards are objects by agent, as in RLlib's ExternalMultiAgentEnv. The bytes are described in PROTOCOL.md.
 *
 * @module
 */

/** @typedef {number | string} AgentId */
/** @typedef {number | boolean | ArrayLike<number | boolean>} Row A number, or as many as the space has, row-major. */
/** @typedef {Row | Record<AgentId, Row>} Rows The row of the only agent; of several agents the rows by agent. */
/** @typedef {number | number[]} Action A number for a discrete space, else as many as the space has. */
/**
 * @typedef {object} Spaces An agent's spaces and the types of their elements.
 * @property {AgentId} agent
 * @property {object} observation `{ type: 'box', shape, low, high }`, `{ type: 'discrete', n }`, …
 * @property {string} observation_type
 * @property {object} action
 * @property {string} action_type
 */

const WELCOME = 0x02, REFUSED = 0x03, GOODBYE = 0x04;
const SPACES = 0x40, START_EPISODE = 0x41, GET_ACTION = 0x42, LOG_ACTION = 0x43, LOG_RETURNS = 0x44;
const END_EPISODE = 0x45, ABANDON_EPISODE = 0x46, ACTIONS = 0x47, EPISODE_REPLY = 0x48;
const CODES = ['done', 'not_open', 'lost', 'already_open', 'bad_rows', 'bad_observation', 'bad_action', 'out_of_turn',
  'too_many', 'stopped', 'timed_out'];
const LOST = CODES.indexOf('lost');
/** Milliseconds between two attempts to connect again, at first and at most. */
const FIRST_PAUSE = 100, LONGEST_PAUSE = 5000;
/** After these there is no episode to continue with. */
const FINAL_CODES = ['not_open', 'lost', 'stopped', 'timed_out'];

/** Bytes of an element, and the functions that write and read it. */
const TYPES = {
  float32: [4, (view, at, value) => view.setFloat32(at, value, true), (view, at) => view.getFloat32(at, true)],
  float64: [8, (view, at, value) => view.setFloat64(at, value, true), (view, at) => view.getFloat64(at, true)],
  int32: [4, (view, at, value) => view.setInt32(at, value, true), (view, at) => view.getInt32(at, true)],
  int64: [8, (view, at, value) => view.setBigInt64(at, BigInt(value), true), (view, at) => Number(view.getBigInt64(at, true))],
  uint8: [1, (view, at, value) => view.setUint8(at, value), (view, at) => view.getUint8(at)],
  bool: [1, (view, at, value) => view.setUint8(at, value ? 1 : 0), (view, at) => view.getUint8(at)],
};

/** The hub refused the client, said goodbye, or the connection broke. The client cannot be used any more. */
export class HubError extends Error {
  name = 'HubError';
}

/** The hub did not do what an episode asked for. The connection continues, and so does the episode if it is open. */
export class EpisodeError extends Error {
  name = 'EpisodeError';

  /** @param {number} code @param {string} reason */
  constructor(code, reason) {
    super(reason);
    /**
     * The code, for programs. After `lost` (the sampler restarted, or the client has connected again) and `timed_out`
     * (the client sent nothing about the episode for too long) start another one; after `stopped` no sampler remains.
     * The others are mistakes of the caller.
     *
     * @type {'not_open' | 'lost' | 'already_open' | 'bad_rows' | 'bad_observation' | 'bad_action' | 'out_of_turn' | 'too_many' | 'stopped' | 'timed_out'}
     */
    this.code = CODES[code] ?? String(code);
  }
}

/** A connection to a hub. */
export class Client {
  /** Names or numbers of the agents. @type {AgentId[]} */
  agents = [];
  /** The spaces by agent. @type {Record<AgentId, Spaces>} */
  spaces = {};
  /** The maximum number of open episodes, those of all clients together. */
  maxEpisodes = 0;
  /** Resolves when the connection is over, with the reason. @type {Promise<HubError>} */
  closed;

  #socket;
  #makeSocket;
  #hello;
  /** Resolves once there is a connection, or the client is closed. */
  #ready;
  #closed;
  #over = null;
  #nextNumber = 0;
  /** The open episodes by number. @type {Map<number, Episode>} */
  #episodes = new Map();

  /**
   * Connects.
   *
   * @param {string} url `ws://HOST:PORT` or `wss://HOST:PORT`; Node trusts a self-signed certificate by `NODE_EXTRA_CA_CERTS`
   * @param {string} token 64 hexadecimal digits
   * @param {{ name?: string, reconnect?: number, WebSocket?: unknown }} [options] a name for users; the seconds for
   *   which the client tries to connect again when the connection breaks; another class than the global one
   * @returns {Promise<Client>} rejected with a HubError
   */
  static async connect(url, token, { name = 'page', reconnect = 0, WebSocket = globalThis.WebSocket } = {}) {
    if (!/^[0-9a-f]{64}$/i.test(token)) throw new TypeError('a token has 64 hexadecimal digits');
    if (!WebSocket) throw new TypeError('there is no WebSocket here: node --experimental-websocket, or hand one over');
    const secret = token.match(/../g).map((digits) => parseInt(digits, 16));
    const texts = ['javascript', name, 'cpu'].map((text) => bytes(new TextEncoder().encode(text)));
    const hello = [[1, 1, 4], secret, [0], new Uint8Array(32), ...texts];
    const client = new Client(() => new WebSocket(`${url.replace(/\/$/, '')}/ws`), hello);
    const { broken } = await client.#open();
    client.#live(broken, reconnect * 1000);
    return client;
  }

  /** @private Use {@link connect}. */
  constructor(makeSocket, hello) {
    this.#makeSocket = makeSocket;
    this.#hello = hello;
    this.closed = new Promise((resolve) => {
      this.#closed = (reason) => {
        this.#over ??= new HubError(reason);
        for (const episode of this.#episodes.values()) episode.lose(this.#over, true);
        this.#episodes.clear();
        resolve(this.#over);
      };
    });
  }

  /**
   * Begins an episode; waits while no more may be open.
   *
   * @param {{ training?: boolean }} [options] whether it is to be learned from
   * @returns {Promise<Episode>}
   */
  async startEpisode({ training = true } = {}) {
    await this.#ready;
    const number = this.#nextNumber++ >>> 0;
    const episode = new Episode(this, number, (kind, ...parts) => this.#send(kind, varint(number), ...parts));
    this.#episodes.set(number, episode);
    const socket = this.#socket;
    try {
      await episode.ask(START_EPISODE, [training ? 1 : 0]);
    } catch (error) {
      this.#episodes.delete(number);
      // Lost with its connection before it began.
      if (error instanceof EpisodeError && socket !== this.#socket) return this.startEpisode({ training });
      throw error;
    }
    return episode;
  }

  /**
   * Returns the actions of several episodes in one round trip, by episode; for a failed one its error instead.
   *
   * @param {Map<Episode, Rows>} observations
   * @returns {Promise<Map<Episode, Action | Record<AgentId, Action> | EpisodeError>>}
   */
  async getActions(observations) {
    const ask = ([episode, rows]) => episode.getAction(rows).catch((error) => {
      if (error instanceof EpisodeError) return error;
      throw error;
    });
    const actions = await Promise.all([...observations].map(ask));
    return new Map([...observations.keys()].map((episode, i) => [episode, actions[i]]));
  }

  /** Ends the connection. Episodes that are open are abandoned. */
  close() {
    this.#closed('the client closed the connection');
    this.#socket.close();
  }

  /** Connects; resolves with a promise of the connection's end, in an object, since a bare promise would be awaited. */
  #open() {
    return new Promise((resolve, reject) => {
      const socket = this.#makeSocket();
      socket.binaryType = 'arraybuffer';
      this.#socket = socket;
      let end;
      const broken = new Promise((breaks) => (end = breaks));
      const fail = (reason) => {
        const error = new HubError(reason);
        end(error);
        reject(error);
      };
      socket.addEventListener('close', () => fail('the hub closed the connection'));
      socket.addEventListener('error', () => fail('cannot reach the hub'));
      socket.addEventListener('message', ({ data }) => {
        try {
          this.#hear(new Uint8Array(data), () => resolve({ broken }));
        } catch (error) {
          // A goodbye does not prevent a reconnection.
          if (!/goodbye/.test(error.message)) this.#over ??= new HubError(error.message);
          fail(error.message);
          socket.close();
        }
      });
      socket.addEventListener('open', () => this.#send(0x01, ...this.#hello));
    });
  }

  /** Connects again when the connection breaks, with exponential backoff; closes the client after that. */
  async #live(broken, patience) {
    for (;;) {
      let error = await broken, pause = FIRST_PAUSE, again = null;
      const lost = new EpisodeError(LOST, 'the client connects again: start another episode');
      for (const episode of this.#episodes.values()) episode.lose(patience && !this.#over ? lost : error, true);
      this.#episodes.clear();
      this.#ready = new Promise((resolve) => (again = resolve));
      for (const end = Date.now() + patience; !this.#over && Date.now() < end; ) {
        try {
          ({ broken } = await this.#open());
          error = null;
          break;
        } catch (failure) {
          error = failure;
          // Jitter, so that clients of a hub that restarts do not all connect at the same time.
          await new Promise((resolve) => setTimeout(resolve, Math.min(pause * (0.5 + Math.random() / 2), Math.max(end - Date.now(), 0))));
          pause = Math.min(2 * pause, LONGEST_PAUSE);
        }
      }
      if (error) this.#closed(error.message);
      again();
      if (error) return;
    }
  }

  #send(kind, ...parts) {
    if (this.#over) throw this.#over;
    this.#socket.send(join([[0x52, 0x4d, 1, 0, kind, 0, 0, 0], ...parts]));
  }

  #hear(frame, ready) {
    if (frame[0] !== 0x52 || frame[1] !== 0x4d || frame[2] !== 1) throw new Error('this is no rollmesh hub');
    const kind = frame[4], body = new Body(frame.subarray(8));
    if (kind === WELCOME) return;
    if (kind === REFUSED) throw new Error(`the hub refused: ${(body.byte(), body.text())}`);
    if (kind === GOODBYE) throw new Error(`the hub said goodbye: ${body.text()}`);
    if (kind === SPACES) {
      this.maxEpisodes = body.varint();
      const spaces = JSON.parse(body.text());
      this.agents = spaces.map(({ agent }) => agent);
      this.spaces = Object.fromEntries(spaces.map((entry) => [entry.agent, entry]));
      ready();
      return;
    }
    const number = body.varint(), episode = this.#episodes.get(number);
    if (kind === ACTIONS) {
      episode?.hear(GET_ACTION, null, body.bytes());
    } else if (kind === EPISODE_REPLY) {
      const about = body.byte(), code = body.byte(), reason = body.text();
      episode?.hear(about, code ? new EpisodeError(code, reason) : null);
      if (episode?.isOver) this.#episodes.delete(number);
    }
  }
}

/** An episode in progress. The next call is rejected with an error of returns. */
export class Episode {
  #client;
  #send;
  /** Requests without an answer, in order. */
  #asked = [];
  #failure = null;
  /** Ended, abandoned or lost. @readonly */
  isOver = false;

  /** @private Use {@link Client#startEpisode}. */
  constructor(client, number, send) {
    this.#client = client;
    this.#send = (...message) => {
      if (this.isOver) throw this.#failure ?? new EpisodeError(1, 'the episode is over: start another one');
      send(...message);
    };
    /** The number on the wire. @readonly @type {number} */
    this.number = number;
  }

  /**
   * Returns the action of the policy in training. With several agents: observations by agent in, actions by agent out.
   *
   * @param {Rows} observation
   * @returns {Promise<Action | Record<AgentId, Action>>}
   */
  async getAction(observation) {
    return this.#actions(await this.ask(GET_ACTION, bytes(this.#rows('observation', observation))));
  }

  /**
   * Logs an action that the caller chose without the policy.
   *
   * @param {Rows} observation
   * @param {Rows} action
   */
  async logAction(observation, action) {
    await this.ask(LOG_ACTION, bytes(this.#rows('observation', observation)), bytes(this.#rows('action', action)));
  }

  /**
   * Logs the reward of the latest action. Rewards add up until the next observation.
   *
   * @param {number | Record<AgentId, number>} reward
   * @param {{ info?: unknown, terminated?: Record<AgentId, boolean>, truncated?: Record<AgentId, boolean> }} [more] something
   *   that is not for learning, by agent if there are several; which of several agents continue no more
   */
  logReturns(reward, { info, terminated = {}, truncated = {} } = {}) {
    const returns = [], infos = [];
    const rewards = this.#isMultiAgent() ? reward : { 0: reward };
    for (const agent of Object.keys({ ...rewards, ...terminated, ...truncated })) {
      const view = new DataView(new ArrayBuffer(11));
      view.setUint16(0, this.#place(agent), true);
      view.setFloat64(2, rewards[agent] ?? 0, true);
      view.setUint8(10, (terminated[agent] ? 1 : 0) | (truncated[agent] ? 2 : 0));
      returns.push(new Uint8Array(view.buffer));
    }
    for (const [agent, agentInfo] of Object.entries(info === undefined ? {} : this.#isMultiAgent() ? info : { 0: info })) {
      const text = new TextEncoder().encode(JSON.stringify(agentInfo)), view = new DataView(new ArrayBuffer(6));
      view.setUint16(0, this.#place(agent), true);
      view.setUint32(2, text.length, true);
      infos.push(new Uint8Array(view.buffer), text);
    }
    this.#send(LOG_RETURNS, bytes(join(returns)), bytes(join(infos)));
  }

  /**
   * Ends the episode with the last observations: by a terminal state, or for another reason.
   *
   * @param {Rows} observation
   * @param {{ truncated?: boolean }} [options]
   */
  async endEpisode(observation, { truncated = false } = {}) {
    await this.ask(END_EPISODE, [truncated ? 1 : 0], bytes(this.#rows('observation', observation)));
  }

  /** Abandons the episode. The hub discards the steps of it that it has not sampled. */
  async abandon() {
    await this.ask(ABANDON_EPISODE);
  }

  /** @private */
  ask(kind, ...parts) {
    return new Promise((resolve, reject) => {
      this.#send(kind, ...parts);
      this.#asked.push({ kind, resolve, reject });
    });
  }

  /** @private The connection is over, and with it the episode. */
  lose(error, isOver = false) {
    if (isOver) {
      this.isOver = true;
      this.#failure = error;
    }
    for (const { reject } of this.#asked.splice(0)) reject(error);
  }

  /** @private An answer, or an error about returns or the whole episode. */
  hear(about, error, answer) {
    if (about === ABANDON_EPISODE || (about === END_EPISODE && !error) || FINAL_CODES.includes(error?.code)) this.isOver = true;
    this.#failure ??= error;
    const failure = this.#failure;
    if (this.#asked[0]?.kind === about) {
      const { resolve, reject } = this.#asked.shift();
      this.#failure = null;
      if (failure) reject(failure);
      else resolve(answer);
    }
    // An episode that is over receives no more answers.
    if (this.isOver) this.lose(failure ?? new EpisodeError(1, 'the episode is over: start another one'));
  }

  #isMultiAgent() {
    return this.#client.agents.length !== 1 || this.#client.agents[0] !== 0;
  }

  #place(agent) {
    const place = this.#client.agents.findIndex((known) => String(known) === String(agent));
    if (place < 0) throw new RangeError(`there is no agent ${agent}`);
    return place;
  }

  /** Encodes rows by agent as bytes. */
  #rows(of, rows) {
    const all = this.#isMultiAgent() ? Object.entries(rows) : [[0, rows]];
    const parts = all.map(([agent, row]) => {
      const place = this.#place(agent), spaces = this.#client.spaces[this.#client.agents[place]];
      const [size, write] = TYPES[spaces[`${of}_type`]], wanted = elements(spaces[of]);
      const values = typeof row === 'object' ? row : [row];
      if (values.length !== wanted) throw new RangeError(`the ${of} of agent ${agent} has ${wanted} elements, not ${values.length}`);
      const view = new DataView(new ArrayBuffer(2 + wanted * size));
      view.setUint16(0, place, true);
      for (let i = 0; i < wanted; i++) write(view, 2 + i * size, values[i]);
      return new Uint8Array(view.buffer);
    });
    return join(parts);
  }

  #actions(rows) {
    const view = new DataView(rows.buffer, rows.byteOffset, rows.byteLength), actions = {};
    for (let at = 0; at < rows.length; ) {
      const agent = this.#client.agents[view.getUint16(at, true)], { action, action_type } = this.#client.spaces[agent];
      const [size, , read] = TYPES[action_type], count = elements(action);
      const values = Array.from({ length: count }, (_, i) => read(view, at + 2 + i * size));
      actions[agent] = action.type === 'discrete' ? values[0] : values;
      at += 2 + count * size;
    }
    return this.#isMultiAgent() ? actions : actions[0];
  }
}

/** Returns the number of elements in a point of a space. */
function elements({ type, shape, nvec, n, spaces }) {
  if (type === 'box') return shape.reduce((product, size) => product * size, 1);
  if (type === 'tuple' || type === 'dict') return Object.values(spaces).reduce((sum, part) => sum + elements(part), 0);
  return { discrete: 1, multi_discrete: nvec?.length, multi_binary: n }[type];
}

/** Encodes an integer: seven bits per byte, least significant first. */
function varint(number) {
  const out = [];
  for (; number > 0x7f; number = Math.floor(number / 128)) out.push((number & 0x7f) | 0x80);
  return [...out, number];
}

/** Encodes a byte string: its length first. */
function bytes(data) {
  return join([varint(data.length), data]);
}

function join(parts) {
  const out = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  parts.reduce((at, part) => (out.set(part, at), at + part.length), 0);
  return out;
}

/** A message's body, read from front to back. */
class Body {
  #data;
  #at = 0;

  constructor(data) {
    this.#data = data;
  }

  byte() {
    if (this.#at >= this.#data.length) throw new Error('a message of the hub ends too early');
    return this.#data[this.#at++];
  }

  varint() {
    let number = 0, scale = 1, byte;
    do {
      byte = this.byte();
      number += (byte & 0x7f) * scale;
      scale *= 128;
    } while (byte > 0x7f);
    return number;
  }

  bytes() {
    const length = this.varint();
    this.#at += length;
    return this.#data.subarray(this.#at - length, this.#at);
  }

  text() {
    return new TextDecoder().decode(this.bytes());
  }
}
