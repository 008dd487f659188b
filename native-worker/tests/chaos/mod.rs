//! Runs with faults of real processes and networks: workers are killed, stopped, cut off and hang, two hundred connect
//! at the same time, and the run ends with the same bits and a balanced ledger.
//!
//! Their figures count only if nothing else is running, so each test has the machine to itself.

mod behind;
mod hangs;
mod kills;
mod network;
mod proxy;
mod rig;
mod soak;
mod storm;

pub(crate) use hangs::register;
use libtest_mimic::Trial;

pub(crate) fn tests() -> Vec<Trial> {
    trials! {
        crate::asynchronous_alone;
        kills:
            workers_that_are_killed_twice_a_second_cost_time_but_no_data,
            slots_have_no_gaps_in_asynchronous_mode;
        hangs:
            suspended_workers_are_detected_by_their_leases,
            hanging_environment_is_detected_by_its_lease,
            hanging_environment_in_process_does_not_block_signals,
            commands_whose_step_hangs_end_at_the_first_signal,
            a_run_whose_environment_cannot_be_made_says_so_and_ends_at_the_first_signal;
        network:
            injected_network_faults_change_no_weights,
            group_samples_the_same_behind_such_a_network,
            dead_connections_are_detected_by_their_leases,
            late_upload_of_a_stopped_worker_is_refused,
            flipped_bit_under_tls_ends_only_the_connection;
        storm:
            two_hundred_workers_that_reconnect_together_change_nothing;
        soak:
            long_run_does_not_grow_in_memory_files_or_threads;
    }
}
