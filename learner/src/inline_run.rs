//! A run in one thread: a hub in memory, the worker that makes its rows, and its learner. No sockets, no files.

use rollmesh_core::{
    hub::RunLoop,
    kernels::Kernels,
    protocol::{Phase, Role, Token, handshake::Identity, message::Iteration},
    run::RunConfig,
    time::Micros,
    worker::{Registry, WorkerSession, core_fingerprint},
};

use super::{
    inline_hub::{HubOutput, InlineHub, InlineRunError, PortId},
    policy::register_learning_policies,
    policy_file::PolicyFile,
};

/// A run that the caller drives with [`work`](Self::work). In synchronous mode its weights are those of the same settings under
/// any other hub, with any number of workers. It runs no evaluations and writes no files.
///
/// ```
/// use rollmesh_core::{kernels::Kernels, run::RunConfig, time::Micros, worker::Registry};
/// use rollmesh_learner::{InlineRun, InlineWork};
///
/// let config = RunConfig::new("CartPole-v1").rollout_fragment_length(32).stop_after(1_000);
/// let mut run = InlineRun::new(1, config, &Registry::builtin(), Kernels::PORTABLE, Micros(0))?;
/// while run.work(16, Micros(0))? != InlineWork::Over {}
/// println!("{} after {} env steps", run.state().weights_hash(), run.state().env_steps());
/// # Ok::<(), rollmesh_learner::InlineRunError>(())
/// ```
pub struct InlineRun {
    hub: InlineHub,
    registry: Registry,
    kernels: Kernels,
    worker: Option<(PortId, WorkerSession)>,
}

/// What a call of [`InlineRun::work`] has done.
#[derive(Clone, Debug, PartialEq)]
pub enum InlineWork {
    /// Some env steps.
    Sampled,
    /// An update, with its metrics.
    Learned(Box<Iteration>),
    /// Nothing: the run waits for a later time.
    Waiting,
    /// Nothing: the run is over.
    Over,
}

impl InlineRun {
    /// Makes a run, and begins its first iteration. The registry needs no policies that learn.
    ///
    /// # Errors
    /// [`InlineRunError`] names what is wrong.
    pub fn new(
        number: u32,
        config: RunConfig,
        registry: &Registry,
        kernels: Kernels,
        now: Micros,
    ) -> Result<Self, InlineRunError> {
        let mut hub = InlineHub::new(number.saturating_sub(1), 1, String::new(), registry.clone(), kernels);
        hub.start(config, now)?;
        let mut registry = registry.clone();
        register_learning_policies(&mut registry.policies);
        let mut run = Self { hub, registry, kernels, worker: None };
        run.exchange(now);
        Ok(run)
    }

    /// Returns the loop of the run, which knows how far it is.
    #[must_use]
    pub fn state(&self) -> &RunLoop {
        self.hub.state().expect("the run has begun")
    }

    /// Describes the policy as it is now, as `rollmesh train` writes it beside the weights.
    #[must_use]
    pub fn policy_file(&self) -> PolicyFile {
        self.hub.policy_file().expect("the run has begun")
    }

    /// Steps all slots that are being worked on, at most so often, or learns from a batch that is complete.
    ///
    /// # Errors
    /// [`InlineRunError`]; the run has failed then and is over.
    pub fn work(&mut self, max_vector_steps: u32, now: Micros) -> Result<InlineWork, InlineRunError> {
        if self.state().is_over() {
            return Ok(InlineWork::Over);
        }
        if let Some(point) = self.hub.learn(now)? {
            self.exchange(now);
            return Ok(InlineWork::Learned(Box::new(point)));
        }
        if let Some((_, session)) = &mut self.worker {
            session.work(max_vector_steps, now);
        }
        self.exchange(now);
        let is_working = self.hub.has_batch() || self.worker.as_ref().is_some_and(|(_, session)| session.has_work());
        match self.state().phase() {
            Phase::Failed => Err(InlineRunError::Failed(self.state().status(now).error)),
            _ if self.state().is_over() => Ok(InlineWork::Over),
            _ if is_working => Ok(InlineWork::Sampled),
            _ => Ok(InlineWork::Waiting),
        }
    }

    /// Transports frames between hub and worker until there are none.
    fn exchange(&mut self, now: Micros) {
        loop {
            let sent = self.worker.as_mut().and_then(|(port, session)| Some((*port, session.poll_frame()?)));
            if let Some((port, frame)) = sent {
                self.hub.handle_frame(port, &frame, now);
                continue;
            }
            match self.hub.poll_output() {
                Some(HubOutput::Frame { bytes, .. }) => {
                    self.worker.iter_mut().for_each(|(_, session)| session.handle_frame(&bytes));
                }
                Some(HubOutput::Start { port, token }) => self.worker = Some((port, self.session(token))),
                Some(HubOutput::Closed { .. } | HubOutput::Trained { .. }) => {}
                None => return,
            }
        }
    }

    fn session(&self, token: Token) -> WorkerSession {
        let identity = Identity::new(Role::Worker, token, "native", "inline", "cpu");
        let identity = Identity { core_fingerprint: core_fingerprint(self.kernels), ..identity };
        WorkerSession::new(identity, self.registry.clone(), self.kernels)
    }
}
