//! Sub-environments in processes of their own: the same rows, and a failure harms no other.
//!
//! They count processes and descriptors, so each test has the machine to itself.

mod failures;
mod life;
mod rig;
mod same;
mod zoo;

use libtest_mimic::Trial;
pub(crate) use life::be_a_parent_that_crashes;
pub(crate) use zoo::register;

pub(crate) fn tests() -> Vec<Trial> {
    trials! {
        crate::blocking_alone;
        same:
            full_waits_make_the_batches_of_one_process,
            games_run_in_their_wrappers,
            agents_that_come_up_later_are_paid_and_known,
            asynchronous_mode_gives_every_slot_its_rows,
            four_remote_environments_of_five_agents,
            a_thread_samples_from_processes,
            pictures_come_through_processes;
        failures:
            failures_are_reported_with_their_kind,
            environment_that_always_fails_is_quarantined_alone,
            when_all_are_given_up_that_is_an_error,
            the_last_failure_is_reported_before_a_reset_is_refused,
            worker_continues_without_environments_that_always_fail,
            worker_with_all_environments_quarantined_fails_every_sample,
            a_failure_that_is_not_survived_is_an_error,
            no_poll_waits_longer_than_the_deadline,
            a_process_that_is_killed_is_replaced,
            environments_that_cannot_be_made_fail_the_build,
            a_worker_loses_the_rows_of_the_failed_alone;
        life:
            processes_that_are_stopped_end_by_themselves,
            steps_that_a_reset_forgets_are_counted,
            no_process_or_file_remains_after_drop,
            processes_end_with_the_worker_also_while_they_hang,
            environs_and_seeds_reach_the_processes,
            calls_at_the_wrong_time_are_refused;
    }
}
