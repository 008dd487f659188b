//! `rollmesh tokens`: manages a hub's tokens, at the hub or in its file.

use std::{env, path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand};
use rollmesh_core::protocol::{
    Message, Role, Token, TokenAction, TokenGrant, TokenHash, TokenId,
    message::{ManageTokens, NewToken, TokenRows},
};
use serde::Serialize;
use serde_json::json;

use super::{HubTarget, run_command};
use crate::{
    cli::exit::Failure,
    control::{Control, ControlError},
    hub::{Tokens, role_of, seconds_now},
    net::TOKEN_VARIABLE,
};

#[derive(Args)]
#[command(
    after_help = "Asks the hub, with an operator's token in ROLLMESH_TOKEN; or changes the file of its --tokens, which \
                        the hub follows within a second.\n\n\
                        Examples:\n  ROLLMESH_TOKEN=… rollmesh tokens create --role worker --expires 24h\n  \
                        rollmesh tokens list --file tokens.json"
)]
pub(in crate::cli) struct TokensArgs {
    #[command(subcommand)]
    action: TokensAction,
    /// The hub's file of tokens, instead of asking a hub
    #[arg(long, value_name = "FILE", global = true)]
    file: Option<PathBuf>,
    #[command(flatten)]
    target: HubTarget,
}

