//! The effects of each command, and the shape of its output.

use rollmesh_core::protocol::{Kind, Role, allow};
use serde_json::{Value, json};

use super::{HubProcess, count, json as parse, total};
use crate::support::{
    Process, keys,
    process::{Signal, children_of, has_ended},
    until,
};

/// Returns the names of everything in an object, as a tree with its leaves' types.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), shape(value))).collect(),
        Value::Array(items) => items.iter().take(1).map(shape).collect(),
        Value::Null => "null".into(),
        Value::Bool(_) => "bool".into(),
        Value::Number(number) if number.is_f64() => "float".into(),
        Value::Number(_) => "integer".into(),
        Value::String(_) => "text".into(),
    }
}

#[tokio::test]
async fn the_status_has_this_shape() {
    let hub = HubProcess::start().await;
    let rejected = || -> Value {
        let names =
            ["late", "duplicate", "not_leased", "corrupt", "mismatched", "stale", "early", "wrong_length", "audit"];
        names.into_iter().map(|name| (name.to_owned(), Value::from(0))).collect()
    };
    let ledger = json!({
        "granted": 0,
        "committed": 0,
        "superseded": 0,
        "rejected": rejected(),
        "expired": { "timed_out": 0, "left": 0, "refused": 0, "revoked": 0 },
        "outstanding": 0,
        "queued": 0,
        "consumed": 0,
        "dropped_stale": 0,
        "balances": true,
        "regenerated": 0,
        "abandoned_episodes": 0,
        "uninvited": { "superseded": 0, "rejected": rejected() },
    });
    let idle = json!({
        "server": concat!("rollmesh ", env!("CARGO_PKG_VERSION")),
        "certificate_expires": null,
        "run": 0,
        "phase": "idle",
        "starting": null,
        "env": null,
        "algo": null,
        "seed": 0,
        "num_slots": 0,
        "iteration": 0,
        "env_steps": 0,
        "max_env_steps": 0,
        "episodes": 0,
        "episode_return_mean": null,
        "stop_return": 0.0,
        "steps_per_s": 0.0,
        "wall_s": 0.0,
        "error": null,
        "failures": 0,
        "last_failure": null,
        "waiting": null,
        "num_workers": 0,
        "num_local_workers": 0,
        "hosts": {},
        "launchers": [],
        "num_worker_restarts": 0,
        "unhealthy_workers": [],
        "idle_workers": [],
        "ledger": ledger,
    });
    assert_eq!(hub.status().await, idle);
    assert_eq!(hub.workers().await, Vec::<Value>::new());

    hub.start_run(1).await;
    let running = hub.until_status("an episode", |status| status["episodes"] != 0).await;
    let mut expected = shape(&idle);
    expected["stop_return"] = "null".into();
    (expected["env"], expected["algo"]) = ("text".into(), "text".into());
    expected["episode_return_mean"] = "float".into();
    // The workers by machine.
    expected["hosts"] = shape(&running["hosts"]);
    assert_eq!(shape(&running), expected);
    assert_eq!((&running["run"], &running["phase"], &running["num_slots"]), (&1.into(), &"running".into(), &4.into()));
    assert_eq!(running["env"], "CartPole-v1");
    let worker = hub.workers().await.remove(0);
    let names = [
        "worker",
        "kind",
        "name",
        "host",
        "launcher",
        "device",
        "local",
        "state",
        "reason",
        "slots",
        "env_steps",
        "steps_per_s",
    ];
    let mut expected: Vec<&str> = names.into_iter().chain(["weights_lag"]).collect();
    let mut found = keys(&worker);
    expected.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!((&worker["name"], &worker["local"], &worker["reason"]), (&"local-1".into(), &true.into(), &Value::Null));

    let text = hub.succeed(&["status"]).await;
    assert!(text.contains("CartPole-v1 with ppo, seed 1") && text.contains("ledger      granted "), "{text}");
    assert!(!text.contains("IS NOT"), "{text}");
    let text = hub.succeed(&["workers"]).await;
    assert!(text.starts_with("id  kind    name     host") && text.lines().count() == 2, "{text}");
}

