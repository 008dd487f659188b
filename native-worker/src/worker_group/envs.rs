//! Calls to all sub-environments.

use rollmesh_core::env::{EnvContext, SubEnv};

use super::{EnvTask, GroupError, InEnv, WorkerGroup, in_env};

impl WorkerGroup {
    /// Calls every sub-environment of every worker, and returns a list of answers per worker, the local one's first. A
    /// [registered function](rollmesh_core::worker::Registry::with_env_fn) is called everywhere; a closure, see [`in_env`],
    /// in this process only.
    ///
    /// # Errors
    /// As [`foreach_worker`](Self::foreach_worker).
    #[doc(alias = "foreach_env_with_context")]
    pub fn foreach_env<T: EnvTask>(&mut self, task: T) -> Result<Vec<Vec<T::Answer>>, GroupError> {
        self.foreach_worker(task.for_each_env())
    }

    /// Works like [`foreach_env`](Self::foreach_env), with a closure that gets the environment's context.
    ///
    /// # Errors
    /// As there.
    pub fn foreach_env_with_context<R: Send + 'static>(
        &mut self,
        f: impl Fn(SubEnv<'_>, &EnvContext) -> R + Send + Sync + 'static,
    ) -> Result<Vec<Vec<R>>, GroupError> {
        let task: InEnv<_> = in_env(f);
        self.foreach_env(task)
    }
}
