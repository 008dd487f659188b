//! Lists the settings of a run, one per row.

use core::ops::Bound;

use super::setting::{
    Field,
    Kind::{
        self, Choice, Fields, Flag, Group, List, Map, Null, Number, Object, OneOf, Space, Tagged, Text, Tuple, Variant,
        Whole,
    },
    Setting,
};
use crate::{
    filter::FilterKind,
    ids::SlotId,
    kernels::nets::Activation,
    policy::WeightsInitializer,
    run::{EvaluationConfig, MAX_LOCAL_WORKERS, RunConfig},
};

/// A group of related settings.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// Its heading.
    pub title: &'static str,
    /// Its settings. Those of a group follow the group.
    pub settings: &'static [Setting],
}

/// A century, in seconds.
const MAX_WALL_S: f64 = 3.2e9;
/// A second, in microseconds.
const MAX_INFERENCE_WAIT: u64 = 1_000_000;
/// A day, in microseconds.
const MAX_DEADLINE: u64 = 86_400_000_000;
/// Maximum size of a batch that does not wait for every slot. A hub holds it in memory, together with the start of the next
/// one.
const MAX_BATCH_ENV_STEPS: u64 = 1 << 24;

const SLOTS: Kind = Whole { min: 1, max: SlotId::MAX_PER_RUN as u64 };
const FRAGMENT: Kind = Whole { min: 1, max: RunConfig::MAX_FRAGMENT_LENGTH as u64 };
const WORKERS: Kind = Whole { min: 0, max: MAX_LOCAL_WORKERS as u64 };
const FROM_1: Kind = Whole { min: 1, max: u64::MAX };
const EVALUATION_ENVS: Kind = Whole { min: 1, max: EvaluationConfig::MAX_ENVS as u64 };
const WIDTH: Kind = Whole { min: 1, max: RunConfig::MAX_HIDDEN as u64 };
const EXTENT: Kind = Whole { min: 1, max: 1_024 };
const ACTIVATIONS: Kind = Choice(&Activation::NAMES);
const SIDES: Kind = OneOf(&[EXTENT, Tuple(&[EXTENT, EXTENT], "[height, width]")]);
const FILTER: Kind = Tuple(&[EXTENT, SIDES, SIDES], "[filters, kernel, stride], such as [16, 3, 1]");
const ACTIVATION: Field = Field::new("activation", &[ACTIVATIONS]);
/// The layers of a model of the user's own, see [`LayerDescription`](crate::policy::LayerDescription).
const LAYERS: Kind = List(&Tagged(
    "layer",
    &[
        ("dense", &[Field::required("outputs", &[WIDTH]), ACTIVATION]),
        (
            "conv",
            &[
                Field::required("filters", &[WIDTH]),
                Field::required("kernel", &[SIDES]),
                Field::required("stride", &[SIDES]),
                Field::new("is_padded", &[Flag]),
                ACTIVATION,
            ],
        ),
        ("layer_norm", &[ACTIVATION]),
        ("lstm", &[Field::required("cells", &[WIDTH])]),
        ("gru", &[Field::required("cells", &[WIDTH])]),
    ],
));
const MODEL: Kind =
    Fields(&[Field::new("trunk", &[LAYERS]), Field::new("policy", &[LAYERS]), Field::new("value", &[LAYERS])]);
const POLICY: Kind = Fields(&[
    Field::new("policy", &[Text]),
    Field::new("observation_space", &[Null, Space]),
    Field::new("action_space", &[Null, Space]),
    Field::new("config", &[Object]),
]);
const SIZE: Kind = Whole { min: 1, max: u16::MAX as u64 };
const FILTERS: Kind = Choice(&[
    FilterKind::NoFilter.name(),
    FilterKind::MeanStdFilter.name(),
    FilterKind::ConcurrentMeanStdFilter.name(),
]);
const ESTIMATORS: Kind = Choice(&["is", "pdis", "wis", "simulation", "trajectory_is", "cwpdis", "dm", "dr"]);