#[derive(Subcommand)]
enum TokensAction {
    /// List all tokens by id; an id gives no access
    List {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Make a token and print it, once
    Create {
        /// viewer, operator, worker, client, launcher or relay
        #[arg(long, value_parser = role)]
        role: Role,
        /// When it expires: 90s, 30m, 24h or 7d [default: never]
        #[arg(long, value_name = "TIME", value_parser = seconds)]
        expires: Option<u64>,
    },
    /// Revoke a token; its connections close within a second
    Revoke {
        /// Its id, as `tokens list` shows it
        #[arg(value_name = "ID")]
        token: TokenId,
    },
    /// Replace a token by one of the same role and end, and print it, once
    Rotate {
        /// Id of the old one
        #[arg(value_name = "ID")]
        token: TokenId,
        /// How long the old one stays valid
        #[arg(long, value_name = "TIME", default_value = "5m", value_parser = seconds)]
        grace: u64,
    },
}

fn role(text: &str) -> Result<Role, String> {
    role_of(text).ok_or_else(|| "expected viewer, operator, worker, client, launcher or relay".into())
}

/// Longest lifetime of a token: ten years.
const MAX_SECONDS: u64 = 3_650 * 24 * 60 * 60;

/// Parses seconds from `90s`, `30m`, `24h` or `7d`.
fn seconds(text: &str) -> Result<u64, String> {
    let expected = || "expected a whole number and s, m, h or d, like 24h, of at most 3650d".to_owned();
    let unit = text.chars().last().ok_or_else(expected)?;
    let seconds_of = match unit {
        's' => 1,
        'm' => 60,
        'h' => 60 * 60,
        'd' => 24 * 60 * 60,
        _ => return Err(expected()),
    };
    let number: u64 = text.trim_end_matches(unit).parse().map_err(|_| expected())?;
    number.checked_mul(seconds_of).filter(|seconds| (1..=MAX_SECONDS).contains(seconds)).ok_or_else(expected)
}

pub(in crate::cli) fn tokens(args: &TokensArgs) -> Result<ExitCode, Failure> {
    match &args.file {
        // Creating a token creates the file.
        Some(file) if !file.exists() && !matches!(args.action, TokensAction::Create { .. }) => {
            Err(Failure::usage(format!("there is no {}", file.display())))
        }
        Some(file) => in_file(Tokens::open(file).map_err(Failure::usage)?, &args.action),
        None if args.target.token_file.is_none() && env::var_os(TOKEN_VARIABLE).is_none() => {
            Err(Failure::usage(format!(
                "{TOKEN_VARIABLE} is not set: an operator's token changes the tokens of a running hub; --file FILE changes a file"
            )))
        }
        None => run_command(args.target.operator(), async |hub| at_hub(hub, &args.action).await),
    }
}

fn in_file(mut tokens: Tokens, action: &TokensAction) -> Result<ExitCode, Failure> {
    let made = match action {
        TokensAction::List { json } => {
            let row = |(hash, grant): &(TokenHash, TokenGrant)| TokenRow {
                id: hash.id().to_string(),
                role: grant.role.name(),
                expires: grant.expires,
                connections: None,
            };
            print_rows(&tokens.rows().iter().map(row).collect::<Vec<_>>(), *json);
            return Ok(ExitCode::SUCCESS);
        }
        TokensAction::Create { role, expires } => Some(tokens.create(*role, *expires).map_err(Failure::usage)?),
        TokensAction::Revoke { token } => {
            tokens.revoke(*token).map_err(Failure::usage)?;
            None
        }
        TokensAction::Rotate { token, grace } => Some(tokens.rotate(*token, *grace).map_err(Failure::usage)?),
    };
    if let Some((token, grant)) = made {
        show(&token, grant.role, grant.expires.unwrap_or(0));
    }
    Ok(ExitCode::SUCCESS)
}

async fn at_hub(hub: &mut Control, action: &TokensAction) -> Result<(), ControlError> {
    let of = |action: TokenAction| ManageTokens { action: action.to_wire(), ..ManageTokens::default() };
    let wish = match *action {
        TokensAction::List { .. } => of(TokenAction::List),
        TokensAction::Create { role, expires } => {
            ManageTokens { role: role.to_wire(), seconds: expires.unwrap_or(0), ..of(TokenAction::Create) }
        }
        TokensAction::Revoke { token } => ManageTokens { token: token.0, ..of(TokenAction::Revoke) },
        TokensAction::Rotate { token, grace } => {
            ManageTokens { token: token.0, seconds: grace, ..of(TokenAction::Rotate) }
        }
    };
    let answer = hub.ask_for(|request| Message::ManageTokens(ManageTokens { request, ..wish }), answer).await?;
    match answer {
        Message::TokenRows(TokenRows { ids, roles, expires, connections, .. }) => {
            let rows = ids.into_iter().zip(roles).zip(expires).zip(connections);
            let row = |(((id, role), expires), connections)| TokenRow {
                id: TokenId(id).to_string(),
                role: Role::try_from(role).map_or("unknown", Role::name),
                expires: Some(expires).filter(|expires| *expires > 0),
                connections: Some(connections),
            };
            print_rows(&rows.map(row).collect::<Vec<_>>(), matches!(action, TokensAction::List { json: true }));
        }
        Message::NewToken(NewToken { role, expires, token, .. }) => {
            if let Ok(role) = Role::try_from(role) {
                show(&token, role, expires);
            }
        }
        _ => {}
    }
    Ok(())
}

/// Returns the message if it answers the request with this number.
fn answer(mine: u32, message: Message) -> Option<Message> {
    let request = match &message {
        Message::TokenRows(rows) => rows.request,
        Message::NewToken(token) => token.request,
        Message::Reply(reply) => reply.request,
        _ => return None,
    };
    (request == mine).then_some(message)
}

/// Prints only the token on standard output, for programs; the rest goes to standard error.
fn show(token: &Token, role: Role, expires: u64) {
    eprintln!("{} {}: keep it, it is not shown again", TokenHash::of(token).id(), role.name());
    eprintln!("{}", end(expires));
    println!("{}", token.to_hex());
}

/// A token of a list.
#[derive(Serialize)]
struct TokenRow {
    id: String,
    role: &'static str,
    /// In seconds since 1970; `null` if the token does not expire.
    expires: Option<u64>,
    /// Open connections with this token, which a file does not show.
    connections: Option<u32>,
}

fn print_rows(rows: &[TokenRow], json: bool) {
    if json {
        println!("{}", json!({ "tokens": rows }));
        return;
    }
    for TokenRow { id, role, expires, connections } in rows {
        let connections = connections.map_or_else(String::new, |connections| format!("  connections {connections}"));
        println!("{}", format!("{id}  {role:<9}  {:<24}{connections}", end(expires.unwrap_or(0))).trim_end());
    }
}

fn end(expires: u64) -> String {
    let now = seconds_now();
    match expires {
        0 => "never expires".into(),
        _ if expires <= now => "has expired".into(),
        _ => format!("expires in {}", duration(expires - now)),
    }
}

/// Formats a duration in its largest unit, rounded to the nearest whole number of at least 2.
fn duration(seconds: u64) -> String {
    let unit = [("days", 86_400), ("hours", 3_600), ("minutes", 60)].into_iter().find(|(_, unit)| seconds >= 2 * unit);
    unit.map_or_else(|| format!("{seconds} s"), |(name, unit)| format!("{} {name}", (seconds + unit / 2) / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_in_their_largest_unit() {
        let cases = [(90, "90 s"), (1_790, "30 minutes"), (86_372, "24 hours"), (604_772, "7 days")];
        cases.into_iter().for_each(|(seconds, expected)| assert_eq!(duration(seconds), expected));
    }

    #[test]
    fn times_as_people_write_them() {
        for (text, expected) in [("90s", 90), ("30m", 1800), ("24h", 86_400), ("7d", 604_800)] {
            assert_eq!(seconds(text), Ok(expected));
        }
        for text in ["", "h", "24", "-1h", "1.5h", "0s", "1w", "3651d", "99999999999999999999d", "1é"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
