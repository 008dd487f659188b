//! Names of workers that evaluate, which a tab must not take from others.

use rollmesh_core::protocol::{
    Message, Role, Token,
    message::{Hello, Refused},
};

use super::{
    TestHub,
    liars::token_of_page,
    support::client::{Client, hello},
};

/// Capability of a worker that evaluates.
const EVALUATES: u64 = 1;

async fn evaluator(hub: &TestHub, token: Token) -> (Client, Message) {
    let mut client = Client::connect(hub.hub.address()).await;
    let hello = hello(Role::Worker, token);
    client.say(&Message::Hello(Hello { capabilities: EVALUATES, name: "judge".into(), ..hello })).await;
    let answer = client.hear().await.expect("the hub answers");
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
    while tab.hear().await.is_some() {}
    let (_, answer) = evaluator(&hub, own).await;
    assert!(matches!(answer, Message::Refused(_)), "of two workers the first keeps it: {answer:?}");
    drop(worker);
    let (_, answer) = evaluator(&hub, of_page).await;
    let Message::Refused(Refused { reason, .. }) = answer else { panic!("the name is a worker's: {answer:?}") };
    assert!(reason.contains("judge"), "{reason}");
    hub.hub.shutdown().await;
}