const fn row(path: &'static str, kinds: &'static [Kind], help: &'static str) -> Setting {
    Setting::new(path, kinds, help)
}

/// All settings of a run.
pub const SECTIONS: &[Section] = &[
    Section { title: "Environment", settings: ENVIRONMENT },
    Section { title: "Run", settings: RUN },
    Section { title: "Algorithm and policies", settings: POLICIES },
    Section { title: "Observations, rewards and actions", settings: TRANSFORMS },
    Section { title: "Sampling", settings: SAMPLING },
    Section { title: "Evaluation and checkpoints", settings: EVALUATION },
    Section { title: "Environment processes", settings: PROCESSES },
    Section { title: "Logged data", settings: DATA },
    Section { title: "This machine", settings: HOST },
];

const ENVIRONMENT: &[Setting] = &[
    row("env", &[Null, Text], "Registered name of the environment."),
    row("env_config", &[Object], "Settings of the environment."),
    row(
        "horizon",
        &[Null, Kind::AT_LEAST_1],
        "Steps after which an episode is cut; null for the environment's own limit.",
    ),
    row(
        "horizon_means",
        &[Choice(&["truncated", "legacy_hard", "legacy_soft"])],
        "What an episode that reaches the horizon counts as.",
    ),
    row("no_done_at_end", &[Flag], "With a legacy horizon: no recorded row says that its episode has ended."),
    row(
        "replay_mismatch",
        &[Choice(&["fail", "abandon"])],
        "What becomes of an open episode that another worker cannot replay.",
    ),
];

const RUN: &[Setting] = &[
    row("seed", &[Kind::WHOLE], "Seed of everything random."),
    row("num_workers", &[WORKERS], "Local worker processes; with 0 the hub's process samples."),
    row("num_envs", &[SLOTS], "Environments (slots) that share one home worker."),
    row("num_slots", &[Null, SLOTS], "Slots of the run; null for num_envs for each worker, at least one worker's."),
    row(
        "device_rows",
        &[Flag],
        "Whether policies may act on GPUs, whose rows have other bits than those of CPUs: the run is not reproducible then.",
    ),
    row(
        "weights_dtype",
        &[Choice(&["float32", "float16"])],
        "Element type of the weights that workers act with; float16 halves the bytes for each worker, and the rows are others.",
    ),
    row(
        "inference",
        &[Choice(&["local", "server"])],
        "Where policies compute: each worker by itself, or server for a worker that acts for all, else the hub.",
    ),
    row("inference_batch", &[Group], "How the rows of workers are put together with inference = server."),
    row("inference_batch.min_rows", &[Kind::AT_LEAST_1], "Rows for which a worker that acts for others waits."),
    row("inference_batch.max_rows", &[Kind::AT_LEAST_1], "Most rows that it computes in one pass."),
    row(
        "inference_batch.wait_us",
        &[Whole { min: 0, max: MAX_INFERENCE_WAIT }],
        "Microseconds that the oldest row waits at most for others.",
    ),
    row(
        "preset",
        &[Choice(&["auto", "none"])],
        "auto: settings known to work for environment and algorithm come first.",
    ),
    row("stop", &[Group], "When the run ends: at the first of these."),
    row(
        "stop.episode_return_mean",
        &[Null, Kind::FINITE],
        "The run is solved when the mean return of the last 100 episodes reaches this.",
    ),
    row("stop.env_steps", &[FROM_1], "Env steps after which the run ends."),
    row(
        "stop.wall_s",
        &[Null, Number(Bound::Excluded(0.0), Bound::Included(MAX_WALL_S))],
        "Seconds, without pauses, after which the run ends.",
    ),
    row(
        "hung_worker_timeout_s",
        &[Kind::NOT_NEGATIVE],
        "Seconds without progress, over leases after the expiry of the lease, at which a local worker is killed and \
         replaced, a remote one is disconnected, and a run that samples by itself ends; 0 for never.",
    ),
];

