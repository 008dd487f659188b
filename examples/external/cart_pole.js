/**
 * Poles that are simulated here, and balanced by the policy that a hub is training with them. One is shown in real
 * time; the others run as fast as the hub answers.
 */

import { Client } from './rollmesh_client.js';

/** Duration of a shown step. */
const STEP_MS = 20;
/** Maximum number of concurrent episodes, including the shown one. */
const MAX_POLES = 8;
const MAX_STEPS = 500;
/** The speed that a push adds to the cart. */
const PUSH = 1.2;

/** CartPole-v1 (Barto, Sutton, Anderson 1983), with pushes by the user. */
class CartPole {
  state = [0, 0, 0, 0];
  steps = 0;
  action = null;
  push = 0;

  reset() {
    this.state = this.state.map(() => Math.random() * 0.1 - 0.05);
    this.steps = 0;
    this.action = null;
    this.push = 0;
  }

  step(action) {
    let [x, speed, angle, turn] = this.state;
    speed += this.push;
    this.push = 0;
    const sin = Math.sin(angle), cos = Math.cos(angle);
    const push = ((action === 1 ? 10 : -10) + 0.05 * turn * turn * sin) / 1.1;
    const turning = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - (0.1 * cos * cos) / 1.1));
    const moving = push - (0.05 * turning * cos) / 1.1;
    this.state = [x + 0.02 * speed, speed + 0.02 * moving, angle + 0.02 * turn, turn + 0.02 * turning];
    this.steps += 1;
    this.action = action;
    const [place, , lean] = this.state;
    const fallen = Math.abs(place) > 2.4 || Math.abs(lean) > (12 / 180) * Math.PI;
    return { fallen, over: fallen || this.steps === MAX_STEPS };
  }
}

const element = (id) => document.getElementById(id);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const shown = new CartPole();
const returns = [];
let client = null, isPaused = false, poles = 0, steps = 0, mean = NaN;

/** Plays episodes while `goesOn` returns true. The shown pole moves in real time, unless the hub is slower. */
async function play(pole, goesOn) {
  const isShown = pole === shown;
  let due = performance.now();
  while (goesOn()) {
    try {
      const episode = await client.startEpisode();
      pole.reset();
      for (let over = false, fallen = false; !over; ) {
        const action = await episode.getAction(pole.state);
        while (isPaused) await sleep(50);
        if (isShown) {
          due = Math.max(due + STEP_MS, performance.now() - STEP_MS);
          await sleep(due - performance.now());
        }
        ({ over, fallen } = pole.step(action));
        steps += 1;
        episode.logReturns(1);
        if (over) await episode.endEpisode(pole.state, { truncated: !fallen });
      }
    } catch (error) {
      // The hub has abandoned the episode, for example after a long pause: start the next one.
      if (error.code === 'timed_out' || error.code === 'lost') continue;
      throw error;
    }
    add(pole.steps);
    if (isShown) await sleep(400);
  }
}

/** Starts as many other poles as the limits allow. */
function fill() {
  const isWanted = (number) => () => element('crowd').checked && number < Math.min(MAX_POLES, client.maxEpisodes) - 1;
  while (isWanted(poles)()) {
    const number = poles++;
    play(new CartPole(), isWanted(number))
      .catch(fail)
      .finally(() => (poles -= 1));
  }
}

function add(episodeReturn) {
  returns.push(episodeReturn);
  const latest = returns.slice(-20);
  mean = latest.reduce((sum, value) => sum + value, 0) / latest.length;
  element('episodes').textContent = returns.length.toLocaleString('en');
  element('mean').textContent = mean.toFixed(1);
  element('best').textContent = Math.max(Number(element('best').textContent) || 0, episodeReturn);
}

/** Shows an error of an episode, unless the connection reports it itself. */
function fail(error) {
  if (error.name === 'HubError' || error.code === 'stopped') return;
  say('offline', error.message);
  console.error(error);
}

function say(state, text) {
  element('status').dataset.state = state;
  element('status').textContent = text;
}

