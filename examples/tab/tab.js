// A trained policy plays CartPole in this tab. The package is in the folder rollmesh/ of this page: see README.md.
import { CanvasRenderer, Policy, RolloutWorker, VectorEnv, init } from "./rollmesh/dist/browser.js";

const ENV = "CartPole-v1", NUM_ENVS = 8, MOST_RETURNS = 100, MAX_RETURN = 500;
const element = (id) => document.getElementById(id);
const file = async (name) => {
  const response = await fetch(new URL(`policy/${name}`, import.meta.url));
  if (!response.ok) throw new Error(`policy/${name}: ${response.status} ${response.statusText}`);
  return response;
};

/** Returns the policy of a run, and one with initial weights and the same networks. */
async function policies() {
  const description = await (await file("policy.json")).text();
  const weights = new Uint8Array(await (await file("weights.safetensors")).arrayBuffer());
  const { model } = JSON.parse(description);
  const worker = new RolloutWorker({ env: ENV, model_config: model });
  const untrained = Policy.fromSafetensors(worker.weights().default_policy, { env: ENV, model });
  worker.free();
  return { trained: Policy.fromCheckpoint(description, weights), untrained };
}

/** Draws returns from the left, the latest one at the end. */
function drawCurve(canvas, returns) {
  const context = canvas.getContext("2d"), { width, height } = canvas;
  context.clearRect(0, 0, width, height);
  context.strokeStyle = "#2b7de9";
  context.lineWidth = 2;
  context.beginPath();
  returns.forEach((value, at) => context.lineTo((at + 0.5) * width / MOST_RETURNS, height - 4 - value / MAX_RETURN * (height - 8)));
  context.stroke();
}

async function play() {
  await init();
  const known = await policies();
  const env = new VectorEnv(ENV, { numEnvs: NUM_ENVS, seed: Date.now() });
  const renderer = new CanvasRenderer(element("picture"));
  const returns = [], open = new Float64Array(NUM_ENVS);
  let observations = env.reset(), episodes = 0;

  function step() {
    const { actions } = known[element("policy").value].computeActions(observations, { deterministic: true });
    const steps = env.step(actions);
    observations = steps.observations;
    for (let lane = 0; lane < NUM_ENVS; lane++) {
      open[lane] += steps.rewards[lane];
      if (steps.terminateds[lane] || steps.truncateds[lane]) {
        returns.push(open[lane]);
        open[lane] = 0;
        episodes++;
      }
    }
    returns.splice(0, returns.length - MOST_RETURNS);
  }

  function frame() {
    for (let left = Number(element("speed").value); left > 0; left--) step();
    renderer.draw(env.picture(0));
    drawCurve(element("curve"), returns);
    const mean = returns.reduce((sum, value) => sum + value, 0) / returns.length;
    element("status").textContent = episodes > 0 ? `${episodes} episodes, mean return ${mean.toFixed(1)}` : "The first episodes are open.";
    requestAnimationFrame(frame);
  }
  frame();
}

play().catch((error) => (element("status").textContent = `${error.name}: ${error.message}`));
