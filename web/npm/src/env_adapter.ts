import { RollmeshError, shown } from "./error.js";
import { elements } from "./rows.js";
import type { Env, EnvAction, MultiAgentEnv, Random } from "./env.js";
import type { Picture, Space } from "./types.js";

/** The element types of boxes for which the wasm module has rows. */
const BOX_TYPES = { observationSpace: ["float32", "float64", "uint8"], actionSpace: ["float32"] } as const;

/** Draws a random number for the environment that a wasm module is resetting or stepping; returns `undefined` at other times. */
export type Draw = () => number | undefined;

function drawing(draw: Draw): Random {
  return () => {
    const drawn = draw();
    if (drawn === undefined) throw new RollmeshError("environment", "random is for the calls of reset and step that it was given to");
    return drawn;
  };
}

/** An environment with one agent, in the form that the wasm module calls: its answers are flags, a reward and an observation. */
export class SingleAdapter {
  readonly #env: Env;
  readonly #observations: Space;
  readonly #actions: Space;
  readonly #random: Random;
  readonly spaces: string;

  constructor(env: Env, draw: Draw) {
    object(env, "the factory");
    this.#env = env;
    this.#random = drawing(draw);
    this.#observations = checkedSpace(env.observationSpace, "observationSpace");
    this.#actions = checkedSpace(env.actionSpace, "actionSpace");
    this.spaces = JSON.stringify([{ agent: 0, observation: this.#observations, action: this.#actions }]);
  }

  reset(): Float64Array {
    return this.#answer("reset", 0, 0, calling("reset", () => this.#env.reset(this.#random)));
  }

  step(actions: Float64Array): Float64Array {
    const action = toAction(actions, this.#actions);
    const step = object(calling("step", () => this.#env.step(action, this.#random)), "step");
    const flags = flag(step.terminated, "terminated") | (flag(step.truncated, "truncated") << 1);
    return this.#answer("step", flags, finite(step.reward, "reward"), step.observation);
  }

  render(): { width: number; height: number; rgb: Uint8Array } | undefined {
    return rendered(this.#env);
  }

  close(): void {
    this.#env.close?.();
  }

  #answer(method: string, flags: number, reward: number, observation: unknown): Float64Array {
    const answer = new Float64Array(2 + elements(this.#observations));
    answer[0] = flags;
    answer[1] = reward;
    writeRow(answer.subarray(2), observation, this.#observations, `${method} returned an observation`, "observation");
    return answer;
  }
}

/** An agent that may appear. */
interface AgentSpaces {
  name: string;
  observation: Space;
  action: Space;
}

/**
 * An environment with several agents, like {@link SingleAdapter}: an answer has the flags of all, then per agent its number, whether it
 * observes, a reward, flags and an observation.
 */
export class AgentsAdapter {
  readonly #env: MultiAgentEnv;
  readonly #agents: AgentSpaces[];
  readonly #random: Random;
  readonly spaces: string;

  constructor(env: MultiAgentEnv, draw: Draw) {
    object(env, "the factory");
    this.#env = env;
    this.#random = drawing(draw);
    if (!Array.isArray(env.agents)) throw fault("agents", "agents is no list of names");
    this.#agents = env.agents.map((name) => ({
      name: String(name),
      observation: checkedSpace(env.observationSpaces?.[name], "observationSpace", name),
      action: checkedSpace(env.actionSpaces?.[name], "actionSpace", name),
    }));
    this.spaces = JSON.stringify(this.#agents.map(({ name, ...spaces }) => ({ agent: name, ...spaces })));
  }

  reset(): Float64Array {
    return this.#answer("reset", { observations: calling("reset", () => this.#env.reset(this.#random)) });
  }

  step(actions: Float64Array): Float64Array {
    const byAgent: Record<string, EnvAction> = {};
    for (let at = 0; at < actions.length; ) {
      const { name, action } = this.#agents[actions[at] as number] as AgentSpaces;
      const end = at + 1 + elements(action);
      byAgent[name] = toAction(actions.subarray(at + 1, end), action);
      at = end;
    }
    return this.#answer("step", object(calling("step", () => this.#env.step(byAgent, this.#random)), "step"));
  }

  render(): { width: number; height: number; rgb: Uint8Array } | undefined {
    return rendered(this.#env);
  }

  close(): void {
    this.#env.close?.();
  }

  #answer(method: string, answer: { [key: string]: unknown }): Float64Array {
    const part = (key: string): Record<string, unknown> => {
      const given = answer[key] ?? {};
      if (typeof given !== "object") throw fault(key, `${method}: ${key} is ${shown(given)}, not an object by agent`);
      for (const name of Object.keys(given)) {
        const known = name === "__all__" || this.#agents.some((agent) => agent.name === name);
        if (!known) throw fault(key, `${method}: ${key} has '${name}', which is not among agents`);
      }
      return given as Record<string, unknown>;
    };
    const [observations, rewards] = [part("observations"), part("rewards")];
    const [terminateds, truncateds] = [part("terminateds"), part("truncateds")];
    const flags = (name: string) => flag(terminateds[name], "terminateds", name) | (flag(truncateds[name], "truncateds", name) << 1);
    const out = [flags("__all__")];
    this.#agents.forEach(({ name, observation }, index) => {
      if (![observations, rewards, terminateds, truncateds].some((of) => name in of)) return;
      const row = new Float64Array(name in observations ? elements(observation) : 0);
      if (name in observations) {
        writeRow(row, observations[name], observation, `${method} returned an observation of agent '${name}'`, "observation");
      }
      const reward = name in rewards ? finite(rewards[name], "reward", name) : 0;
      out.push(index, name in observations ? 1 : 0, reward, flags(name), ...row);
    });
    return Float64Array.from(out);
  }
}

function fault(field: string | undefined, message: string, cause?: unknown): RollmeshError {
  return new RollmeshError("environment", message, { cause, ...(field === undefined ? {} : { field }) });
}

/** Calls the user's code. */
function calling<T>(method: string, call: () => T): T {
  try {
    return call();
  } catch (cause) {
    throw fault(undefined, `${method} threw ${cause instanceof Error ? `${cause.name}: ${cause.message}` : shown(cause)}`, cause);
  }
}

function object<T extends object>(answer: T, method: string): T & { [key: string]: unknown } {
  if (typeof answer !== "object" || answer === null) throw fault(undefined, `${method} returned ${shown(answer)}, not an object`);
  if (answer instanceof Promise) throw fault(undefined, `${method} returned a Promise: environments answer synchronously`);
  return answer as T & { [key: string]: unknown };
}

function flag(value: unknown, field: string, agent?: string): number {
  if (value === undefined || typeof value === "boolean") return value ? 1 : 0;
  throw fault(field, `${field}${agent === undefined ? "" : ` of agent '${agent}'`} is ${shown(value)}, not true or false`);
}

function finite(value: unknown, field: string, agent?: string): number {
  if (typeof value === "number" && Number.isFinite(value)) return value;
  throw fault(field, `the ${field}${agent === undefined ? "" : ` of agent '${agent}'`} is ${shown(value)}, not a finite number`);
}

function checkedSpace(space: Space | undefined, field: "observationSpace" | "actionSpace", agent?: string): Space {
  const whose = agent === undefined ? field : `${field} of agent '${agent}'`;
  if (typeof space !== "object" || space === null) throw fault(field, `${whose} is ${shown(space)}, not a space`);
  if (!["box", "discrete", "multi_discrete", "multi_binary"].includes(space.type)) {
    throw fault(field, `${whose} is of type '${space.type}'; environments in JavaScript have box, discrete, multi_discrete and multi_binary spaces`);
  }
  const types: readonly string[] = BOX_TYPES[field];
  if (space.type === "box" && !types.includes(space.dtype)) {
    throw fault(field, `${whose} is a box of ${space.dtype}; environments in JavaScript have boxes of ${types.join(", ")} there`);
  }
  return space;
}

/** Checks every element of a row and writes it. */
function writeRow(out: Float64Array, row: unknown, space: Space, what: string, field: string): void {
  const values = typeof row === "number" || typeof row === "boolean" ? [row] : row;
  if (typeof values !== "object" || values === null || typeof (values as ArrayLike<unknown>).length !== "number") {
    throw fault(field, `${what} that is ${shown(row)}, not a number or an array of numbers`);
  }
  const list = values as ArrayLike<unknown>;
  if (list.length !== out.length) {
    throw fault(field, `${what} with ${list.length} elements, the ${space.type} space has ${out.length}`);
  }
  for (let at = 0; at < out.length; at++) {
    const value = list[at];
    const number = typeof value === "boolean" || typeof value === "bigint" ? Number(value) : value;
    if (typeof number !== "number") throw fault(field, `${what} whose element ${at} is ${shown(value)}, not a number`);
    if (!Number.isFinite(number)) throw fault(field, `${what} whose element ${at} is ${number}`);
    const limit = choices(space, at);
    if (limit !== undefined && !(Number.isInteger(number) && number >= 0 && number < limit)) {
      throw fault(field, `${what} whose element ${at} is ${number}, not a whole number from 0 to ${limit - 1}`);
    }
    out[at] = number;
  }
}

/** Returns the number of values that an element may have, from 0; `undefined` for real numbers. */
function choices(space: Space, at: number): number | undefined {
  switch (space.type) {
    case "discrete": return space.n;
    case "multi_discrete": return space.nvec[at];
    case "multi_binary": return 2;
    case "box": return space.dtype === "uint8" ? 256 : undefined;
    default: return undefined;
  }
}

/** Returns an action for the user's code, without references to wasm memory. */
function toAction(action: Float64Array, space: Space): EnvAction {
  if (space.type === "discrete") return action[0] as number;
  return space.type === "box" ? Float32Array.from(action) : Array.from(action);
}

function rendered(env: { render?(): Picture | undefined }): { width: number; height: number; rgb: Uint8Array } | undefined {
  const picture = calling("render", () => env.render?.());
  if (!picture) return undefined;
  const { width, height, data } = object(picture, "render");
  if (data?.length !== 4 * width * height) {
    throw fault("render", `render returned ${data?.length} bytes for ${width} x ${height} pixels of 4 bytes each`);
  }
  return { width, height, rgb: Uint8Array.from({ length: 3 * width * height }, (_, at) => data[at + Math.floor(at / 3)] as number) };
}
