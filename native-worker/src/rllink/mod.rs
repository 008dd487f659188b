//! A worker for an algorithm of RLlib that serves external environments over RLlink, the protocol of its
//! `EnvRunnerServerForExternalInference`. The worker samples with the algorithm's module and sends the episodes.
//!
//! Pickled data is not supported: the algorithm's configuration is not requested, and arrays of objects are refused.

mod episodes;
mod link;
mod module;
#[cfg(test)]
mod tests;

use std::{io, net::TcpStream, thread::sleep, time::Duration};

use rollmesh_core::{
    batch::BatchError,
    column::ColumnError,
    ids::PolicyId,
    policy::PolicyError,
    weights::WeightsError,
    worker::{RolloutConfig, RolloutError, RolloutWorker, SetupError},
};

pub(crate) use self::link::LinkError;
use self::{episodes::Episodes, link::RunnerLink, module::Module};

/// Pauses between attempts to connect.
const PAUSE: Duration = Duration::from_secs(1);

/// The settings with which a worker serves an algorithm.
pub(crate) struct RllinkConfig {
    /// `HOST:PORT` of the algorithm's env runner.
    pub(crate) server: String,
    /// Settings of the worker; its policy follows the algorithm's module.
    pub(crate) rollout: RolloutConfig,
    /// Activation of the module's hidden layers, which its tensors do not show.
    pub(crate) activation: String,
    /// Env steps of a message.
    pub(crate) env_steps: u32,
}

/// An error of serving an algorithm.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RllinkError {
    /// The connection or a message failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A tensor of the module belongs to no dense layer.
    #[error(
        "RLlib's module has the tensor '{0}', which belongs to no dense layer: only modules of dense layers (MLP) act here"
    )]
    NotDense(String),
    /// A layer of the module lacks a tensor, or has one of another shape.
    #[error("RLlib's module has no {1} of layer '{0}': only dense layers with weights and biases act here")]
    Layer(String, &'static str),
    /// The module has no policy head.
    #[error("RLlib's module has no tensors 'pi.net.mlp.…': only modules with a policy head act here")]
    NoHead,
    /// The environment has spaces that the module would see differently.
    #[error(
        "{0} has {1}: RLlib's module sees the worker's rows only for vectors as observations, and Discrete or Box actions"
    )]
    Spaces(String, &'static str),
    /// The worker could not be created.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The worker failed.
    #[error(transparent)]
    Rollout(#[from] RolloutError),
    /// The policy failed.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The tensors are not valid weights.
    #[error("the weights of RLlib's module cannot act here: {0}")]
    Weights(#[from] WeightsError),
    /// The rows lack a column.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A column is not an array.
    #[error(transparent)]
    Column(#[from] ColumnError),
}

impl RllinkError {
    /// Returns whether another connection may succeed.
    fn is_lost(&self) -> bool {
        matches!(self, Self::Link(LinkError::Lost(_)))
    }
}

/// Serves the algorithm, over one connection after another, until an error that another connection would not mend. `make`
/// builds the worker and `say` prints messages for users.
pub(crate) fn serve(
    config: &RllinkConfig,
    make: impl Fn(RolloutConfig) -> Result<RolloutWorker, SetupError>,
    say: impl Fn(&str),
) -> RllinkError {
    let mut sampler = None;
    loop {
        let Err(error) = connect(config).and_then(|link| sample(link, config, &mut sampler, &make, &say));
        if !error.is_lost() {
            return error;
        }
        say(&format!("{error}; trying again in {} s", PAUSE.as_secs()));
        sleep(PAUSE);
    }
}

fn connect(config: &RllinkConfig) -> Result<RunnerLink<TcpStream>, RllinkError> {
    let lost = |error: io::Error| LinkError::Lost(format!("cannot reach RLlib at {}: {error}", config.server));
    let stream = TcpStream::connect(&config.server).map_err(lost)?;
    // A socket that refuses the option works all the same.
    let _ = stream.set_nodelay(true);
    Ok(RunnerLink::new(stream))
}

/// Samples and sends, with the weights that RLlib answers, until the connection is lost.
fn sample(
    mut link: RunnerLink<TcpStream>,
    config: &RllinkConfig,
    sampler: &mut Option<Sampler>,
    make: &impl Fn(RolloutConfig) -> Result<RolloutWorker, SetupError>,
    say: &impl Fn(&str),
) -> Result<std::convert::Infallible, RllinkError> {
    link.ping()?;
    let mut module = Module::read(&link.state()?)?;
    say(&format!("serving RLlib at {}: {} env steps a message", config.server, config.env_steps));
    loop {
        let sampler = match sampler {
            Some(sampler) => sampler,
            None => sampler.insert(Sampler::new(config, &module, make)?),
        };
        sampler.set_weights(&module)?;
        let episodes = sampler.sample(config.env_steps)?;
        module = Module::read(&link.exchange(&episodes)?)?;
    }
}

/// The worker that acts with the module.
struct Sampler {
    worker: RolloutWorker,
    /// The prefix of its episodes' ids, since a worker counts them from 0.
    id: String,
}

impl Sampler {
    fn new(
        config: &RllinkConfig,
        module: &Module,
        make: &impl Fn(RolloutConfig) -> Result<RolloutWorker, SetupError>,
    ) -> Result<Self, RllinkError> {
        let worker = make(module.rollout(config))?;
        let spaces = worker.spaces().remove(&PolicyId::DEFAULT);
        if let Some(problem) = spaces.as_ref().and_then(module::problem_of) {
            return Err(RllinkError::Spaces(config.rollout.env.clone().unwrap_or_default(), problem));
        }
        let id = getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()));
        Ok(Self { worker, id: format!("{id:016x}") })
    }

    /// Lets the worker act with the module; its value network stays.
    fn set_weights(&mut self, module: &Module) -> Result<(), RllinkError> {
        let mut weights = self.worker.weights(None)?;
        for own in weights.values_mut() {
            *own = module.weights_of(own)?;
        }
        Ok(self.worker.set_weights(&weights, None, None)?)
    }

    /// Samples at least this many env steps.
    fn sample(&mut self, env_steps: u32) -> Result<Episodes, RllinkError> {
        let mut episodes = Episodes::default();
        while episodes.env_steps < u64::from(env_steps) {
            let batch = self.worker.sample()?;
            let batch = batch.single()?;
            let policy = self.worker.policy_mut(&PolicyId::DEFAULT)?;
            episodes.add(batch, policy, &self.id)?;
        }
        Ok(episodes)
    }
}