/** Returns the hub's address and the token, from the page's address, which is then cleared, else from the session. */
function credentials() {
  const given = new URLSearchParams(location.hash.slice(1));
  if (given.has('token')) {
    sessionStorage.setItem('token', given.get('token'));
    sessionStorage.setItem('hub', given.get('hub') ?? `ws://${location.host}`);
    history.replaceState(null, '', location.pathname + location.search);
  }
  return [sessionStorage.getItem('hub'), sessionStorage.getItem('token')];
}

async function connect(hub, token) {
  say('waiting', 'Connecting …');
  try {
    client = await Client.connect(hub, token, { name: 'cart_pole.html' });
  } catch (error) {
    say('offline', 'Not connected');
    element('connect-error').textContent = error.message;
    element('connect').hidden = false;
    return;
  }
  element('connect').hidden = true;
  say('online', 'Connected');
  client.closed.then((error) => {
    say('offline', 'Not connected');
    element('connect-error').textContent = error.message;
    element('connect').hidden = false;
  });
  fill();
  play(shown, () => true).catch(fail);
}

element('connect').addEventListener('submit', (event) => {
  event.preventDefault();
  const [hub, token] = ['hub', 'token'].map((id) => element(id).value.trim());
  element('connect-error').textContent = '';
  sessionStorage.setItem('hub', hub);
  sessionStorage.setItem('token', token);
  connect(hub, token);
});

function pause() {
  isPaused = !isPaused;
  element('pause').setAttribute('aria-pressed', String(isPaused));
  element('pause').textContent = isPaused ? 'Continue' : 'Pause';
}

function push(direction) {
  shown.push += direction * PUSH;
}

element('pause').addEventListener('click', pause);
element('left').addEventListener('click', () => push(-1));
element('right').addEventListener('click', () => push(1));
element('crowd').addEventListener('change', () => client && fill());
element('world').addEventListener('pointerdown', ({ offsetX, target }) => push(offsetX < target.clientWidth / 2 ? -1 : 1));
document.addEventListener('keydown', (event) => {
  if (event.target.closest('input:not([type=checkbox])')) return;
  if (event.key === 'ArrowLeft') push(-1);
  else if (event.key === 'ArrowRight') push(1);
  else if (event.key === ' ' && !event.target.closest('button, input')) pause();
  else return;
  event.preventDefault();
});

/** Returns a canvas in pixels of the screen, with its current colours. */
function prepared(id) {
  const canvas = element(id), scale = devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  const [wanted, tall] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== wanted || canvas.height !== tall) [canvas.width, canvas.height] = [wanted, tall];
  const context = canvas.getContext('2d'), style = getComputedStyle(canvas);
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height, colour: (name) => style.getPropertyValue(`--${name}`) };
}

