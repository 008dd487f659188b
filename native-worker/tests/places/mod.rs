//! The same bits in every place: rows that are sampled, read and written under each kind of settings.

#[path = "../../../core/tests/kinds/mod.rs"]
pub(crate) mod kinds;

mod files;
mod groups;
mod runs;

pub(crate) use kinds::register;
use libtest_mimic::Trial;
use rollmesh::Registry;

/// Returns the names that this program has registered while these tests run.
fn registry() -> Registry {
    register(Registry::builtin())
}

pub(crate) fn tests() -> Vec<Trial> {
    let mut tests = trials! {
        crate::blocking;
        files:
            rows_and_episodes_are_written_everywhere,
            files_are_read_mixed_and_estimated_alike,
            imitation_from_files_is_the_same_everywhere;
        groups:
            every_kind_of_run_is_sampled_bit_identically_in_every_placement,
            groups_act_and_learn_on_devices,
            several_policies_learn_the_same_everywhere;
    };
    tests.extend(trials! {
        crate::asynchronous;
        runs:
            the_command_line_samples_every_kind_with_its_golden_hash,
            policy_of_a_user_learns_in_a_run_without_leases,
            every_kind_trains_with_one_hash_for_any_workers;
    });
    tests
}
