//! Sweeps for workers that make no progress, and for runs that no worker can sample for.

use super::*;

fn sweep_hung(hub: &mut Hub<Queue, Run>, second: u64) {
    hub.set_time(Micros::from_secs(second), 0);
    hub.sweep_hung();
}

/// Lets a worker join that cannot run the run.
fn join_unable(hub: &mut Hub<Queue, Run>) -> u32 {
    let (id, _) = join(hub, Role::Worker).expect("it is admitted");
    answer_unable(hub, id);
    id
}

fn answer_unable(hub: &mut Hub<Queue, Run>, id: u32) {
    let unable = Inability::new(InabilityKind::UnknownEnv, "there is no such environment");
    assert_eq!(hub.handle_message(id, Message::RunAnswer(RunAnswer::new(1, Err(&unable)))), None);
}

/// Returns whether a sweep at this time ends the run.
fn ends_hopeless_run(hub: &mut Hub<Queue, Run>, second: u64) -> bool {
    hub.set_time(Micros::from_secs(second), 0);
    hub.sweep_hopeless(false);
    hub.effects.iter().any(|effect| matches!(effect, HubEffect::Step(RunStep::End(_))))
}

#[test]
fn worker_that_does_not_answer_the_run_is_ended_or_disconnected_once() {
    let mut hub = hub_with_run();
    let of_child = Token::new([99; 32]);
    hub.tokens.add(&of_child, TokenGrant { role: Role::Worker, child: Some(7), expires: None });
    let (_, local) = join_with(&mut hub, Role::Worker, of_child).expect("it is admitted");
    let (_, remote) = join(&mut hub, Role::Worker).expect("it is admitted");
    effects(&mut hub);
    for second in 1..=240 {
        sweep_hung(&mut hub, second);
        // The shell ends the local one.
        let wanted: &[&str] = if second == 120 { &["Hung", "Notice"] } else { &[] };
        assert_eq!(effects(&mut hub), wanted, "after {second} s");
        assert_eq!((local.is_closed(), remote.is_closed()), (false, second >= 120), "after {second} s");
    }
}

#[test]
fn worker_whose_answer_is_read_after_a_suspension_of_the_hub_is_not_disconnected() {
    let mut hub = hub_with_run();
    let (id, link) = join(&mut hub, Role::Worker).expect("it is admitted");
    sweep_hung(&mut hub, 3_600);
    assert!(hub.hung.contains_key(&id) && !link.is_closed());
    assert_eq!(hub.handle_message(id, Message::RunAnswer(RunAnswer::new(1, Ok(())))), None);
    sweep_hung(&mut hub, 7_200);
    assert!(hub.hung.is_empty() && !link.is_closed());
}

#[test]
fn hopeless_run_ends_after_five_seconds_whatever_the_run_before_it_has_waited() {
    let mut hub = hub_with_run();
    let id = join_unable(&mut hub);
    assert!(!ends_hopeless_run(&mut hub, 0) && !ends_hopeless_run(&mut hub, 4));
    hub.run = hub_with_run().run;
    hub.bring_all_into_run();
    answer_unable(&mut hub, id);
    assert!(!ends_hopeless_run(&mut hub, 6) && !ends_hopeless_run(&mut hub, 10));
    assert!(ends_hopeless_run(&mut hub, 11));
}
