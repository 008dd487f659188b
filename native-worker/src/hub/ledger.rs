//! Checks the run's ledger while the run is in progress.

use rollmesh_core::{group::UnbalancedLedger, hub::Record};

use super::actor::Actor;
use crate::runs::{Run, RunEnd};

impl Actor {
    /// Ends a run that has lost an env step or counted one twice, since everything after that would be wrong.
    pub(super) fn check_ledger(&mut self) {
        let checked = self.hub.run.as_ref().filter(|run| !run.is_over()).map_or(Ok(()), Run::check_ledger);
        if let Err(error) = checked {
            self.end_run(RunEnd::Unbalanced(error));
        }
    }

    /// Logs and reports an unbalanced ledger, if that ended the run.
    pub(super) fn report_ledger(&mut self, run: u32, end: &RunEnd) {
        if let RunEnd::Unbalanced(error @ UnbalancedLedger(ledger)) = end {
            self.hub.record(Record::LedgerUnbalanced { run, ledger: ledger.clone() });
            self.hub.notice(2, format!("the run has failed: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rollmesh_core::group::Ledger;

    use super::*;
    use crate::{
        Registry,
        hub::{Hub, HubConfig, SecurityConfig, actor::Event},
        kernels::AUTO,
        runs::{RunConfig, RunRequest},
    };

    #[tokio::test]
    async fn lost_step_ends_the_run_and_is_logged() {
        let directory = tempfile::tempdir().unwrap();
        let audit_log = directory.path().join("audit.jsonl");
        let config = HubConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            dashboard: false,
            assets: None,
            worker_program: "/nowhere".into(),
            kernels: AUTO,
            external: None,
            allow_origins: Vec::new(),
            runs_dir: None,
            security: SecurityConfig { audit_log: Some(audit_log.clone()), ..SecurityConfig::default() },
        };
        let mut hub = Hub::start(config, &Registry::builtin()).await.unwrap();
        // There are no workers: only the hub's own timer can find the fault.
        let config = RunConfig::new("CartPole-v1").num_workers(0).fcnet_hiddens(&[4]);
        let summary = hub.train(RunRequest { remote_only: true, ..config.into() }).await.unwrap();
        let ledger = Ledger { granted: 8, outstanding: 7, ..Ledger::default() };
        let falsify = move |actor: &mut Actor| {
            actor.hub.run.iter_mut().for_each(|run| run.false_ledger = Some(ledger));
        };
        hub.events.send(Event::ask(falsify)).await.unwrap();
        let end = tokio::time::timeout(Duration::from_secs(60), summary).await.expect("it is found").unwrap().end;
        assert_eq!(end, RunEnd::Unbalanced(UnbalancedLedger(Box::new(ledger))));
        let text = loop {
            let notice = hub.next_notice().await.unwrap();
            if notice.level == 2 {
                break notice.text;
            }
        };
        assert_eq!(text, format!("the run has failed: {}", end.error().unwrap()));
        let log = std::fs::read_to_string(audit_log).unwrap();
        let mut records = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let record = records.find(|record| record["event"] == "ledger_unbalanced").unwrap();
        assert_eq!((&record["run"], &record["ledger"]["outstanding"]), (&1.into(), &7.into()));
        hub.shutdown().await;
    }
}