function drawWorld() {
  const { context, width, height, colour } = prepared('world');
  const unit = width / 5.6, [x, , angle] = shown.state, ground = height * 0.78, cart = width / 2 + x * unit;
  const round = (left, top, wide, tall, radius) => {
    context.beginPath();
    context.roundRect(left, top, wide, tall, radius);
    context.fill();
  };
  // The track and its ends.
  context.fillStyle = colour('line');
  round(width / 2 - 2.4 * unit, ground + unit * 0.2, 4.8 * unit, 6, 3);
  context.fillStyle = colour('line-strong');
  for (const end of [-2.4, 2.4]) round(width / 2 + end * unit - 3, ground - unit * 0.05, 6, unit * 0.25 + 6, 3);
  // The maximum angle of the pole.
  context.fillStyle = colour('accent-soft');
  context.globalAlpha = 0.55;
  context.beginPath();
  context.moveTo(cart, ground - unit * 0.16);
  context.arc(cart, ground - unit * 0.16, unit * 1.75, (-90 - 12) * (Math.PI / 180), (-90 + 12) * (Math.PI / 180));
  context.fill();
  context.globalAlpha = 1;
  // The cart, and the direction of its force.
  context.fillStyle = colour('ink');
  round(cart - unit * 0.36, ground - unit * 0.18, unit * 0.72, unit * 0.32, unit * 0.08);
  if (shown.action !== null) {
    const direction = shown.action === 1 ? 1 : -1, side = cart + direction * unit * 0.46;
    context.fillStyle = colour('accent');
    context.beginPath();
    context.moveTo(side + direction * unit * 0.14, ground - unit * 0.02);
    context.lineTo(side, ground - unit * 0.11);
    context.lineTo(side, ground + unit * 0.07);
    context.fill();
  }
  context.fillStyle = colour('line-strong');
  for (const wheel of [-0.2, 0.2]) {
    context.beginPath();
    context.arc(cart + wheel * unit, ground + unit * 0.13, unit * 0.08, 0, 2 * Math.PI);
    context.fill();
  }
  // The pole.
  context.save();
  context.translate(cart, ground - unit * 0.16);
  context.rotate(angle);
  context.fillStyle = colour('wood');
  round(-unit * 0.05, -unit * 1.7, unit * 0.1, unit * 1.75, unit * 0.05);
  context.restore();
  context.fillStyle = colour('accent');
  context.beginPath();
  context.arc(cart, ground - unit * 0.16, unit * 0.07, 0, 2 * Math.PI);
  context.fill();
  context.fillStyle = colour('muted');
  context.font = '600 13px system-ui, sans-serif';
  context.textAlign = 'left';
  context.fillText(`step ${shown.steps} of ${MAX_STEPS}`, 4, 16);
}

function drawCurve() {
  const { context, width, height, colour } = prepared('curve');
  const left = 34, bottom = height - 22, top = 8, right = width - 8;
  const count = Math.max(returns.length, 40);
  const at = (index) => left + ((right - left) * index) / (count - 1), of = (value) => bottom - ((bottom - top) * value) / MAX_STEPS;
  context.font = '12px system-ui, sans-serif';
  context.fillStyle = colour('muted');
  context.strokeStyle = colour('line');
  context.lineWidth = 1;
  context.textAlign = 'right';
  for (const value of [0, 100, 200, 300, 400, 500]) {
    context.beginPath();
    context.moveTo(left, of(value));
    context.lineTo(right, of(value));
    context.stroke();
    context.fillText(value, left - 7, of(value) + 4);
  }
  context.fillText(`${count} episodes`, right, height - 5);
  if (!returns.length) return;
  const every = Math.ceil(returns.length / 800);
  context.fillStyle = colour('line-strong');
  for (let i = 0; i < returns.length; i += every) {
    context.beginPath();
    context.arc(at(i), of(returns[i]), 2, 0, 2 * Math.PI);
    context.fill();
  }
  context.strokeStyle = colour('accent');
  context.lineWidth = 2.5;
  context.lineJoin = 'round';
  context.beginPath();
  let sum = 0;
  returns.forEach((value, i) => {
    sum += value - (returns[i - 20] ?? 0);
    if (i % every === 0 || i === returns.length - 1) context.lineTo(at(i), of(sum / Math.min(i + 1, 20)));
  });
  context.stroke();
}

// A change of the curve's size or colours redraws it immediately.
let drawn = -1;
new ResizeObserver(() => (drawn = -1)).observe(element('curve'));
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => (drawn = -1));

let before = { steps: 0, at: performance.now() };

function frame(now) {
  drawWorld();
  // A curve of thousands of episodes need not be drawn as often.
  if (now - drawn > 250 || drawn < 0) {
    drawn = now;
    drawCurve();
  }
  if (now - before.at > 1000) {
    element('speed').textContent = client ? Math.round(((steps - before.steps) * 1000) / (now - before.at)).toLocaleString('en') : '–';
    before = { steps, at: now };
  }
  requestAnimationFrame(frame);
}

requestAnimationFrame(frame);
const [hub, token] = credentials();
if (hub && token) {
  element('hub').value = hub;
  connect(hub, token);
} else {
  if (location.protocol.startsWith('http')) element('hub').value = `ws://${location.host}`;
  element('connect').hidden = false;
}
