//! The agents and spaces of an external environment, from settings.

use std::{collections::BTreeMap, time::Duration};

use rollmesh_core::{
    config::{Config, ConfigError},
    env::{EnvContext, EnvError, EnvSpaces},
    ids::{AgentId, HomeIndex},
    space::Space,
    worker::{RegisteredEnv, Registry, Unknown},
};
use serde::Deserialize;

use super::ExternalMultiAgentEnv;

/// The known settings.
const KNOWN: [&str; 6] = ["action", "agents", "env_config", "episode_timeout_s", "observation", "spaces_of"];

/// An error in the settings that define the agents and spaces of an external environment.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ExternalSettingsError {
    /// A setting is unknown or invalid.
    #[error("settings of an external environment: {0}")]
    Config(#[from] ConfigError),
    /// The spaces are not defined, or defined more than once.
    #[error(
        "an external environment has no spaces of its own: set one of `spaces_of` (the name of an environment that has \
         the same), `observation` with `action`, or `agents` (name: {{observation, action}}), found {0}"
    )]
    Spaces(String),
    /// The timeout is not positive.
    #[error("episode_timeout_s = {0}: how many seconds a client may say nothing of an episode, more than 0")]
    EpisodeTimeout(f64),
    /// `spaces_of` names an unknown environment.
    #[error("spaces_of: {0}")]
    Unknown(#[from] Unknown),
    /// The environment of `spaces_of` cannot be made.
    #[error("spaces_of = '{env}': {source}")]
    Env {
        /// Its name.
        env: String,
        /// The reason.
        source: EnvError,
    },
}

/// One agent's spaces.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Spaces {
    observation: Space,
    action: Space,
}

/// Returns the agents of an external environment from settings: `spaces_of`, the name of an environment with the same ones
/// (made with the settings in `env_config`); or `observation` and `action` of a single agent; or `agents`, an object with
/// both for each. Agents whose names are numbers become numbered agents.
///
/// ```
/// use rollmesh::{Registry, external::agents_of};
///
/// let settings = r#"{"spaces_of": "CartPole-v1"}"#.parse()?;
/// let agents = agents_of(&settings, &Registry::builtin())?;
/// assert_eq!(agents[0].1.action.to_string(), "Discrete(2)");
///
/// let settings = r#"{"agents": {"left": {"observation": {"type": "discrete", "n": 5}, "action": {"type": "discrete", "n": 2}}}}"#;
/// let agents = agents_of(&settings.parse()?, &Registry::builtin())?;
/// assert_eq!(agents[0].0.to_string(), "left");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`ExternalSettingsError`], which says what to set.
pub fn agents_of(settings: &Config, registry: &Registry) -> Result<Vec<(AgentId, EnvSpaces)>, ExternalSettingsError> {
    settings.check_known(&KNOWN)?;
    let named: Option<String> = settings.get("spaces_of")?;
    let (observation, action) = (settings.get("observation")?, settings.get("action")?);
    let agents: Option<BTreeMap<String, Spaces>> = settings.get("agents")?;
    match (named, observation, action, agents) {
        (Some(env), None, None, None) => {
            let config = settings.get("env_config")?.unwrap_or_default();
            agents_like(&env, config, registry)
        }
        (None, Some(observation), Some(action), None) => {
            Ok(vec![(AgentId::SINGLE, EnvSpaces::with_usual_types(observation, action))])
        }
        (None, None, None, Some(agents)) if !agents.is_empty() => {
            let named = |(name, spaces): (String, Spaces)| {
                let agent = name.parse().map_or_else(|_| AgentId::name(&name), AgentId::Index);
                (agent, EnvSpaces::with_usual_types(spaces.observation, spaces.action))
            };
            Ok(agents.into_iter().map(named).collect())
        }
        _ => {
            let found: Vec<&str> = settings.names().collect();
            let found = if found.is_empty() { "none".into() } else { found.join(", ") };
            Err(ExternalSettingsError::Spaces(found))
        }
    }
}

/// Returns how long a hub's client may be silent about an open episode: `episode_timeout_s` in the settings, [by
/// default](ExternalMultiAgentEnv::EPISODE_TIMEOUT) 300 s.
///
/// # Errors
/// [`ExternalSettingsError`] unless it is a number above 0.
pub fn episode_timeout(settings: &Config) -> Result<Duration, ExternalSettingsError> {
    let Some(seconds) = settings.get::<f64>("episode_timeout_s")? else {
        return Ok(ExternalMultiAgentEnv::EPISODE_TIMEOUT);
    };
    let timeout = Duration::try_from_secs_f64(seconds).ok().filter(|timeout| timeout.as_micros() > 0);
    timeout.ok_or(ExternalSettingsError::EpisodeTimeout(seconds))
}

