//! Evaluation workers in threads, in processes and under names: what they find, and that nothing which goes wrong there
//! stops the others.
//!
//! This program is the process of its evaluations, too, so it has a `main` of its own.

#[cfg(target_os = "linux")]
mod beside;
#[cfg(target_os = "linux")]
mod contract;
#[cfg(target_os = "linux")]
mod failures;
#[cfg(target_os = "linux")]
mod hub;
#[cfg(target_os = "linux")]
mod lab;
#[cfg(target_os = "linux")]
mod names;
#[cfg(target_os = "linux")]
mod orphans;
#[cfg(target_os = "linux")]
mod shell;

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    use libtest_mimic::{Arguments, Trial};

    if let Some(code) = beside::be_another_program() {
        return code;
    }
    names::be_one_who_forgot();
    rollmesh::child_process(lab::registry);
    names::act_as_other_process();
    let tests: [(&str, fn()); 33] = [
        (
            "evaluators_are_hosted_asked_and_listed_from_the_shell",
            shell::evaluators_are_hosted_asked_and_listed_from_the_shell,
        ),
        ("there_is_nothing_before_something_was_submitted", contract::there_is_nothing_before_something_was_submitted),
        ("a_result_has_a_reward_and_frames", contract::a_result_has_a_reward_and_frames),
        ("only_the_second_result_is_ever_returned", contract::only_the_second_result_is_ever_returned),
        ("who_asks_for_it_gets_all_results_in_order", contract::who_asks_for_it_gets_all_results_in_order),
        ("a_process_finds_what_a_thread_finds", contract::a_process_finds_what_a_thread_finds),
        ("the_init_function_comes_before_everything", contract::the_init_function_comes_before_everything),
        ("any_signal_can_be_the_reward", contract::any_signal_can_be_the_reward),
        (
            "a_process_has_what_its_worker_spec_says_and_no_more",
            contract::a_process_has_what_its_worker_spec_says_and_no_more,
        ),
        ("what_hangs_is_given_up_once_and_replaced", failures::what_hangs_is_given_up_once_and_replaced),
        ("abandoned_hung_evaluation_delays_no_other", failures::abandoned_hung_evaluation_delays_no_other),
        ("what_crashes_is_told_once_and_replaced", failures::what_crashes_is_told_once_and_replaced),
        ("what_cannot_begin_says_so_at_the_first_poll", failures::what_cannot_begin_says_so_at_the_first_poll),
        (
            "weights_are_kept_whatever_becomes_of_the_process",
            failures::weights_are_kept_whatever_becomes_of_the_process,
        ),
        ("a_process_has_its_environment_variables", contract::a_process_has_its_environment_variables),
        (
            "other_seeds_are_other_episodes_than_those_of_training",
            contract::other_seeds_are_other_episodes_than_those_of_training,
        ),
        ("who_forgets_to_be_a_worker_is_told_so", names::who_forgets_to_be_a_worker_is_told_so),
        ("other_users_files_do_not_block_names", names::other_users_files_do_not_block_names),
        ("name_belongs_to_the_process_that_lives", names::name_belongs_to_the_process_that_lives),
        ("who_cannot_be_found_any_more_ends", names::who_cannot_be_found_any_more_ends),
        ("who_says_how_to_evaluate_says_how_often", beside::who_says_how_to_evaluate_says_how_often),
        ("no_process_outlives_its_worker", failures::no_process_outlives_its_worker),
        (
            "no_child_outlives_a_parent_that_is_killed_even_hung_or_stopped",
            orphans::no_child_outlives_a_parent_that_is_killed_even_hung_or_stopped,
        ),
        ("others_find_a_worker_by_its_name", names::others_find_a_worker_by_its_name),
        ("a_worker_outlives_who_started_it", names::a_worker_outlives_who_started_it),
        ("names_are_taken_once_and_free_again", names::names_are_taken_once_and_free_again),
        ("others_find_a_worker_through_a_hub", hub::others_find_a_worker_through_a_hub),
        (
            "a_worker_comes_back_to_a_hub_that_was_started_again",
            hub::a_worker_comes_back_to_a_hub_that_was_started_again,
        ),
        ("no_evaluation_that_goes_wrong_stops_a_run", beside::no_evaluation_that_goes_wrong_stops_a_run),
        (
            "an_environment_that_fails_in_an_evaluation_is_told_and_the_next_one_arrives",
            beside::an_environment_that_fails_in_an_evaluation_is_told_and_the_next_one_arrives,
        ),
        (
            "a_run_from_files_learns_all_rows_whatever_its_evaluations_do",
            beside::a_run_from_files_learns_all_rows_whatever_its_evaluations_do,
        ),
        (
            "what_learns_from_a_game_in_wrappers_is_evaluated_in_them",
            beside::what_learns_from_a_game_in_wrappers_is_evaluated_in_them,
        ),
        ("evaluation_takes_actions_as_the_run_does", beside::evaluation_takes_actions_as_the_run_does),
    ];
    let arguments = Arguments::from_args();
    let trial = |(name, test): (&str, fn())| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    libtest_mimic::run(&arguments, tests.into_iter().map(trial).collect()).exit_code()
}
