//! The actions of converted rows: policies', within [-1, 1], or the environment's, within its bounds.

use clap::Args;
use rollmesh_core::{
    action::ActionTransform,
    batch::{ACTIONS, AnyBatch, SampleBatch},
    column::DType,
    space::Space,
};
use rollmesh_data::ActionChange;

use super::{losses::Losses, sink::DataFormat};
use crate::{cli::exit::Failure, offline::inputs::Format};

#[derive(Args)]
pub(super) struct ActionArgs {
    /// Whether the files' actions are policies', within [-1, 1] [default: not of D4RL and Minari]
    ///
    /// Minari holds those of the environment, JSON and Parquet those of policies: with --env they are converted. For files of
    /// policies with normalize_actions off, and for tables of D4RL's actions: false
    #[arg(long, hide_short_help = true, value_name = "BOOL")]
    actions_in_input_normalized: Option<bool>,
}

/// Converts actions to the form that the target holds.
pub(super) struct Actions {
    /// The user's setting for the input.
    normalized: Option<bool>,
    target: DataFormat,
    /// The environment's space, if it is known.
    space: Option<Space>,
}

impl Actions {
    pub(super) fn new(args: &ActionArgs, target: DataFormat, space: Option<Space>) -> Self {
        Self { normalized: args.actions_in_input_normalized, target, space }
    }

    /// Returns the change of a file's actions, if there is one.
    fn change(&self, from: Format) -> Option<ActionChange> {
        let normalized = self.normalized.unwrap_or_else(|| !from.has_env_actions());
        match (normalized, self.target) {
            (true, DataFormat::Minari) => Some(ActionChange::ToEnv),
            (false, DataFormat::Json | DataFormat::Parquet) => Some(ActionChange::ToPolicy),
            // Workers clip actions that policies chose without normalize_actions.
            (false, DataFormat::Minari) => (!from.has_env_actions()).then_some(ActionChange::Clip),
            (true, DataFormat::Json | DataFormat::Parquet) => None,
        }
    }

    /// Checks that policies' actions can become the environment's, before anything is written.
    pub(super) fn check(&self, from: impl IntoIterator<Item = Format>, has_floats: bool) -> Result<(), Failure> {
        let needs_env = |from: Format| self.space.is_none() && self.change(from) == Some(ActionChange::ToEnv);
        match from.into_iter().find(|from| has_floats && needs_env(*from)) {
            Some(from) => Err(Failure::usage(format!(
                "actions in {from} are policies', within [-1, 1], and minari holds the environment's: name it with --env, or \
                 say --actions-in-input-normalized false if they are the environment's"
            ))),
            None => Ok(()),
        }
    }

    pub(super) fn converted(&self, batch: AnyBatch, from: Format, losses: &mut Losses) -> Result<AnyBatch, Failure> {
        let Some(change) = self.change(from) else { return Ok(batch) };
        let is_clip = change == ActionChange::Clip;
        let mut convert = |rows: &mut SampleBatch| match &self.space {
            Some(space) if ActionTransform::for_space(space, !is_clip, is_clip) == ActionTransform::None => Ok(()),
            // Empty columns may be of any type.
            Some(_) if rows.is_empty() => Ok(()),
            Some(space) => {
                if change.apply(rows, space).map_err(Failure::usage)? {
                    let lost = if is_clip {
                        "what actions were beyond the environment's bounds: minari holds the bounds"
                    } else {
                        "what policies' actions were beyond [-1, 1]: the environment took its bounds"
                    };
                    losses.insert(lost.into());
                }
                Ok(())
            }
            None if is_clip => Ok(()),
            None if has_float_actions(rows) => {
                losses.insert(
                    "that actions are the environment's: name it with --env to convert them to policies', or read them with \
                     --input-config '{\"actions_in_input_normalized\": false}'"
                        .into(),
                );
                Ok(())
            }
            None => Ok(()),
        };
        match batch {
            AnyBatch::Single(mut rows) => convert(&mut rows).map(|()| rows.into()),
            AnyBatch::Multi(mut multi) => {
                multi.policy_batches.values_mut().try_for_each(convert)?;
                Ok(multi.into())
            }
        }
    }
}

/// Returns whether any part of the actions is of floats, which may have been normalised.
pub(super) fn has_float_actions(rows: &SampleBatch) -> bool {
    let is_action = |name: &str| name.split('.').next() == Some(ACTIONS.name());
    rows.iter().any(|(name, column)| is_action(name) && column.dtype().is_some_and(DType::is_float))
}
