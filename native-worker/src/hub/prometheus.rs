//! The hub's numbers for Prometheus, in its text format: `GET /metrics` with the token of a viewer or an operator.

use std::fmt::{Display, Write as _};

use hyper::header::{self, HeaderMap};
use rollmesh_core::protocol::{
    Phase, Role, Token, WorkerState,
    message::{HostReport, WorkerRow},
};

use super::{actor::Actor, token_file};

/// The media type of the format.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns the token of an `Authorization: Bearer TOKEN`.
pub(super) fn bearer(headers: &HeaderMap) -> Option<Token> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    Some(token).filter(|_| scheme.eq_ignore_ascii_case("bearer")).and_then(|token| Token::from_hex(token.trim()).ok())
}

/// The text, family by family.
#[derive(Default)]
struct Exposition(String);

impl Exposition {
    /// Begins a family, whose samples follow. Names of counters end with `_total`.
    fn family(&mut self, name: &str, help: &str) {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{}{label}=\"{text}\"", if index == 0 { '{' } else { ',' });
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    /// Adds a family of one sample.
    fn single(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, help);
        self.sample(name, &[], value);
    }
}

/// A family's name, its help text, and a function that returns a value.
type Family<T> = (&'static str, &'static str, fn(&T) -> f64);

impl Actor {
    /// Returns the numbers; `None` if the token is not valid for a dashboard.
    pub(super) fn metrics_for(&self, token: &Token) -> Option<String> {
        let (_, grant) = self.hub.tokens.table().find(token, token_file::now())?;
        matches!(grant.role, Role::Viewer | Role::Operator).then(|| self.metrics())
    }

    fn metrics(&self) -> String {
        let mut text = Exposition::default();
        text.family("rollmesh_info", "Version of the hub.");
        text.sample("rollmesh_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
        text.single("rollmesh_uptime_seconds", "Time since the hub started.", self.now().as_secs_f64());
        let restarts = self.hub.num_worker_restarts;
        text.single(
            "rollmesh_worker_restarts_total",
            "Local workers that ended unexpectedly and were replaced.",
            restarts,
        );
        self.add_run(&mut text);
        self.add_workers(&mut text);
        self.add_hosts(&mut text);
        text.0
    }

    fn add_run(&self, text: &mut Exposition) {
        let Some(run) = &self.hub.run else { return };
        let status = run.state.status(self.now());
        text.family("rollmesh_run_phase", "1 for the phase of the latest run.");
        let number = status.run.to_string();
        for phase in Phase::ALL.iter().filter(|phase| **phase != Phase::Idle) {
            let labels =
                [("run", &*number), ("env", &status.env), ("algorithm", &status.algo), ("phase", phase.name())];
            text.sample("rollmesh_run_phase", &labels, u8::from(phase.to_wire() == status.phase));
        }
        text.single("rollmesh_run_iterations_total", "Learner updates of the run.", status.iteration);
        text.single("rollmesh_run_env_steps_total", "Env steps that the learner has used.", status.env_steps);
        text.single("rollmesh_run_episodes_total", "Finished episodes of the run.", status.episodes);
        let mean = status.episode_return_mean;
        text.single("rollmesh_run_episode_return_mean", "Mean return of the latest 100 episodes.", mean);
        let rate = status.steps_per_s;
        text.single("rollmesh_run_env_steps_per_second", "Env steps per second of the latest iteration.", rate);
        text.single("rollmesh_run_failures_total", "Fragments that failed.", status.failures);
        text.family("rollmesh_ledger_env_steps", "Env steps that were granted, by outcome.");
        for (outcome, steps) in [
            ("committed", status.committed),
            ("superseded", status.superseded),
            ("rejected", status.rejected),
            ("expired", status.expired),
            ("outstanding", status.outstanding),
        ] {
            text.sample("rollmesh_ledger_env_steps", &[("outcome", outcome)], steps);
        }
    }

    fn add_workers(&self, text: &mut Exposition) {
        let rows = self.hub.worker_rows();
        text.family("rollmesh_workers", "Connected workers by state.");
        for state in WorkerState::ALL {
            let count = rows.iter().filter(|row| row.state == state.to_wire()).count();
            text.sample("rollmesh_workers", &[("state", state.name())], count);
        }
        let families: [Family<WorkerRow>; 3] = [
            ("rollmesh_worker_env_steps_total", "Env steps that were committed from the worker.", |row| {
                row.env_steps as f64
            }),
            ("rollmesh_worker_env_steps_per_second", "Env steps per second of the worker.", |row| {
                row.steps_per_s.into()
            }),
            ("rollmesh_worker_weights_lag", "Learner updates behind the newest weights.", |row| row.weights_lag as f64),
        ];
        for (name, help, number) in families {
            text.family(name, help);
            for row in &rows {
                let id = row.worker.to_string();
                text.sample(name, &[("worker", &id), ("name", &row.name), ("kind", &row.kind)], number(row));
            }
        }
    }

    fn add_hosts(&self, text: &mut Exposition) {
        let families: [Family<HostReport>; 3] = [
            ("rollmesh_host_cpu_ratio", "Load of all CPUs of the host.", |host| f64::from(host.cpu_percent) / 100.0),
            ("rollmesh_host_memory_used_bytes", "Used memory of the host.", |host| host.memory_used as f64),
            ("rollmesh_host_memory_bytes", "Memory of the host.", |host| host.memory_total as f64),
        ];
        let measured = || self.hub.dashboards.hosts().filter(|host| host.memory_total > 0);
        for (name, help, number) in families {
            text.family(name, help);
            for host in measured() {
                let id = host.worker.to_string();
                text.sample(name, &[("host", &host.host), ("worker", &id)], number(host));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn samples_are_lines_of_the_text_format() {
        let mut text = Exposition::default();
        text.single("a_total", "Help.", 3);
        text.family("b", "Help.");
        text.sample("b", &[("x", "say \"hi\"\\\n"), ("y", "1")], f32::NAN);
        let wanted = "# HELP a_total Help.\n# TYPE a_total counter\na_total 3\n\
                      # HELP b Help.\n# TYPE b gauge\nb{x=\"say \\\"hi\\\"\\\\\\n\",y=\"1\"} NaN\n";
        assert_eq!(text.0, wanted);
    }

    #[test]
    fn only_a_bearer_token_is_read() {
        let token = Token::new([7; 32]);
        let read = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_str(value).expect("a header"));
            bearer(&headers)
        };
        assert!(read(&format!("Bearer {}", token.to_hex())) == Some(token));
        assert!(read("Bearer 7").is_none() && read(&token.to_hex()).is_none() && bearer(&HeaderMap::new()).is_none());
        assert!(read(&format!("Basic {}", token.to_hex())).is_none());
    }
}