const POLICIES: &[Setting] = &[
    row("algorithm", &[Null, Text], "Registered name of the algorithm; null for a run that learns nothing."),
    row("policy_config", &[Object], "Settings of the algorithm."),
    row("model_config", &[Group], "Settings of the networks."),
    row(
        "model_config.custom_model",
        &[Null, Text, MODEL],
        "Hidden layers of the user's own: a registered name, or lists of layers as trunk, policy and value.",
    ),
    row("model_config.fcnet_hiddens", &[List(&WIDTH)], "Widths of the hidden layers, after the convolutions."),
    row("model_config.fcnet_activation", &[ACTIVATIONS], "What the outputs of each hidden layer go through."),
    row("model_config.fcnet_use_layernorm", &[Flag], "Whether hidden layers are normalised before their activation."),
    row(
        "model_config.conv_filters",
        &[Null, Choice(&["auto"]), List(&FILTER)],
        "Convolutions of images, each [filters, kernel, stride]; auto: by the images' size; null: images are vectors.",
    ),
    row("model_config.conv_activation", &[ACTIVATIONS], "What the outputs of each convolution go through."),
    row("model_config.post_fcnet_hiddens", &[List(&WIDTH)], "Widths of more hidden layers, after fcnet_hiddens."),
    row("model_config.post_fcnet_activation", &[ACTIVATIONS], "What the outputs of each of these go through."),
    row(
        "model_config.vf_share_layers",
        &[Flag],
        "Whether policy and value are heads over the same layers, as they always are with an LSTM.",
    ),
    row(
        "model_config.weights_initializer",
        &[Choice(&WeightsInitializer::NAMES)],
        "How the first weights are drawn; orthogonal: with PPO's usual gains.",
    ),
    row("model_config.use_lstm", &[Flag], "Whether an LSTM is between the hidden layers and the heads."),
    row("model_config.lstm_cell_size", &[Kind::AT_LEAST_1], "Cells of the LSTM."),
    row(
        "model_config.lstm_use_prev_action",
        &[Flag],
        "Whether the LSTM, or the gated recurrent units, see the previous action.",
    ),
    row("model_config.lstm_use_prev_reward", &[Flag], "Whether they see the previous reward."),
    row("model_config.use_gru", &[Flag], "Whether gated recurrent units are there instead."),
    row("model_config.gru_cell_size", &[Kind::AT_LEAST_1], "Cells of these."),
    row(
        "model_config.free_log_std",
        &[Flag],
        "Whether standard deviations of real actions are weights of their own instead of outputs.",
    ),
    row(
        "model_config.max_seq_len",
        &[Kind::AT_LEAST_1],
        "Steps of the longest sequence that a recurrent policy learns from.",
    ),
    row(
        "model_config.dim",
        &[SIZE],
        "Height and width of pictures of a game that is wrapped as DeepMind's agents see it.",
    ),
    row("model_config.framestack", &[Flag, SIZE], "Pictures that such a game stacks: true for 4, false for 1."),
    row(
        "policies",
        &[Map(&POLICY)],
        "Policies by id, each with policy, spaces and config; empty for one, default_policy.",
    ),
    row("policy_mapping_fn", &[Null, Text], "Registered name of the function that maps agents to policies."),
    row("policies_to_train", &[Null, List(&Text)], "Ids of the policies that learn; null for all."),
    row("policy_map_capacity", &[Kind::AT_LEAST_1], "Policies kept in memory; others are evicted."),
    row("policy_states_are_swappable", &[Flag], "Whether policies of one kind may share an object."),
    row("explore", &[Flag], "Sample actions; false for the most likely ones."),
];

const TRANSFORMS: &[Setting] = &[
    row("observation_filter", &[FILTERS], "How observations are normalised."),
    row("observation_fn", &[Null, Text], "Registered name of the function that observations go through first."),
    row(
        "preprocessor_pref",
        &[Choice(&["auto", "deepmind", "rllib", "none"])],
        "How observations are preprocessed. auto: Atari's games as for DeepMind's agents, others by space.",
    ),
    row(
        "clip_rewards",
        &[Null, Flag, Kind::POSITIVE],
        "Clip rewards before postprocessing: true to their sign, a number to that range; null: as the game needs it.",
    ),
    row("clip_actions", &[Flag], "Clip actions to the space before they are taken."),
    row("normalize_actions", &[Flag], "Policies act within [-1, 1] and actions are scaled to the space."),
];

