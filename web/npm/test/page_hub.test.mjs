// Tests a hub in a page, with Web Workers in threads of Node.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { afterEach, test } from "node:test";
import { setImmediate } from "node:timers/promises";

import { Hub, VectorEnv, Worker, init } from "rollmesh";

import { folder, settingsFile } from "./support.mjs";
import { Thread } from "./thread.mjs";

await init();
const spawn = () => new Thread(new URL("./env_worker.mjs", import.meta.url));
globalThis.Worker = Thread;
afterEach(() => Thread.terminateAll());

const config = { env: "CartPole-v1", num_slots: 8, seed: 3, rollout_fragment_length: 64, model_config: { fcnet_hiddens: [16] }, stop: { env_steps: 4096 } };

function hashOfProgram(t, settings) {
  const args = ["train", "--workers", "0", "--config", settingsFile(t, settings), "--run-dir", join(folder(t), "run"), "--json"];
  const printed = execFileSync(process.env.ROLLMESH_BIN, args, { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
  return JSON.parse(printed.trim().split("\n").at(-1)).weights_hash;
}

async function all(results) {
  const list = [];
  for await (const result of results) list.push(result);
  return list;
}

test("a run learns the weights of the program, also if a worker is removed, ends or joins", { timeout: 120_000 }, async (t) => {
  const hub = await Hub.start({ workers: 2, spawn });
  const settings = { ...config, stop: { env_steps: 16_384 } };
  assert.equal(await hub.train(settings), hub.status.run);
  const results = hub.results();
  await results.next();
  await hub.removeWorker(hub.workers[0].id);
  // The run is paused, so that it cannot end before the invited worker has joined.
  await hub.pause();
  const guest = new Worker({ ...await hub.invite(), name: "guest", spawn });
  while (!hub.workers.some(({ name }) => name === "guest")) await setImmediate();
  await hub.resume();
  const rest = await all(results);
  assert.deepEqual(rest.map(({ iteration }) => iteration), Array.from({ length: 31 }, (_, index) => index + 2));
  assert.equal(hub.status.phase, "finished");
  assert.equal(hub.weightsHash, hashOfProgram(t, settings));
  const policy = await hub.policy(), env = new VectorEnv("CartPole-v1", { numEnvs: 2, seed: 1 });
  assert.equal(policy.computeActions(env.reset(), { deterministic: true }).actions.length, 2);
  // The hub detects that the other end of its port is closed.
  guest.free();
  while (hub.workers.some(({ name }) => name === "guest")) await setImmediate();
  hub.free();
  for (const call of [() => hub.pause(), () => hub.invite(), () => hub.file("policy.json"), () => hub.policy()]) {
    await assert.rejects(call(), { kind: "hub", message: /freed/ });
  }
});

test("an impossible request to a hub is an error, and a run pauses, resumes and stops", async () => {
  const hub = await Hub.start({ workers: 1, spawn });
  await assert.rejects(hub.train({ ...config, env: "None-v0" }), { kind: "hub", message: /None-v0/ });
  await assert.rejects(hub.pause(), { kind: "hub", message: /there is no run to pause/ });
  for (const call of [() => hub.file("policy.json"), () => hub.policy()]) await assert.rejects(call(), { kind: "hub", message: /cannot be saved/ });
  await assert.rejects(hub.file("notes.txt"), { kind: "hub", message: /notes\.txt.*policy\.json/ });
  await assert.rejects(hub.invite("guest"), { kind: "hub", message: /guest.*worker/ });
  // Calls with arguments other than strings do not reach the hub, and do not consume the answers of later calls.
  for (const wrong of [3, null, ["worker"]]) {
    await assert.rejects(hub.invite(wrong), { kind: "config", field: "role" });
    await assert.rejects(hub.file(wrong), { kind: "config", field: "name" });
  }
  const [invited, missing] = await Promise.allSettled([hub.invite("viewer"), hub.invite("guest")]);
  assert.match(invited.value.token, /^[0-9a-f]{64}$/);
  assert.match(missing.reason.message, /guest/);
  invited.value.port.close();
  await assert.rejects(hub.train(), { kind: "config", field: "config" });
  await hub.train({ ...config, stop: { env_steps: 1e9 } });
  await assert.rejects(hub.train(config), { kind: "hub", message: /a run is in progress/ });
  await hub.pause();
  assert.equal(hub.status.phase, "paused");
  await hub.resume();
  await hub.results().next();
  await hub.addWorker();
  await hub.stop();
  assert.deepEqual([hub.status.phase, (await all(hub.results())).length >= 0], ["stopped", true]);
});

test("a worker that cannot be started, or does not become ready, is reported and replaced", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const notices = [], silent = { postMessage() {}, terminate() { this.isOver = true; } };
  let calls = 0, isSilent;
  const waits = new Promise((resolve) => (isSilent = resolve));
  const hub = await Hub.start({
    workers: 1,
    onNotice: (text) => notices.push(text),
    spawn: () => {
      calls += 1;
      if (calls === 2) throw new Error("no more threads");
      if (calls !== 3) return spawn();
      isSilent();
      return silent;
    },
  });
  await hub.train({ ...config, stop: { env_steps: 1024 } });
  await waits;
  t.mock.timers.tick(60_000);
  assert.equal((await all(hub.results())).at(-1).envSteps, 1024);
  assert.ok(silent.isOver && notices.some((text) => /no more threads.*another one takes its place/.test(text)), notices.join("\n"));
  assert.ok(notices.some((text) => /not ready after 60 s.*another one takes its place/.test(text)), notices.join("\n"));
});

test("an environment of JavaScript is trained in", async () => {
  const hub = await Hub.start({ workers: 2, spawn });
  await hub.train({ ...config, env: "Corridor-v0" });
  const results = await all(hub.results());
  assert.ok(results.at(-1).envSteps === 4096 && results.at(-1).episodeReturnMean > 0);
});

for (const [fault, message] of [["throws", /the motor is stuck/], ["nan", /reward/], ["length", /observation/]]) {
  test(`a failing environment in JavaScript is reported, and the run continues: ${fault}`, async () => {
    const hub = await Hub.start({ workers: 1, spawn });
    await hub.train({ ...config, num_slots: 2, env: "Faulty-v0", env_config: { fault }, stop: { env_steps: 1024 } });
    const results = await all(hub.results());
    assert.equal(results.at(-1).envSteps, 1024);
    assert.ok(hub.status.failures > 0, JSON.stringify(hub.status));
    assert.match(hub.status.lastFailure, message);
  });
}

test("a run whose environment always fails ends with an error, whose message has the place", async () => {
  const hub = await Hub.start({ workers: 1, spawn });
  await hub.train({ ...config, num_slots: 2, env: "Faulty-v0", env_config: { fault: "throws_always" } });
  await assert.rejects(all(hub.results()), { kind: "sample", step: undefined, message: /Faulty-v0.*episode \d+, step \d+.*the motor is stuck/s });
  assert.equal(hub.status.phase, "failed");
});

test("a worker whose environment hangs is reported and replaced, and the run continues", { timeout: 120_000 }, async (t) => {
  const notices = [];
  const hub = await Hub.start({ workers: 1, spawn, onNotice: (text) => notices.push(text) });
  const env_config = { fault: "hangs", flag: join(folder(t), "has_hung") };
  await hub.train({ ...config, num_slots: 2, env: "Faulty-v0", env_config, stop: { env_steps: 1024 }, hung_worker_timeout_s: 1 });
  assert.equal((await all(hub.results())).at(-1).envSteps, 1024);
  assert.ok(notices.some((text) => /makes no progress.*another one takes its place/.test(text)), notices.join("\n"));
});
