//! Evaluation workers in threads, in processes and under names: their results, and that no failure of one stops the
//! others.

mod alongside;
mod contract;
mod failures;
mod hub;
mod lab;
mod names;
mod orphans;
mod shell;

pub(crate) use alongside::be_another_program;
pub(crate) use lab::register;
use libtest_mimic::Trial;
pub(crate) use names::{act_as_other_process, run_program_without_child_process_entry};

pub(crate) fn tests() -> Vec<Trial> {
    trials! {
        crate::blocking;
        shell:
            evaluators_are_hosted_asked_and_listed_from_the_shell;
        contract:
            nothing_is_ready_before_a_submission,
            a_result_has_a_reward_and_frames,
            only_the_second_result_is_ever_returned,
            results_arrive_in_order_if_asked_for,
            a_process_finds_what_a_thread_finds,
            the_init_function_comes_before_everything,
            any_signal_can_be_the_reward,
            process_has_exactly_the_resources_of_its_worker_spec,
            a_process_has_its_environment_variables,
            other_seeds_are_other_episodes_than_those_of_training;
        failures:
            hung_engine_is_given_up_once_and_replaced,
            abandoned_hung_evaluation_delays_no_other,
            crashed_engine_is_reported_once_and_replaced,
            failed_setup_is_reported_at_the_first_poll,
            weights_are_kept_if_the_process_ends,
            no_process_outlives_its_worker;
        names:
            program_that_forgets_to_be_a_worker_gets_an_error,
            other_users_files_do_not_block_names,
            name_belongs_to_the_process_that_lives,
            worker_whose_parent_disappeared_exits,
            others_find_a_worker_by_its_name,
            worker_outlives_its_starter,
            names_are_unique_and_released_when_their_worker_ends;
        alongside:
            evaluation_settings_need_an_interval,
            failing_evaluations_do_not_stop_a_run,
            an_environment_whose_render_fails_is_evaluated_without_pictures,
            an_environment_that_fails_in_an_evaluation_is_reported_and_the_next_one_arrives,
            run_from_files_learns_all_rows_if_evaluations_fail,
            policy_of_a_wrapped_game_is_evaluated_in_the_wrappers,
            evaluation_takes_actions_as_the_run_does;
        orphans:
            no_child_outlives_a_parent_that_is_killed_even_hung_or_stopped;
        hub:
            others_find_a_worker_through_a_hub,
            policies_of_several_agents_are_evaluated_everywhere,
            worker_reconnects_to_a_restarted_hub;
    }
}
