//! Programs with code of their own that are the processes they test, too: workers of runs and groups, sub-environments,
//! evaluations.
//!
//! A child process of this program is `rollmesh` with the environments, policies and functions of all modules, and a
//! test harness would not let it be that. So it has a `main` of its own.

#[cfg(not(target_os = "linux"))]
fn main() {}

/// Tests of modules, each under the names of its file and function.
#[cfg(target_os = "linux")]
macro_rules! trials {
    ($trial:path; $($module:ident: $($name:ident),+;)+) => {
        vec![$($($trial(concat!(module_path!(), "::", stringify!($module), "::", stringify!($name)), $module::$name)),+),+]
    };
}

#[cfg(target_os = "linux")]
mod chaos;
#[cfg(target_os = "linux")]
mod eval;
#[cfg(target_os = "linux")]
mod failures;
#[cfg(target_os = "linux")]
mod places;
#[cfg(target_os = "linux")]
mod remote_envs;
#[cfg(target_os = "linux")]
mod support;
#[cfg(target_os = "linux")]
mod worker_group;

#[cfg(target_os = "linux")]
use own::{asynchronous, asynchronous_alone, blocking, blocking_alone, main};

#[cfg(target_os = "linux")]
mod own {
    use std::{
        future::Future,
        process::ExitCode,
        sync::{PoisonError, RwLock},
    };

    use libtest_mimic::{Arguments, Trial};
    use rollmesh::Registry;

    use super::{chaos, eval, failures, places, remote_envs, worker_group};

    /// Commands of `rollmesh` that tests start this program with.
    const COMMANDS: [&str; 5] = ["train", "sample", "evaluate", "worker", "hub"];

    pub(crate) fn main() -> ExitCode {
        if let Some(code) = eval::be_another_program() {
            return code;
        }
        eval::run_program_without_child_process_entry();
        rollmesh::child_process(registry);
        if std::env::args().nth(1).is_some_and(|first| COMMANDS.contains(&&*first)) {
            return rollmesh::main_with(registry());
        }
        eval::act_as_other_process();
        remote_envs::be_a_parent_that_crashes();
        let tests = [
            chaos::tests(),
            eval::tests(),
            failures::tests(),
            places::tests(),
            remote_envs::tests(),
            worker_group::tests(),
        ];
        let mut arguments = Arguments::from_args();
        // As the standard harness does.
        let threads = || std::env::var("RUST_TEST_THREADS").ok()?.parse().ok();
        arguments.test_threads = arguments.test_threads.or_else(threads);
        libtest_mimic::run(&arguments, tests.into_iter().flatten().collect()).exit_code()
    }

    /// Returns the registry that child processes of all tests need.
    fn registry() -> Registry {
        let modules = [
            chaos::register,
            eval::register,
            failures::register,
            places::register,
            remote_envs::register,
            worker_group::register,
        ];
        modules.into_iter().fold(Registry::builtin(), |registry, register| register(registry))
    }

    /// Held for writing by tests that need the machine to themselves.
    static MACHINE: RwLock<()> = RwLock::new(());

    pub(crate) fn blocking(name: &str, test: fn()) -> Trial {
        Trial::test(name, move || {
            let _turn = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
            test();
            Ok(())
        })
    }

    pub(crate) fn blocking_alone(name: &str, test: fn()) -> Trial {
        Trial::test(name, move || {
            let _turn = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
            test();
            Ok(())
        })
    }

    pub(crate) fn asynchronous<F: Future<Output = ()> + 'static>(name: &str, test: fn() -> F) -> Trial {
        Trial::test(name, move || {
            let _turn = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
            block_on(test())
        })
    }

    pub(crate) fn asynchronous_alone<F: Future<Output = ()> + 'static>(name: &str, test: fn() -> F) -> Trial {
        Trial::test(name, move || {
            let _turn = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
            block_on(test())
        })
    }

    fn block_on(test: impl Future<Output = ()>) -> Result<(), libtest_mimic::Failed> {
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(test);
        Ok(())
    }
}
