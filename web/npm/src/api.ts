/// <reference lib="dom" preserve="true" />
/// <reference lib="esnext.disposable" preserve="true" />
export { Algorithm, type TrainConfig, type TrainResult } from "./algorithm.js";
export { type AnyBatch, MultiAgentBatch, type MultiAgentBatchObject, type Row, SampleBatch, type SampleBatchObject, batchHash } from "./batch.js";
export { CanvasRenderer } from "./canvas.js";
export { type ColumnReport, DataFile, type DataReport, type PolicyReport, type Spread } from "./data_file.js";
export { Freeable } from "./engine.js";
export {
  type Env, type EnvAction, type EnvContext, type EnvInfo, type EnvOptions, type MultiAgentEnv, type MultiAgentStep, type Random,
  type Step, envInfo, envs, registerEnv, registerMultiAgentEnv,
} from "./env.js";
export { type ErrorDetails, type ErrorKind, RollmeshError } from "./error.js";
export { Client as ExternalEnv, Episode as ExternalEpisode, EpisodeError, HubError } from "./rollmesh_client.js";
export { Hub, type HubOptions, type HubStatus, type HubWorker, type Invitation } from "./hub.js";
export { EvalWorker, type EvalOptions, type JoinOptions, Worker, type WorkerStatus } from "./hub_worker.js";
export { type ActOptions, type Actions, Policy, PolicyMap, type PolicyOptions } from "./policy.js";
export { type Episode, type Metrics, RolloutWorker, type WorkerEnv, coreFingerprint, rolloutHash } from "./rollout_worker.js";
export { serve } from "./thread.js";
export type * from "./types.js";
export { type Steps, VectorEnv, type VectorEnvOptions } from "./vector_env.js";
