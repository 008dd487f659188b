//! Evaluation workers in threads, in processes and under names: what they find, and that nothing which goes wrong there
//! stops anybody else.
//!
//! This program is the process of its evaluations, too, so it has a `main` of its own.

#[cfg(target_os = "linux")]
mod contract;
#[cfg(target_os = "linux")]
mod failures;
#[cfg(target_os = "linux")]
mod lab;
#[cfg(target_os = "linux")]
mod names;

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    use libtest_mimic::{Arguments, Trial};

    rollmesh::eval::eval_process(lab::registry);
    names::be_somebody_else();
    let tests: [(&str, fn()); 15] = [
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
        ("what_crashes_is_told_once_and_replaced", failures::what_crashes_is_told_once_and_replaced),
        ("what_cannot_begin_says_so_at_the_first_poll", failures::what_cannot_begin_says_so_at_the_first_poll),
        ("no_process_outlives_its_worker", failures::no_process_outlives_its_worker),
        ("others_find_a_worker_by_its_name", names::others_find_a_worker_by_its_name),
        ("a_worker_outlives_who_started_it", names::a_worker_outlives_who_started_it),
        ("names_are_taken_once_and_free_again", names::names_are_taken_once_and_free_again),
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
