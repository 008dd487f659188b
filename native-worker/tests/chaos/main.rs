//! What real processes and networks do to a run: workers are killed, stopped, cut off and hang, two hundred come at once,
//! and the run ends with the same bits and whole books.
//!
//! This program is also the one that the tests run: `rollmesh` with an environment that hangs. Figures count only if
//! nothing else is running, so there is one test at a time.

#[cfg(target_os = "linux")]
mod hangs;
#[cfg(target_os = "linux")]
mod kills;
#[cfg(target_os = "linux")]
mod network;
#[cfg(target_os = "linux")]
mod proxy;
#[cfg(target_os = "linux")]
mod rig;
#[cfg(target_os = "linux")]
mod soak;
#[cfg(target_os = "linux")]
mod storm;
#[cfg(target_os = "linux")]
#[path = "../support/mod.rs"]
mod support;

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    use std::{future::Future, pin::Pin};

    use libtest_mimic::{Arguments, Trial};

    type Test = fn() -> Pin<Box<dyn Future<Output = ()>>>;

    if std::env::args().nth(1).is_some_and(|first| ["train", "worker", "sample", "evaluate"].contains(&&*first)) {
        return rollmesh::main_with(hangs::registry());
    }
    macro_rules! tests {
        ($($module:ident::$name:ident,)*) => {
            [$((stringify!($name), || Box::pin($module::$name()))),*]
        };
    }
    let tests: [(&str, Test); 13] = tests! {
        kills::workers_that_are_killed_twice_a_second_cost_time_but_no_data,
        kills::slots_that_do_not_keep_step_have_no_gaps_either,
        hangs::workers_that_stand_still_are_found_by_their_leases,
        hangs::an_environment_that_hangs_is_found_by_its_lease,
        hangs::an_environment_that_hangs_in_process_leaves_signals_their_effect,
        hangs::commands_whose_step_hangs_end_at_the_first_signal,
        hangs::a_run_whose_environment_cannot_be_made_says_so_and_ends_at_the_first_signal,
        network::a_network_that_does_what_it_wants_changes_nothing,
        network::dead_connections_are_detected_by_their_leases,
        network::what_a_stopped_worker_brings_when_it_goes_on_is_refused,
        network::a_bit_that_flips_under_tls_ends_the_connection_and_nothing_else,
        storm::two_hundred_workers_that_come_back_at_once_change_nothing,
        soak::a_run_takes_no_more_of_the_machine_as_it_goes_on,
    };
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trial = |(name, test): (&str, Test)| {
        Trial::test(name, move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build()?.block_on(test());
            Ok(())
        })
    };
    libtest_mimic::run(&arguments, tests.into_iter().map(trial).collect()).exit_code()
}