const SAMPLING: &[Setting] = &[
    row(
        "mode",
        &[Choice(&["synchronous"]), Variant],
        "Which fragments make a batch, and how old their weights may be.",
    ),
    row("mode.asynchronous", &[Group], "A batch is what is committed first; no batch waits for a straggler."),
    row(
        "mode.asynchronous.batch_env_steps",
        &[Whole { min: 0, max: MAX_BATCH_ENV_STEPS }],
        "Env steps of a batch, rounded up to whole fragments; 0 for a fragment of every slot.",
    ),
    row("mode.asynchronous.max_staleness", &[Kind::WHOLE], "Versions that a fragment's weights may be behind."),
    row("mode.deadline", &[Group], "A batch is what is committed when the iteration's time is up."),
    row("mode.deadline.after", &[Whole { min: 0, max: MAX_DEADLINE }], "Time of an iteration in microseconds."),
    row("mode.deadline.max_staleness", &[Kind::WHOLE], "Versions that a fragment's weights may be behind."),
    row(
        "rollout_fragment_length",
        &[FRAGMENT, Choice(&["auto"])],
        "Steps of a slot per fragment; auto divides train_batch_size.",
    ),
    row("train_batch_size", &[Kind::AT_LEAST_1], "Rows of an update, which auto divides among all slots."),
    row("batch_mode", &[Choice(&["truncate_episodes", "complete_episodes"])], "Whether episodes may be cut."),
    row("count_steps_by", &[Choice(&["env_steps", "agent_steps"])], "What a fragment's length counts."),
    row("compress_observations", &[Flag, Choice(&["bulk"])], "Compress observations: true by row, bulk by column."),
    row("callbacks", &[List(&Text)], "Registered names of callbacks, in the order of their calls."),
    row("sample_async", &[Flag], "Sample on a thread of its own, ahead of the calls.")
        .fixed("workers with leases sample ahead by themselves: leave it out"),
    row("fake_sampler", &[Flag], "Return the first sample again and again, to measure what follows.")
        .fixed("leases are sampled: leave it out"),
];

const EVALUATION: &[Setting] = &[
    row("evaluation", &[Group], "Evaluation alongside the run, without influence on its rows."),
    row("evaluation.interval", &[Kind::WHOLE], "Iterations between two evaluations; 0 for none."),
    row("evaluation.episodes", &[Kind::COUNT], "Episodes of an evaluation; 0 for no evaluation at all."),
    row(
        "evaluation.horizon",
        &[Null, Kind::AT_LEAST_1],
        "Env steps after which an episode of an evaluation is truncated.",
    ),
    row("evaluation.num_envs", &[EVALUATION_ENVS], "Sub-environments of an evaluation."),
    row("evaluation.seed", &[Null, Kind::WHOLE], "Seed of an evaluation's episodes and actions; null for the run's."),
    row("evaluation.render", &[Flag], "Write the first episode of each evaluation as a GIF into the run's directory."),
    row("evaluation.reward_key", &[Text], "The signal that returns are sums of: reward, reward/AGENT or infos/NAME."),
    row("evaluation.init", &[Null, Group], "Registered function that runs first in an evaluation worker's process."),
    row("evaluation.init.name", &[Text], "Its name."),
    row("evaluation.init.arguments", &[Object], "Its arguments."),
    row("evaluation.timeout_s", &[Kind::AT_LEAST_1], "Seconds without progress after which an evaluation is given up."),
    row(
        "checkpoint_interval",
        &[FROM_1],
        "Iterations between two checkpoints; one is saved every ten seconds as well.",
    ),
];

