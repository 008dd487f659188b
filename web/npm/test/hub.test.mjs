// Tests the work of a page for a hub, as far as Node can run it.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { test } from "node:test";

import { EvalWorker, ExternalEnv, RollmeshError, Worker } from "rollmesh";

const token = "ab".repeat(32);

test("a worker needs a token and Web Workers", () => {
  assert.throws(() => new Worker({ url: "ws://127.0.0.1:1", token: "secret" }), { kind: "config", field: "token" });
  assert.throws(() => new Worker({ url: "ws://127.0.0.1:1", token }), { kind: "unsupported", message: /Web Workers/ });
});

/** A Web Worker that the test controls. */
class Thread {
  static last;
  posted = [];
  constructor(url, options) {
    Thread.last = Object.assign(this, { url: String(url), options });
  }
  postMessage(message) {
    this.posted.push(message);
  }
  terminate() {
    this.isOver = true;
  }
  say(data) {
    this.onmessage({ data });
  }
}

test("a worker posts its task when the Web Worker is ready, and hears how it goes", async (t) => {
  globalThis.Worker = Thread;
  t.after(() => delete globalThis.Worker);
  const heard = [];
  const worker = new Worker({ url: "wss://hub.example.org/", token, name: "mine", onStatus: (status) => heard.push(status) });
  const thread = Thread.last;
  assert.match(thread.url, /\/dist\/web_worker\.js$/);
  assert.deepEqual([thread.options, thread.posted], [{ type: "module" }, []]);
  thread.say({ state: "ready" });
  assert.deepEqual(thread.posted, [{ url: "wss://hub.example.org/ws", token, name: "mine" }]);
  thread.say({ state: "sampling", reason: "", worker: 3, env_steps: 640, fragments: 2, evaluations: 0, weights_version: 5, steps_per_s: 9.5 });
  const status = { state: "sampling", reason: "", worker: 3, envSteps: 640, fragments: 2, evaluations: 0, weightsVersion: 5, stepsPerSecond: 9.5 };
  assert.deepEqual([worker.status, heard], [status, [status]]);
  thread.say({ state: "ended", reason: "the run is over" });
  const reason = await worker.ended;
  assert.ok(reason instanceof RollmeshError && reason.kind === "hub" && reason.message === "the run is over");
  assert.ok(thread.isOver && worker.status.state === "ended" && worker.status.envSteps === 640);
});

test("a throwing status callback does not stop the worker", async (t) => {
  globalThis.Worker = Thread;
  t.after(() => delete globalThis.Worker);
  const worker = new Worker({ url: "wss://hub.example.org", token, onStatus: () => { throw new Error("mine"); } });
  assert.throws(() => Thread.last.say({ state: "ended", reason: "the run is over" }), { message: "mine" });
  assert.equal((await worker.ended).message, "the run is over");
  assert.ok(Thread.last.isOver);
});

test("an evaluation worker posts the settings of what it evaluates", async (t) => {
  globalThis.Worker = Thread;
  t.after(() => delete globalThis.Worker);
  const policies = { car_policy1: {}, car_policy2: {}, traffic_light_policy: { policy: "a2c" } };
  const run = { env: "MultiAgentTrafficGrid-v0", policy_mapping_fn: "traffic", policies, model_config: { fcnet_hiddens: [16] }, evaluation: { num_envs: 4 } };
  const worker = new EvalWorker({ url: "wss://hub.example.org", token, name: "judge", run });
  const thread = Thread.last;
  thread.say({ state: "ready" });
  const [{ run: posted, ...task }] = thread.posted;
  assert.deepEqual(task, { url: "wss://hub.example.org/ws", token, name: "judge" });
  assert.deepEqual(JSON.parse(posted), { preset: "none", ...run });
  thread.say({ state: "evaluating", reason: "", worker: 4, env_steps: 200, fragments: 0, evaluations: 1, weights_version: 0, steps_per_s: 9.5 });
  assert.deepEqual([worker.status.state, worker.status.evaluations], ["evaluating", 1]);
  worker.free();
  assert.match((await worker.ended).message, /freed/);
});

test("an evaluation worker with settings that are wrong is an error before a Web Worker is started", (t) => {
  globalThis.Worker = Thread;
  t.after(() => delete globalThis.Worker);
  const options = { url: "wss://hub.example.org", token, name: "judge", run: { env: "CartPole-v1", seed: -1 } };
  let spawned = 0;
  assert.throws(() => new EvalWorker({ ...options, spawn: () => (spawned++, new Thread("")) }), { kind: "config", field: "seed" });
  assert.equal(spawned, 0);
});

const needs = { timeout: 30_000, skip: !globalThis.WebSocket && "this Node has no WebSocket" };

test("episodes from JavaScript end in the batches of the program", needs, async (t) => {
  const settings = JSON.stringify({ spaces_of: "CartPole-v1" });
  const args = ["sample", "--env", "External-v0", "--env-config", settings, "--listen", "127.0.0.1:0", "--num-envs", "1", "--rollout-fragment-length", "8",
    "--env-steps", "8", "--json"];
  const program = spawn(process.env.ROLLMESH_BIN, args, { stdio: ["ignore", "pipe", "pipe"] });
  t.after(() => program.kill("SIGKILL"));
  let printed = "", summary = "";
  program.stdout.on("data", (data) => (summary += data));
  const found = new Promise((resolve) => program.stderr.on("data", (data) => {
    printed += data;
    const [address, token] = [/clients +(ws:\S+)\n/.exec(printed), /token +([0-9a-f]{64})\n/.exec(printed)];
    if (address && token) resolve([address[1], token[1]]);
  }));
  const over = new Promise((resolve) => program.once("close", resolve));
  const client = await ExternalEnv.connect(...await found);
  const actions = [];
  async function play() {
    for (;;) {
      const episode = await client.startEpisode();
      for (let step = 0; step < 5; step++) {
        actions.push(await episode.getAction([0, 0, 0, step / 10]));
        episode.logReturns(1);
      }
      await episode.endEpisode([0, 0, 0, 1]);
    }
  }
  await Promise.all([play().catch(() => {}), client.closed]);
  assert.equal(await over, 0);
  assert.ok(actions.length >= 8 && actions.every((action) => action === 0 || action === 1));
  assert.equal(JSON.parse(summary).env_steps, 8);
});
