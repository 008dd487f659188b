//! Parses the command line, with errors that name the values of a flag.

use std::{
    error::Error as _,
    ffi::OsString,
    num::{IntErrorKind, ParseFloatError, ParseIntError},
    process::ExitCode,
};

use clap::{
    Arg, ArgAction, Command, CommandFactory as _, FromArgMatches as _,
    builder::Resettable,
    error::{ContextKind, Error},
};

use super::{Cli, exit::Failure};

/// Returns the parsed arguments, or the exit code after help or an error was printed.
pub(super) fn parse(mut args: Vec<OsString>) -> Result<Cli, ExitCode> {
    // `rollmesh help COMMAND` prints the short help, too.
    if args.get(1).is_some_and(|word| word == "help") {
        args.remove(1);
        args.push("--help".into());
    }
    let matches = command().try_get_matches_from(args);
    matches.and_then(|matches| Cli::from_arg_matches(&matches)).map_err(|error| match number_error(&error) {
        Some(reason) => Failure::usage(format!("{reason}\n\nFor more information, try '--help'.")).report(),
        None => error.exit(),
    })
}

/// Returns the program's command line.
pub(super) fn command() -> Command {
    with_help(with_negative_numbers(Cli::command())).mut_subcommands(with_hint)
}

/// Lets `-h` and `--help` print the frequent options, and `--help-all` all of them with their explanations.
fn with_help(command: Command) -> Command {
    let help = |name, action| Arg::new(name).long(name).action(action).help_heading(Resettable::Reset);
    let command = command.disable_help_flag(true).disable_help_subcommand(true).mut_subcommands(with_help);
    command
        .arg(help("help", ArgAction::HelpShort).short('h').help("Print the usual options"))
        .arg(help("help-all", ArgAction::HelpLong).hide_short_help(true).help("Print all options, explained"))
}

/// Ends the short help of a command and its subcommands with a line that names the long one.
fn with_hint(command: Command) -> Command {
    let short = command.get_after_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
    let long = command.get_after_long_help().or_else(|| command.get_after_help()).cloned().unwrap_or_default();
    let command = command.after_help(format!("{short}`--help-all` explains all options.")).after_long_help(long);
    command.mut_subcommands(with_hint)
}

/// Lets every flag take a negative number, so that its own check reports it by the flag's name.
fn with_negative_numbers(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let is_strict = arg.get_action().takes_values() && !arg.is_trailing_var_arg_set() && !arg.is_last_set();
        if is_strict { arg.allow_negative_numbers(true) } else { arg }
    });
    command.mut_subcommands(with_negative_numbers)
}

/// Returns an error that names the expected number, if a flag's value is none; the standard library's errors do not.
fn number_error(error: &Error) -> Option<String> {
    let source = error.source()?;
    let (value, flag) = (error.get(ContextKind::InvalidValue)?.to_string(), error.get(ContextKind::InvalidArg)?);
    let whole = value.replace('_', "").parse::<f64>().ok().filter(|number| number.fract() == 0.0 && *number >= 0.0);
    let expected = match source.downcast_ref::<ParseIntError>().map(ParseIntError::kind) {
        Some(IntErrorKind::Zero) => "it must be at least 1".to_owned(),
        Some(IntErrorKind::PosOverflow) => "it is too large".to_owned(),
        Some(_) => match whole {
            Some(number) => format!("write {number}"),
            None => "it must be a whole number of at least 0".to_owned(),
        },
        None => source.is::<ParseFloatError>().then(|| "it must be a number".to_owned())?,
    };
    Some(format!("invalid value '{value}' for '{flag}': {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_numbers_are_reported_by_flag_and_range() {
        let error = |args: &[&str]| {
            let args = ["rollmesh", "sample"].iter().chain(args);
            let error = command().try_get_matches_from(args).unwrap_err();
            number_error(&error).unwrap_or_else(|| error.to_string())
        };
        for (args, expected) in [
            (["--env-steps", "1e6"], "invalid value '1e6' for '--env-steps <T>': write 1000000"),
            (["--seed", "1_000"], "invalid value '1_000' for '--seed <SEED>': write 1000"),
            (["--seed", "-3"], "invalid value '-3' for '--seed <SEED>': it must be a whole number of at least 0"),
            (["--num-envs", "-3"], "invalid value '-3' for '--num-envs <N>': -3 is not in 0..=4294967295"),
            (
                ["--hidden", "64x64"],
                "invalid value '64x64' for '--hidden <WIDTHS>': it must be a whole number of at least 0",
            ),
        ] {
            let text = error(&args);
            assert!(text.contains(expected), "{text}");
        }
    }
}