/// Returns the agents of a registered environment.
fn agents_like(
    env: &str,
    config: Config,
    registry: &Registry,
) -> Result<Vec<(AgentId, EnvSpaces)>, ExternalSettingsError> {
    let failed = |source| ExternalSettingsError::Env { env: env.into(), source };
    let context = EnvContext::new(HomeIndex { worker_index: 0, vector_index: 0 }).with_config(config);
    match registry.env(env)? {
        RegisteredEnv::SingleAgent(spec) => Ok(vec![(AgentId::SINGLE, spec.spaces_in(&context).map_err(failed)?)]),
        RegisteredEnv::MultiAgent(spec) => {
            let env = spec.make(&context).map_err(failed)?;
            Ok(env.agents().into_iter().filter_map(|agent| env.spaces(&agent).map(|spaces| (agent, spaces))).collect())
        }
        RegisteredEnv::Base(make) => {
            let env = make(&[context], crate::kernels::AUTO).map_err(failed)?;
            Ok(env.agents().into_iter().filter_map(|agent| env.spaces(&agent).map(|spaces| (agent, spaces))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agents(settings: &str) -> Result<Vec<(AgentId, EnvSpaces)>, String> {
        agents_of(&settings.parse().unwrap(), &Registry::builtin()).map_err(|error| error.to_string())
    }

    #[test]
    fn spaces_are_those_of_another_environment_or_written_out() {
        let like = agents(r#"{"spaces_of": "CartPole-v1"}"#).unwrap();
        let spaces = Registry::builtin().envs.spec("CartPole-v1").unwrap().spaces().unwrap();
        assert_eq!(like, [(AgentId::SINGLE, spaces.clone())]);
        let written = Config::new().with("observation", &spaces.observation).unwrap();
        let written = written.with("action", &spaces.action).unwrap();
        assert_eq!(agents(&written.to_string()).unwrap(), like);
        let many = agents(r#"{"spaces_of": "MultiAgentCartPole-v1", "env_config": {"num_agents": 3}}"#).unwrap();
        assert_eq!(many.iter().map(|(agent, _)| agent.to_string()).collect::<Vec<_>>(), ["0", "1", "2"]);
        let of = r#"{"observation": {"type": "discrete", "n": 3}, "action": {"type": "discrete", "n": 2}}"#;
        let named = agents(&format!(r#"{{"agents": {{"7": {of}, "car": {of}}}}}"#)).unwrap();
        assert_eq!((&named[0].0, &named[1].0), (&AgentId::Index(7), &AgentId::name("car")));
    }

    #[test]
    fn silence_has_a_limit() {
        let timeout = |settings: &str| episode_timeout(&settings.parse().unwrap()).map_err(|error| error.to_string());
        assert_eq!(timeout("{}"), Ok(Duration::from_secs(300)));
        assert_eq!(timeout(r#"{"episode_timeout_s": 0.25}"#), Ok(Duration::from_millis(250)));
        for seconds in ["0", "-1.5", "1e300", "1e-9"] {
            let error = timeout(&format!(r#"{{"episode_timeout_s": {seconds}}}"#)).unwrap_err();
            assert!(error.starts_with("episode_timeout_s = "), "{error}");
        }
    }

    #[test]
    fn error_names_the_wrong_agent_setting() {
        let cases = [
            ("{}", "found none"),
            (r#"{"observation": {"type": "discrete", "n": 3}}"#, "found observation"),
            (r#"{"agents": {}}"#, "found agents"),
            (r#"{"spaces_of": "Pong-v9"}"#, "spaces_of: there is no environment 'Pong-v9'"),
            (r#"{"space": 1}"#, "there is no setting 'space'; known are: action, agents, env_config"),
            (r#"{"spaces_of": "CartPole-v1", "env_config": {"x": 1}}"#, "spaces_of = 'CartPole-v1': "),
            (r#"{"observation": {"type": "discrete", "n": 0}, "action": 1}"#, "the setting 'observation' is wrong"),
        ];
        for (settings, message) in cases {
            let error = agents(settings).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
