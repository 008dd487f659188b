//! Sub-environments in processes of their own: the same rows, and a failure harms no other.
//!
//! This program is the process of its sub-environments, too, so it has a `main` of its own.

#[cfg(target_os = "linux")]
mod failures;
#[cfg(target_os = "linux")]
mod life;
#[cfg(target_os = "linux")]
mod rig;
#[cfg(target_os = "linux")]
mod same;
#[cfg(target_os = "linux")]
mod zoo;

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    use libtest_mimic::{Arguments, Trial};

    rollmesh::child_process(zoo::registry);
    life::be_a_parent_that_crashes();
    let tests: [(&str, fn()); 24] = [
        ("full_waits_make_the_batches_of_one_process", same::full_waits_make_the_batches_of_one_process),
        ("games_run_in_their_wrappers", same::games_run_in_their_wrappers),
        ("agents_that_come_up_later_are_paid_and_known", same::agents_that_come_up_later_are_paid_and_known),
        ("without_waits_every_slot_has_its_rows", same::without_waits_every_slot_has_its_rows),
        ("four_remote_environments_of_five_agents", same::four_remote_environments_of_five_agents),
        ("a_thread_samples_from_processes", same::a_thread_samples_from_processes),
        ("pictures_come_through_processes", same::pictures_come_through_processes),
        ("failures_are_told_for_what_they_are", failures::failures_are_told_for_what_they_are),
        ("who_always_fails_is_given_up_alone", failures::who_always_fails_is_given_up_alone),
        ("when_all_are_given_up_that_is_an_error", failures::when_all_are_given_up_that_is_an_error),
        (
            "the_last_failure_is_told_before_a_reset_is_refused",
            failures::the_last_failure_is_told_before_a_reset_is_refused,
        ),
        ("a_worker_goes_on_without_those_that_only_fail", failures::a_worker_goes_on_without_those_that_only_fail),
        (
            "a_worker_without_environments_that_are_left_says_so_each_time",
            failures::a_worker_without_environments_that_are_left_says_so_each_time,
        ),
        ("a_failure_that_is_not_survived_is_an_error", failures::a_failure_that_is_not_survived_is_an_error),
        ("no_poll_waits_longer_than_the_deadline", failures::no_poll_waits_longer_than_the_deadline),
        ("a_process_that_is_killed_is_replaced", failures::a_process_that_is_killed_is_replaced),
        ("what_cannot_be_made_is_said_at_once", failures::what_cannot_be_made_is_said_at_once),
        ("a_worker_loses_the_rows_of_the_failed_alone", failures::a_worker_loses_the_rows_of_the_failed_alone),
        ("processes_that_are_stopped_end_by_themselves", life::processes_that_are_stopped_end_by_themselves),
        ("steps_that_a_reset_forgets_are_counted", life::steps_that_a_reset_forgets_are_counted),
        ("nothing_is_left_behind", life::nothing_is_left_behind),
        (
            "processes_end_with_the_worker_also_while_they_hang",
            life::processes_end_with_the_worker_also_while_they_hang,
        ),
        ("environs_and_seeds_reach_the_processes", life::environs_and_seeds_reach_the_processes),
        ("calls_at_the_wrong_time_are_refused", life::calls_at_the_wrong_time_are_refused),
    ];
    let mut arguments = Arguments::from_args();
    // They count processes and descriptors.
    arguments.test_threads = Some(1);
    let trial = |(name, test): (&str, fn())| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    libtest_mimic::run(&arguments, tests.into_iter().map(trial).collect()).exit_code()
}