#[tokio::test]
async fn a_run_is_paused_resumed_and_stopped() {
    let hub = HubProcess::start().await;
    hub.start_run(2).await;
    hub.until_status("an iteration", |status| count(&status["iteration"]) > 0).await;
    assert_eq!(hub.succeed(&["pause"]).await, "run 1: paused\n");
    let paused = hub.until_status("nothing outstanding", |status| status["ledger"]["outstanding"] == 0).await;
    assert_eq!(paused["phase"], "paused");
    assert_eq!(hub.status().await["ledger"]["granted"], paused["ledger"]["granted"], "a paused run grants nothing");
    assert_eq!(hub.succeed(&["resume"]).await, "run 1: running\n");
    hub.until_status("more steps", |status| count(&status["env_steps"]) > count(&paused["env_steps"])).await;
    let stopped = hub.succeed(&["stop"]).await;
    assert!(stopped.starts_with("run 1: stopped after "), "{stopped}");
    let end = hub.command(&["pause"]).await;
    assert_eq!((end.status.code(), &*end.stderr), (Some(1), "error: there is no run to pause"));
}

#[tokio::test]
async fn workers_are_as_many_as_asked_for() {
    let hub = HubProcess::start().await;
    for (wanted, with_run) in [(2, false), (1, false), (3, true), (1, true), (0, true), (2, true)] {
        if with_run && hub.status().await["run"] == 0 {
            hub.start_run(1).await;
        }
        let said = hub.succeed(&["scale", &wanted.to_string()]).await;
        assert_eq!(said, format!("local workers: {wanted}\n"));
        let workers = hub.workers().await;
        assert_eq!(workers.iter().filter(|worker| worker["local"] == true).count(), wanted, "{workers:?}");
        until("the processes", || children_of(hub.process.pid()).len() == wanted).await;
    }
    let status = hub.until_status("steps", |status| count(&status["env_steps"]) > 0).await;
    let ledger = &status["ledger"];
    assert_eq!((&ledger["balances"], total(&ledger["rejected"])), (&true.into(), 0));
    assert_eq!(ledger["expired"]["left"], 0, "a worker that had to leave finished its lease");
    assert_eq!(status["num_worker_restarts"], 0);
}

#[tokio::test]
async fn drained_worker_is_not_replaced() {
    let hub = HubProcess::start().await;
    hub.start_run(2).await;
    hub.until_status("both", |status| status["num_workers"] == 2 && count(&status["iteration"]) > 0).await;
    let id = hub.workers().await[0]["worker"].to_string();
    assert_eq!(hub.succeed(&["drain", "--worker", &id]).await, format!("worker {id}: removed\n"));
    let status = hub.status().await;
    assert_eq!((&status["num_local_workers"], &status["phase"]), (&1.into(), &"running".into()));
    assert_eq!(status["ledger"]["expired"]["left"], 0);
    let end = hub.command(&["drain", "--worker", &id]).await;
    assert_eq!((end.status.code(), end.stderr), (Some(1), format!("error: there is no worker {id}")));
}

#[tokio::test]
async fn a_drained_run_has_lost_nothing() {
    let hub = HubProcess::start().await;
    let endless = format!("stop.env_steps={}", u64::MAX);
    let start = ["start", "--wait", "--json", "--set", "num_workers=2", "--set", "num_envs=4", "--set", &endless];
    let drain = async {
        hub.until_status("an iteration", |status| count(&status["iteration"]) > 0).await;
        hub.succeed(&["drain"]).await
    };
    let (end, said) = tokio::join!(hub.command(&start), drain);
    assert!(said.starts_with("run 1: drained after "), "{said}");
    assert_eq!((end.status.code(), &parse(&end.stdout)["state"]), (Some(0), &"drained".into()), "{}", end.stderr);
    let status = hub.status().await;
    let ledger = &status["ledger"];
    assert_eq!((&ledger["outstanding"], &ledger["expired"]["revoked"]), (&0.into(), &0.into()), "{ledger}");
    assert_eq!(ledger["committed"], status["env_steps"], "what was committed was learned from");
    // The hub continues, and so do its workers.
    assert_eq!(status["num_local_workers"], 2);
}

