//! Names of workers that evaluate, which a tab must not take from others, and the workers that may ask them.

use rollmesh_core::{
    protocol::{
        AskOutcome, Message, Role, Token,
        message::{Ask, Hello, Refused},
    },
    worker::{CommandError, CommandErrorKind},
};

use super::{TestHub, divergent::token_of_page};
use crate::support::client::{Client, hello};

/// Capability of a worker that evaluates.
const EVALUATES: u64 = 1;
/// Capability of a worker that asks those.
const ASKS: u64 = 2;

async fn evaluator(hub: &TestHub, token: Token) -> (Client, Message) {
    worker_with(hub, token, EVALUATES).await
}

async fn worker_with(hub: &TestHub, token: Token, capabilities: u64) -> (Client, Message) {
    let mut client = Client::connect(hub.hub.address()).await;
    let hello = hello(Role::Worker, token);
    client.say(&Message::Hello(Hello { capabilities, name: "judge".into(), ..hello })).await;
    let answer = client.receive().await.expect("the hub answers");
    (client, answer)
}

#[tokio::test]
async fn tab_gives_its_name_to_a_worker_and_never_takes_it_back() {
    let hub = TestHub::start().await;
    let (of_page, own) = (token_of_page(&hub).await, hub.hub.worker_token());
    let (mut tab, answer) = evaluator(&hub, of_page).await;
    assert!(matches!(answer, Message::Welcome(_)), "the name is free: {answer:?}");
    let (worker, answer) = evaluator(&hub, own).await;
    assert!(matches!(answer, Message::Welcome(_)), "a worker takes it from the tab: {answer:?}");
    while tab.receive().await.is_some() {}
    let (_, answer) = evaluator(&hub, own).await;
    assert!(matches!(answer, Message::Refused(_)), "of two workers the first keeps it: {answer:?}");
    drop(worker);
    let (_, answer) = evaluator(&hub, of_page).await;
    let Message::Refused(Refused { reason, .. }) = answer else { panic!("the name is a worker's: {answer:?}") };
    assert!(reason.contains("judge"), "{reason}");
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn ask_is_refused_without_the_capability_to_ask() {
    let hub = TestHub::start().await;
    let token = hub.hub.worker_token();
    let (_judge, answer) = evaluator(&hub, token).await;
    assert!(matches!(answer, Message::Welcome(_)), "{answer:?}");
    // With the capability, the request itself is checked.
    let reasons = [
        (0, CommandErrorKind::Unhealthy, "this worker did not say that it asks others"),
        (ASKS, CommandErrorKind::Malformed, "only evaluations can be asked of other workers"),
    ];
    for (capabilities, kind, message) in reasons {
        let (mut worker, _) = worker_with(&hub, token, capabilities).await;
        worker.say(&Message::Ask(Ask { ask: 7, name: "judge".into(), body: vec![255] })).await;
        let asked = worker.wait_for(|message| match message {
            Message::Asked(asked) => Some(asked.clone()),
            _ => None,
        });
        let asked = asked.await;
        assert_eq!((asked.ask, asked.outcome), (7, AskOutcome::Failed.to_wire()));
        assert_eq!(CommandError::decode(&asked.body), CommandError::new(kind, message));
    }
    hub.hub.shutdown().await;
}
