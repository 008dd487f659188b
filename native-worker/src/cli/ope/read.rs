//! What was logged.

use rollmesh_core::{
    batch::{ACTION_LOGP, ACTION_PROB, ACTIONS, NEW_OBS, OBS, REWARDS, TERMINATEDS},
    estimate::{EpisodeLog, LoggedEpisodes},
    ids::PolicyId,
};

use super::OpeArgs;
use crate::{
    cli::exit::Failure,
    offline::{self, dataset::BatchStream as _},
    progress::Progress,
};

/// The columns that somebody asks for.
const COLUMNS: [&str; 7] = [
    OBS.name(),
    NEW_OBS.name(),
    ACTIONS.name(),
    REWARDS.name(),
    TERMINATEDS.name(),
    ACTION_PROB.name(),
    ACTION_LOGP.name(),
];

pub(super) struct Data {
    pub(super) logged: LoggedEpisodes,
    pub(super) files: usize,
    pub(super) corrupt_lines: u64,
}

pub(super) fn read(args: &OpeArgs) -> Result<Data, Failure> {
    let mut logged = offline::open_logged(&args.inputs, args.buffer_size).map_err(Failure::usage)?;
    let progress = Progress::new(logged.progress().1 >> 10, "KiB", !args.json);
    let mut log = EpisodeLog::new(&COLUMNS);
    let mut policy: Option<PolicyId> = None;
    while let Some(batch) = logged.next_batch().map_err(Failure::other)? {
        if logged.place().is_some_and(|place| place.is_first) {
            log.begin_file();
        }
        let is_single = batch.single().is_ok();
        for (id, rows) in batch.as_multi_agent().policy_batches {
            if let Some(other) = policy.replace(id.clone()).filter(|other| *other != id) {
                return Err(Failure::usage(format!(
                    "the data are of several policies, '{other}' and '{id}'; estimators judge one: split the data first"
                )));
            }
            let added = if is_single { log.add(&rows) } else { log.add_of_agents(&rows) };
            added.map_err(Failure::usage)?;
        }
        progress.say(logged.progress().0 >> 10, &format!("· {} rows", log.len()));
    }
    progress.finish();
    if log.is_empty() {
        return Err(Failure::usage(format!("there are no rows in {}", args.inputs.join(", "))));
    }
    let (files, corrupt_lines) = (logged.files().len(), logged.corrupt_lines());
    Ok(Data { logged: log.finish().map_err(Failure::usage)?, files, corrupt_lines })
}
