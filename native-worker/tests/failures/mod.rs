//! User code that fails on workers: the messages to the user, and that nothing hangs.

mod alone;
mod commands;
mod faulty;
mod moving;
mod runs;
mod signals;
mod waiting;

pub(crate) use faulty::register;
use libtest_mimic::Trial;

pub(crate) fn tests() -> Vec<Trial> {
    trials! {
        crate::asynchronous;
        alone:
            transient_failure_leaves_no_trace_without_leases,
            retry_keeps_fragments_that_wait_for_the_next_sample,
            failure_of_episodes_that_cannot_be_restored_is_retried_and_counted,
            frequent_transient_failures_without_leases_end_neither_run_nor_sample,
            failures_in_a_row_end_a_run_without_leases,
            step_that_hangs_without_leases_ends_run_with_its_place,
            failing_policy_and_callback_end_every_run;
        commands:
            every_command_says_what_failed_and_where,
            transient_failures_leave_no_trace_in_samples,
            ledger_of_sample_balances_after_failures,
            evaluation_that_hangs_ends_after_its_timeout,
            environment_without_picture_is_reported_once;
        moving:
            opaque_environment_loses_open_episodes_of_dead_workers,
            replay_that_ends_elsewhere_ends_run_or_episode,
            failures_at_different_replayed_steps_are_distinguished,
            replayed_environment_resumes_bit_identically,
            replayed_environment_trains_with_one_hash_for_any_worker_deaths;
        runs:
            environment_that_always_fails_ends_run_with_its_place,
            transient_failure_leaves_no_trace_in_weights,
            failures_of_one_worker_leave_no_trace_in_weights,
            frequent_transient_failures_do_not_end_run,
            step_that_hangs_ends_run_with_its_slot,
            environment_that_ends_its_worker_ends_run_with_its_slot,
            environment_that_ends_its_worker_once_leaves_no_trace_in_weights,
            failures_of_other_user_code_end_run,
            restarted_environment_continues;
        signals:
            commands_end_with_signal_while_a_step_hangs,
            runs_end_with_signal_while_a_worker_hangs_and_leave_no_process,
            iteration_ends_when_its_run_is_stopped_while_a_step_hangs,
            environment_that_is_never_made_is_named_and_ends_with_first_signal,
            run_of_another_program_is_evaluated_by_that_one;
        waiting:
            run_without_workers_waits_and_reports_it,
            failures_are_in_the_status,
            hang_is_named_when_the_run_is_ended,
            start_that_waits_reports_the_hang_of_a_drained_run,
            only_remote_worker_that_hangs_ends_run_with_its_slot,
            hub_gives_up_runs_whose_environment_is_never_made,
            run_whose_environment_is_being_made_is_listed_and_can_be_stopped;
    }
}
