//! Environments that fail, are restarted or given up.

use super::*;

/// Creates environments of which the second one of three fails in its third step, once.
fn failing() -> InProcess {
    let made = AtomicU32::new(0);
    envs(3, move || {
        let fails = made.fetch_add(1, SeqCst) == 1;
        let mut script = basic();
        move |t, actions: &AgentRows, turn: &mut Turn| {
            script(t, actions, turn)?;
            if fails && t == 3 { Err(EnvError::Failed("on fire".into())) } else { Ok(()) }
        }
    })
}

#[test]
fn a_failure_is_returned_and_the_others_have_moved() {
    let mut envs = failing();
    let (mut updates, mut turn) = (EnvUpdates::new(), Turn::new());
    poll(&mut envs, &mut updates).unwrap();
    (0..2).for_each(|_| step(&mut envs, &mut updates).unwrap());
    let source = Box::new(EnvError::Failed("on fire".into()));
    assert_eq!(step(&mut envs, &mut updates), Err(EnvError::InLane { lane: 1, source }));
    poll(&mut envs, &mut updates).unwrap();
    assert_eq!(updates.entries().iter().map(|entry| entry.env).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(envs.try_restart(1), Ok(()));
    assert_eq!(envs.try_reset(1, &mut turn), Ok(Reset::Done));
    assert_eq!(turn.obs().len(), 2);
}

#[test]
fn a_failure_can_be_survived() {
    let mut envs = failing().with_restarts(true);
    let (mut updates, mut turn) = (EnvUpdates::new(), Turn::new());
    poll(&mut envs, &mut updates).unwrap();
    (0..3).for_each(|_| step(&mut envs, &mut updates).unwrap());
    let faults: Vec<_> = updates.entries().iter().map(|entry| entry.fault.clone()).collect();
    assert_eq!(faults, [None, Some(EnvError::Failed("on fire".into())), None]);
    let lost = &updates.entries()[1].turn;
    assert!(lost.obs().is_empty() && lost.outcomes().len() == 0 && !lost.is_over());
    let actions = answer(&updates);
    assert_eq!(envs.try_reset(1, &mut turn), Ok(Reset::Done));
    let mut mine = EnvActions { env: 1, actions: AgentRows::new() };
    (0..2).for_each(|index| mine.actions.set(&agent(index), RowsRef::I64(&[0])));
    envs.send_actions(&[&actions[..], &[mine]].concat()).unwrap();
    // The others are in their fourth step, it is in its first.
    (0..21).for_each(|_| {
        poll(&mut envs, &mut updates).unwrap();
        let actions = answer(&updates);
        envs.send_actions(&actions).unwrap();
    });
    poll(&mut envs, &mut updates).unwrap();
    assert_eq!(updates.entries().iter().map(|entry| entry.turn.is_over()).collect::<Vec<_>>(), [true, false, true]);
}

const NO_POWER: &str = "the environment failed: no power";

fn given_up(env: usize) -> EnvError {
    EnvError::GivenUp { env, attempts: Health::MAX_FAILURES, reason: NO_POWER.into() }
}

/// Returns a script that always fails in one step.
fn broken(step: u32) -> impl Fn(u32, &AgentRows, &mut Turn) -> Result<(), EnvError> + Send + Clone {
    move |t, _, turn| {
        see(turn, 0, 0.0);
        if t == step { Err(EnvError::Failed("no power".into())) } else { Ok(()) }
    }
}

#[test]
fn environment_that_never_begins_is_quarantined() {
    let mut envs = envs(1, || broken(0)).with_restarts(true);
    let (mut updates, mut turn) = (EnvUpdates::new(), Turn::new());
    for failure in 1..=Health::MAX_FAILURES {
        poll(&mut envs, &mut updates).unwrap();
        let entry = &updates.entries()[0];
        let wanted = if failure == Health::MAX_FAILURES { given_up(0) } else { EnvError::Failed("no power".into()) };
        assert_eq!((entry.fault.as_ref(), entry.turn.obs().len()), (Some(&wanted), 0));
        if failure < Health::MAX_FAILURES {
            assert_eq!((envs.try_reset(0, &mut turn), turn.obs().len()), (Ok(Reset::Later), 0));
        }
    }
    assert_eq!((envs.try_reset(0, &mut turn), envs.sub_environments().len()), (Err(given_up(0)), 0));
    let all = EnvError::AllGivenUp { num_envs: 1, env: 0, reason: NO_POWER.into() };
    assert_eq!((poll(&mut envs, &mut updates), envs.quarantine(0)), (Err(all), Some(NO_POWER)));
}

#[test]
fn quarantined_environment_does_not_stop_the_others_and_is_restored_by_a_state() {
    // The second of three environments fails in its second step, after every restart.
    let made = AtomicU32::new(0);
    let spec = MultiAgentSpec::new("Scripted", move |context| {
        made.fetch_add(1, SeqCst);
        let script: Script = match context.home.vector_index {
            1 => Box::new(broken(2)),
            _ => Box::new(basic()),
        };
        Ok(Box::new(Scripted { t: 0, script }))
    });
    let mut envs = InProcess::new(EnvMaker::multi_agent(&spec), (0..3).map(start).collect(), 1).unwrap();
    envs = envs.with_restarts(true);
    let (mut updates, mut turn, mut faults) = (EnvUpdates::new(), Turn::new(), Vec::new());
    poll(&mut envs, &mut updates).unwrap();
    for _ in 0..20 {
        let mut actions = answer(&updates);
        let mut failed = None;
        for entry in updates.entries_mut() {
            faults.extend(entry.fault.take().inspect(|fault| failed = Some(fault.clone())));
        }
        if matches!(failed, Some(EnvError::Failed(_))) {
            assert_eq!(envs.try_reset(1, &mut turn), Ok(Reset::Done));
            let mut again = EnvActions { env: 1, ..EnvActions::default() };
            again.actions.set(&agent(0), RowsRef::I64(&[0]));
            actions.push(again);
        }
        envs.send_actions(&actions).unwrap();
        poll(&mut envs, &mut updates).unwrap();
    }
    let failed = EnvError::Failed("no power".into());
    assert_eq!(faults, [failed.clone(), failed.clone(), failed.clone(), failed, given_up(1)]);
    assert_eq!(updates.entries().iter().map(|entry| entry.env).collect::<Vec<_>>(), [0, 2]);
    assert_eq!([0, 1, 2].map(|env| envs.quarantine(env)), [None, Some(NO_POWER), None]);
    let mut actions = answer(&updates);
    actions.push(EnvActions { env: 1, ..EnvActions::default() });
    assert!(envs.send_actions(&actions).unwrap_err().to_string().contains("try_restart"));
    assert_eq!((envs.try_reset(1, &mut turn), envs.try_restart(1)), (Err(given_up(1)), Ok(())));
    assert_eq!((envs.try_reset(1, &mut turn), envs.quarantine(1)), (Ok(Reset::Done), None));
    assert_eq!(envs.sub_environments().len(), 3);
}

#[test]
fn restarted_environment_is_checked_like_the_first_one() {
    // Another one fails in its second step, after one that fails in its first one.
    static MADE: AtomicU32 = AtomicU32::new(0);
    let mut envs = envs(1, || broken(1 + MADE.fetch_add(1, SeqCst))).with_restarts(true);
    let looks = Arc::new(AtomicU32::new(0));
    let seen = looks.clone();
    envs.validate_with(Box::new(move |env, context| {
        assert!(matches!(env, SubEnv::MultiAgent(_)) && *context == start(0).context);
        // The second one is rejected.
        if seen.fetch_add(1, SeqCst) == 1 { Err(EnvError::Failed("too old".into())) } else { Ok(()) }
    }));
    assert!(envs.take_restarted(0).is_none() && envs.take_restarted(1).is_none());
    let (mut updates, mut turn) = (EnvUpdates::new(), Turn::new());
    poll(&mut envs, &mut updates).unwrap();
    step(&mut envs, &mut updates).unwrap();
    assert_eq!(looks.load(SeqCst), 1);
    assert!(envs.take_restarted(0).is_some_and(|(_, context)| context == start(0).context));
    assert!(envs.take_restarted(0).is_none());
    assert_eq!(envs.try_reset(0, &mut turn), Ok(Reset::Done));
    updates.clear();
    core::mem::swap(&mut updates.add(0).turn, &mut turn);
    step(&mut envs, &mut updates).unwrap();
    step(&mut envs, &mut updates).unwrap();
    // The one restarted immediately was rejected; the one for the reset is valid.
    assert!(updates.entries()[0].fault.is_some() && envs.take_restarted(0).is_none());
    assert_eq!((envs.try_reset(0, &mut turn), looks.load(SeqCst)), (Ok(Reset::Done), 3));
    assert!(envs.take_restarted(0).is_some());
}

#[test]
fn environment_that_cannot_restart_restarts_at_its_next_reset() {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let spec = MultiAgentSpec::new("Fragile", |_| match MADE.fetch_add(1, SeqCst) {
        1 => Err(EnvError::Failed("no memory".into())),
        _ => Ok(Box::new(Scripted {
            t: 0,
            script: Box::new(|t, _, turn| {
                see(turn, 0, 0.0);
                if t == 1 { Err(EnvError::Failed("on fire".into())) } else { Ok(()) }
            }),
        })),
    });
    let mut envs = InProcess::new(EnvMaker::multi_agent(&spec), vec![start(0)], 1).unwrap().with_restarts(true);
    let mut updates = EnvUpdates::new();
    poll(&mut envs, &mut updates).unwrap();
    step(&mut envs, &mut updates).unwrap();
    assert!(updates.entries()[0].fault.is_some() && envs.sub_environments().is_empty());
    assert_eq!(envs.try_reset(0, &mut Turn::new()), Ok(Reset::Done));
    assert_eq!((envs.sub_environments().len(), MADE.load(SeqCst)), (1, 3));
}
