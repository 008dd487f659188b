import { engine } from "./engine.js";
import { RollmeshError } from "./error.js";
import { count, elements, json, text } from "./rows.js";
import { AgentsAdapter, type Draw, SingleAdapter } from "./env_adapter.js";
import type { Picture, Rows, Space, Spaces } from "./types.js";

/** The place and settings of an environment. */
export interface EnvContext {
  /** The index in its worker. */
  index: number;
  /** The settings, `env_config` of a worker. */
  config: Record<string, unknown>;
}

/** Draws a random number in [0, 1), which follows from seed, environment, episode and step. Only for calls during `reset` and `step`. */
export type Random = () => number;

/** A number for a discrete space, else an array. */
export type EnvAction = number | number[] | Float32Array;

/** The result of a step of an {@link Env}. */
export interface Step {
  observation: Rows;
  reward: number;
  /** Whether the step has reached a terminal state. */
  terminated?: boolean;
  /** Whether the episode was truncated for another reason. */
  truncated?: boolean;
}

/**
 * An environment with one agent. All its random numbers must come from `random`, so that the same seed gives the same bits. The worker
 * resets it; it never resets itself.
 */
export interface Env {
  observationSpace: Space;
  actionSpace: Space;
  reset(random: Random): Rows;
  step(action: EnvAction, random: Random): Step;
  /** Returns the picture of its state. */
  render?(): Picture | undefined;
  /** Releases its resources. */
  close?(): void;
}

/** The result of a step of a {@link MultiAgentEnv}, by agent. `__all__` ends the episode of all agents. */
export interface MultiAgentStep {
  /** The observations of the agents that act next. */
  observations: Record<string, Rows>;
  rewards: Record<string, number>;
  terminateds?: Record<string, boolean>;
  truncateds?: Record<string, boolean>;
}

/** An environment with several agents, which may come and go. Agents with an observation act next, and no others. */
export interface MultiAgentEnv {
  /** The names of all agents that may ever appear. */
  agents: string[];
  observationSpaces: Record<string, Space>;
  actionSpaces: Record<string, Space>;
  reset(random: Random): Record<string, Rows>;
  step(actions: Record<string, EnvAction>, random: Random): MultiAgentStep;
  render?(): Picture | undefined;
  close?(): void;
}

/** The settings of a registered environment. */
export interface EnvOptions {
  /** The number of steps after which an episode is truncated. */
  maxEpisodeSteps?: number;
}

/** A registered environment. */
export interface EnvInfo {
  name: string;
  maxEpisodeSteps: number | null;
  /** The spaces of a single agent. */
  spaces?: Spaces;
  /** The spaces by agent, for an environment with several agents. */
  agents?: Record<string, Spaces>;
}

/** A wasm module that creates environments by name. */
interface EnvModule {
  registerEnv(name: string, create: (context: string) => unknown, maxEpisodeSteps: number | undefined, hasAgents: boolean): void;
  envRandom: Draw;
}

/** The functions that register this page's environments in a module, by name. */
const registered = new Map<string, (module: EnvModule) => void>();

/** Registers all environments written in JavaScript in another module. */
export function registerAll(module: EnvModule): void {
  for (const register of registered.values()) register(module);
}

type Adapter = SingleAdapter | AgentsAdapter;

function register(name: string, adapt: (context: EnvContext, draw: Draw) => Adapter, { maxEpisodeSteps }: EnvOptions, hasAgents: boolean): void {
  text("name", name);
  if (maxEpisodeSteps !== undefined) count("maxEpisodeSteps", maxEpisodeSteps, 1);
  const register = (module: EnvModule) => {
    const create = (context: string) => adapt(JSON.parse(context) as EnvContext, module.envRandom);
    module.registerEnv(name, create, maxEpisodeSteps, hasAgents);
  };
  register(engine());
  registered.set(name, register);
}

/**
 * Registers an environment by name for workers, {@link VectorEnv}s and algorithms that are created afterwards. It replaces one that was
 * registered under the name before.
 *
 * Observations and actions are of box, discrete, multi_discrete and multi_binary spaces, boxes of observations with elements of
 * float32, float64 or uint8, those of actions with float32.
 *
 * @throws {RollmeshError} of kind `config` for the name of a built-in environment
 */
export function registerEnv(name: string, create: (context: EnvContext) => Env, options: EnvOptions = {}): void {
  register(name, (context, draw) => new SingleAdapter(create(context), draw), options, false);
}

/** Registers like {@link registerEnv}, but an environment with several agents, which workers sample. */
export function registerMultiAgentEnv(name: string, create: (context: EnvContext) => MultiAgentEnv, options: EnvOptions = {}): void {
  register(name, (context, draw) => new AgentsAdapter(create(context), draw), options, true);
}

/** Returns all registered environments, built-in ones and JavaScript's. */
export function envs(): EnvInfo[] {
  return JSON.parse(engine().describeEnvs(undefined, "{}")) as EnvInfo[];
}

/** Returns the description of an environment with these settings. */
export function envInfo(name: string, config: Record<string, unknown> = {}): EnvInfo {
  const [info] = JSON.parse(engine().describeEnvs(text("name", name), json(config))) as EnvInfo[];
  if (!info) throw new RollmeshError("config", `there is no environment '${name}'`);
  return info;
}

/** Returns the number of elements of an observation or an action. */
export { elements };