#[tokio::test]
async fn hung_worker_is_unhealthy_with_its_reason() {
    let hub = HubProcess::start().await;
    hub.start_run(2).await;
    hub.until_status("an iteration", |status| count(&status["iteration"]) > 0).await;
    // The upload of the other worker ends its lease before that is overdue.
    let victim = children_of(hub.process.pid())[0];
    let send = |signal| rustix::process::kill_process(rustix::process::Pid::from_raw(victim as i32).unwrap(), signal);
    send(Signal::STOP).unwrap();
    let status = hub.until_status("a hung worker", |status| status["unhealthy_workers"][0]["worker"].is_u64()).await;
    let reason = status["unhealthy_workers"][0]["reason"].as_str().unwrap();
    assert!(reason.starts_with("no progress for "), "{reason}");
    let hung = hub.workers().await.into_iter().find(|worker| worker["state"] == "hung").expect("it hangs");
    assert_eq!(hung["reason"], reason);
    let text = hub.succeed(&["status"]).await;
    assert!(text.contains(&format!("worker {}: {reason}", hung["worker"])), "{text}");
    send(Signal::CONT).unwrap();
    hub.until_status("its recovery", |status| status["unhealthy_workers"] == json!([])).await;
    assert!(!has_ended(victim));
}

#[tokio::test]
async fn a_status_that_is_watched_ends_with_its_hub() {
    let hub = HubProcess::start().await;
    let url = format!("ws://{}", hub.invitation.address);
    let token = hub.invitation.operator_token.clone();
    let args = ["status", "--watch", "--json", "--hub", &url];
    let mut watch = Process::start_with(args, |command| _ = command.env("ROLLMESH_TOKEN", token));
    hub.start_run(1).await;
    hub.until_status("an iteration", |status| count(&status["iteration"]) > 0).await;
    hub.process.signal(Signal::INT);
    watch.line("the hub has left: the hub is shutting down").await;
    let seen = watch.finish_with(0).await.stdout;
    let last = super::json(seen.lines().last().expect("a line"));
    assert_eq!(last["phase"], "stopped");
}

#[tokio::test]
async fn looking_takes_a_viewers_token_and_nothing_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit.jsonl");
    let hub = HubProcess::start_with(&["--audit-log", audit.to_str().unwrap()]).await;
    let viewer = hub.succeed(&["tokens", "create", "--role", "viewer"]).await;
    let url = format!("ws://{}", hub.invitation.address);
    // More refusals than are answered without delay.
    for command in ["status", "workers"].repeat(3) {
        let look = |process: &mut tokio::process::Command| _ = process.env("ROLLMESH_TOKEN", viewer.trim());
        Process::start_with([command, "--hub", &url], look).finish_with(0).await;
    }
    hub.status().await;
    let text = std::fs::read_to_string(&audit).unwrap();
    let records: Vec<Value> = text.lines().map(super::json).collect();
    let roles = |wanted: &str| {
        records.iter().filter(|record| record["event"] == "admitted" && record["role"] == wanted).count()
    };
    assert!(records.iter().all(|record| record["event"] != "refused"), "{text}");
    // The operator that made the token, and the viewers, one of them with the operator's.
    assert_eq!((roles("Operator"), roles("Viewer")), (1, 7), "{text}");
}

/// Checks that the limits list every kind of message.
#[tokio::test]
async fn printed_limits_include_every_kind_of_accepted_message() {
    let text = Process::start(["hub", "--print-limits"]).finish_with(0).await.stdout;
    let json = Process::start(["hub", "--print-limits", "--json"]).finish_with(0).await.stdout;
    let rows: Vec<Value> = serde_json::from_str(&json).unwrap();
    let values = |name: &str| -> Vec<u64> {
        rows.iter().filter(|row| row["name"] == name).map(|row| row["value"].as_u64().unwrap()).collect()
    };
    let lines = |name: &str| text.lines().filter(|line| line.split(' ').next() == Some(name)).count();
    for &kind in Kind::ALL {
        let name = format!("{kind:?}");
        let may_come = kind == Kind::Hello || Role::ALL.iter().any(|&role| allow(role, kind));
        let wanted = if may_come { vec![u64::from(kind.body_cap())] } else { vec![] };
        assert_eq!((values(&name), lines(&name)), (wanted.clone(), wanted.len()), "{name}");
    }
    assert_eq!((values("CallResult"), values("FragmentUpload")), (vec![1 << 30], vec![32 << 20]));
    assert_eq!((values("partial_messages"), lines("partial_messages")), (vec![256 << 20], 1));
    assert_eq!(text.lines().count(), rows.len());
}