const PROCESSES: &[Setting] = &[
    row("remote_worker_envs", &[Flag], "Run every environment in a process of its own."),
    row("remote_env_batch_wait_ms", &[Kind::COUNT], "Milliseconds that a poll waits for all environment processes."),
    row("remote_env_timeout_ms", &[Kind::AT_LEAST_1], "Milliseconds that a call of an environment process may take."),
    row("remote_env_memory_mb", &[Kind::COUNT], "MiB of data that an environment process may take; 0 for no limit.")
        .host(),
    row("restart_failed_sub_environments", &[Flag], "Restart an environment that failed, and drop its episode."),
    row("create_env_on_local_worker", &[Flag], "Make environments in the local worker although there are others."),
];

const DATA: &[Setting] = &[
    row(
        "input",
        &[Text, List(&Text), Map(&Kind::NOT_NEGATIVE)],
        "Where batches come from: sampler, a registered input, files or a mixture.",
    )
    .host(),
    row("input_evaluation", &[List(&ESTIMATORS)], "How policies are evaluated where batches are read.")
        .fixed("only batches that are read are judged: leave it out"),
    row("q_model_config", &[Object], "Settings of the model of values that dm and dr need."),
    row("legacy_step_estimates", &[Flag], "Estimate by is and wis as RLlib did before version 2."),
    row("io_config", &[Object], "Settings of input and output."),
    row("dataset_shards", &[Null, Kind::AT_LEAST_1], "Shards of the input; null for one per worker."),
];

const HOST: &[Setting] = &[
    row("output", &[Null, Text], "Registered output or directory that batches are written to.").host(),
    row("log_dir", &[Null, Text], "Directory for outputs that name none.").host(),
    row("log_level", &[Choice(&["ERROR", "WARN", "INFO", "DEBUG"])], "What is logged."),
    row(
        "monitor_path",
        &[Null, Text],
        "Directory in which episodes are recorded: a GIF and a line of statistics each.",
    )
    .host(),
    row("extra_environs", &[Map(&Text)], "Environment variables of child processes.").host(),
    row("host", &[Group], "What belongs to the machine on which the run is started."),
    row("host.device", &[Text], "Where the learner computes: cpu, cuda:N or metal.").host(),
    row("host.worker", &[Null, Group], "What each local worker needs of the machine; null: as the hub says.").host(),
    row("host.worker.cpus", &[Kind::COUNT], "CPUs of its own; 0 for wherever the system puts it.").host(),
    row(
        "host.worker.gpus",
        &[Null, Kind::COUNT],
        "GPUs of its own; null for all that its launcher sees. Policies act on the CPU unless device names one.",
    )
    .host(),
    row("host.worker.device", &[Null, Text], "Where it acts: cuda:N or metal; null for the CPU.").host(),
    row("host.worker.memory", &[Null, Kind::WHOLE], "Bytes that it may take for data; null for no limit.").host(),
    row("host.worker.resources", &[Map(&Kind::COUNT)], "Amount of each declared resource.").host(),
    row("host.evaluator", &[Group], "What an evaluation worker's process needs of the machine."),
    row("host.evaluator.cpus", &[Kind::COUNT], "CPUs of its own; 0 for wherever the system puts it.").host(),
    row(
        "host.evaluator.gpus",
        &[Null, Kind::COUNT],
        "GPUs of its own; null for all that its launcher sees. Policies act on the CPU unless device names one.",
    )
    .host(),
    row("host.evaluator.device", &[Null, Text], "Where it acts: cuda:N or metal; null for the CPU.").host(),
    row("host.evaluator.memory", &[Null, Kind::WHOLE], "Bytes that it may take for data; null for no limit.").host(),
    row("host.evaluator.resources", &[Map(&Kind::COUNT)], "Amount of each declared resource.").host(),
    row("host.evaluator_is_nice", &[Flag], "Whether that process has a lower priority than other programs.").host(),
    row("host.tensorboard", &[Flag], "Whether metrics are also written for TensorBoard, in the run's directory.")
        .host(),
    row("host.mlflow", &[Null, Text], "Directory of an MLflow store that metrics are also written to.").host(),
];
