// A custom Web Worker that registers environments in JavaScript.
import { existsSync, writeFileSync } from "node:fs";

import { init, registerEnv, serve } from "rollmesh";

import { corridor } from "./support.mjs";

await init();
registerEnv("Corridor-v0", () => corridor(), { maxEpisodeSteps: 50 });
let steps = 0, faults = 0;
registerEnv("Faulty-v0", ({ config }) => {
  const env = corridor();
  return {
    ...env,
    observationSpace: env.observationSpace,
    actionSpace: env.actionSpace,
    reset: (random) => env.reset(random),
    step(action, random) {
      if (config.fault === "throws_always") throw new Error("the motor is stuck");
      const step = env.step(action, random);
      if (++steps % 40 !== 0 || ++faults > 3) return step;
      if (config.fault === "throws") throw new Error("the motor is stuck");
      if (config.fault === "hangs") {
        if (existsSync(config.flag)) return step;
        writeFileSync(config.flag, "");
        for (;;);
      }
      if (config.fault === "nan") return { ...step, reward: NaN };
      return { ...step, observation: [1, 2, 3] };
    },
  };
}, { maxEpisodeSteps: 50 });
await serve();
