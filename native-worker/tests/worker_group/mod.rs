//! Groups of workers: the same calls, the same bits and the same errors, whether workers are threads or processes.

mod arguments;
mod calls;
mod dashboard;
mod failures;
mod group;
mod restore;
mod rig;
mod samples;
mod sync;

use libtest_mimic::Trial;
pub(crate) use rig::{connect_with, everywhere, register};

pub(crate) fn tests() -> Vec<Trial> {
    trials! {
        crate::blocking;
        arguments:
            environments_can_be_made_by_a_closure,
            workers_are_validated_by_default,
            joining_workers_has_a_timeout,
            calls_in_flight_have_the_configured_limit,
            limited_number_of_samples_may_fail_in_a_row,
            processes_are_replaced_after_a_delay_up_to_a_limit,
            thread_is_replaced_up_to_a_limit,
            restoring_workers_has_a_timeout,
            workers_of_all_kinds_are_one_group,
            group_trusts_the_workers_that_it_admits,
            group_without_encryption_warns;
        calls:
            the_local_worker_is_asked_first,
            calls_in_flight_are_limited,
            worker_listed_twice_is_called_twice,
            only_healthy_workers_are_asked_and_need_a_task_each,
            calls_without_a_waiting_caller_are_executed,
            late_worker_is_skipped_and_stays_healthy,
            answers_can_be_signs_of_health,
            workers_take_different_calls_without_waiting,
            only_policies_that_are_trained_are_asked,
            ids_and_names_reach_workers,
            environments_and_policies_are_asked_everywhere,
            closures_stay_in_this_process,
            answers_wait_until_they_are_fetched;
        dashboard:
            dashboards_show_the_workers_of_a_group_with_their_calls,
            operators_of_a_group_can_only_restart_its_processes;
        failures:
            an_error_inside_a_call_leaves_the_worker_healthy,
            group_continues_with_its_healthy_workers,
            workers_that_always_fail_are_recreated,
            killed_process_is_replaced_and_restored_with_weights_and_filters,
            a_process_is_replaced_by_its_own_launcher,
            process_that_is_not_recreated_stays_removed,
            a_worker_that_hangs_is_replaced,
            sample_without_progress_is_detected_by_its_lease,
            sample_with_progress_is_awaited_beyond_its_lease,
            hung_sample_is_detected_without_a_waiting_caller,
            local_worker_that_samples_alone_has_a_deadline,
            group_is_stopped_while_its_workers_hang,
            call_that_hangs_returns_an_error_when_the_group_is_stopped,
            group_that_is_set_up_again_ignores_earlier_stops,
            worker_that_cannot_be_created_reports_the_reason;
        group:
            new_workers_have_ids_that_are_never_reused,
            a_group_can_be_set_up_later_and_stopped_twice,
            the_arguments_of_the_constructor_reach_workers,
            a_group_needs_a_local_worker_only_where_it_does,
            policies_are_added_and_removed_in_every_placement,
            worker_that_connects_by_itself_is_like_any_other,
            evaluation_has_a_group_of_its_own,
            processes_get_what_they_need,
            resources_of_removed_workers_are_free;
        restore:
            last_synced_weights_are_restored_without_another_worker,
            connected_workers_are_restored_automatically,
            lost_state_is_not_replaced_by_first_weights;
        samples:
            a_group_of_processes_samples_the_bits_of_one_of_threads,
            rounds_repeat_until_there_are_enough_steps,
            late_fragment_is_part_of_the_next_sample,
            batches_do_not_wait_for_stragglers_and_staleness_is_bounded,
            deadline_returns_ready_fragments_and_keeps_late_ones_for_the_next_call,
            samples_of_workers_that_die_or_fail_are_counted,
            every_mode_has_batches_without_workers;
        sync:
            weights_come_from_the_configured_source,
            weights_of_some_policies_are_those_policies_alone,
            weights_that_do_not_fit_are_an_error,
            filters_count_every_observation_once,
            statistics_of_workers_are_kept_local_if_configured,
            statistics_that_are_late_are_merged_the_next_time,
            steps_of_the_run_are_shared_out,
            rounds_of_sampling_and_learning_bring_all_workers_the_same_weights;
    }
}
