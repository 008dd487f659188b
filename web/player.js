// The Web Worker in which a policy plays. It receives a canvas, the two files of a policy (each as {name, bytes} or
// {name, file}) or the {folder} that contains them, and {action} while the user chooses the actions. It posts the
// status of the episode, or an error.
import init, { LanesHandle, PolicyHandle, describeEnvs } from './rollmesh_wasm.js';

const POLICY = 'policy.json', WEIGHTS = 'weights.safetensors';
/** Maximum bytes of a file: more than those of any policy that a run allows. */
const MOST_BYTES = { [POLICY]: 1 << 20, [WEIGHTS]: 256 << 20 };
const FRAME_MS = 33;

/** The files that were read, and the errors of the others, by name. */
const parts = new Map(), faults = new Map();
let canvas, game, next, taken;
const loaded = init();

onmessage = ({ data }) => {
  if (data.canvas) canvas = data.canvas;
  else if ('action' in data) taken = data.action;
  else hear(data).catch((error) => {
    stop();
    postMessage({ error: error.message });
  });
};

async function hear({ name, bytes, file, folder }) {
  if (folder !== undefined) {
    await Promise.all([POLICY, WEIGHTS].map(async (name) => parts.set(name, await fetched(folder, name))));
  } else {
    const part = name.endsWith('.safetensors') ? WEIGHTS : POLICY;
    faults.delete(part);
    try {
      check(part, bytes?.length ?? file.size);
      parts.set(part, bytes ?? new Uint8Array(await file.arrayBuffer()));
    } catch (error) {
      parts.delete(part);
      faults.set(part, error);
    }
    // The other file may have been read, or have failed, meanwhile.
    for (const fault of faults.values()) throw fault;
  }
  if (parts.size < 2) return postMessage({ missing: parts.has(POLICY) ? WEIGHTS : POLICY });
  await loaded;
  begin(new TextDecoder().decode(parts.get(POLICY)), parts.get(WEIGHTS));
}

function check(name, bytes) {
  if (bytes > MOST_BYTES[name]) throw new Error(`${name} has at least ${bytes} bytes; at most ${MOST_BYTES[name]} are read`);
}

/** Fetches a file of a folder on the page's own origin. */
async function fetched(folder, name) {
  const url = new URL(`${folder}/${name}`, location.href);
  if (url.origin !== location.origin) throw new Error(`${folder} is not on this page's own origin, ${location.origin}`);
  // A redirect could lead to another origin.
  const response = await fetch(url, { redirect: 'error' });
  if (!response.ok) throw new Error(`${url.pathname}: ${response.status} ${response.statusText}`);
  const reader = response.body.getReader(), chunks = [];
  try {
    for (let length = 0, part; !(part = await reader.read()).done; chunks.push(part.value)) check(name, length += part.value.length);
  } finally {
    await reader.cancel();
  }
  return new Uint8Array(await new Blob(chunks).arrayBuffer());
}

function begin(text, weights) {
  let file;
  try {
    file = JSON.parse(text);
  } catch (error) {
    throw new Error(`${POLICY} is no JSON: ${error.message}`);
  }
  const { policies, model, run } = file ?? {};
  if (!Array.isArray(policies) || !model || typeof run?.env !== 'string') {
    throw new Error(`this is no ${POLICY} of a run: it needs policies, model and run.env`);
  }
  const { env: name, env_config: config = {}, normalize_actions = true, clip_actions = false, seed = 0 } = run;
  const [{ spaces }] = JSON.parse(describeEnvs(name, JSON.stringify(config)));
  if (!spaces || policies.length !== 1) {
    throw new Error(`${name} has several agents or policies: rollmesh evaluate --checkpoint RUN plays it`);
  }
  const description = {
    observation_space: spaces.observation, action_space: spaces.action, model, normalize_actions, clip_actions, seed, policies,
    policy: policies[0],
  };
  const policy = new PolicyHandle(JSON.stringify(description), weights);
  const env = new LanesHandle(name, JSON.stringify(config), 1, BigInt(Date.now()));
  stop();
  game = { name, policy, env, n: spaces.action.type === 'discrete' ? spaces.action.n : 0, memory: {}, episode: 1, steps: 0, total: 0, last: null };
  [game.obs] = env.reset();
  frame();
}

function stop() {
  const { policy, env } = game ?? {};
  game = undefined;
  policy?.free();
  env?.free();
}

function frame() {
  clearTimeout(next);
  if (!game) return;
  next = setTimeout(frame, FRAME_MS);
  try {
    step(game);
  } catch (error) {
    // The game is over: another frame's message would replace this one. A module that has trapped cannot free memory.
    game = undefined;
    postMessage({ error: error.message });
  }
}

function step(game) {
  const { state = new Float32Array(), action, reward } = game.memory;
  const acted = game.policy.act(game.obs, false, state, action, reward);
  const isTaken = taken !== undefined && taken < game.n;
  if (isTaken) acted.actions.fill(typeof acted.actions[0] === 'bigint' ? BigInt(taken) : taken);
  const { observations, rewards, ends } = game.env.step(acted.actions);
  game.obs = ends.length > 0 ? ends[0][1] : observations;
  game.memory = ends.length > 0 ? {} : { state: acted.state, action: acted.actions, reward: Float32Array.from(rewards) };
  game.steps += 1;
  game.total += rewards[0];
  const picture = canvas && game.env.picture(0);
  if (picture) {
    const { width, height, data } = picture;
    if (canvas.width !== width) canvas.width = width;
    if (canvas.height !== height) canvas.height = height;
    canvas.getContext('2d').putImageData(new ImageData(data, width, height), 0, 0);
  }
  if (ends.length > 0) {
    game.last = game.total;
    game.episode += 1;
    game.steps = game.total = 0;
  }
  const { name: env, n: actions, episode, steps, total, last } = game;
  postMessage({ env, actions, episode, steps, total, last, taken: isTaken, picture: !!picture });
}
