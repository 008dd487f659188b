use std::{future::pending, pin::Pin};

use tokio::sync::watch as switch;

use super::*;
use crate::launch::LaunchedEnd;

/// A launcher that starts nothing.
#[derive(Debug)]
struct Idle;

impl Launcher for Idle {
    fn launch(&self, _order: &LaunchOrder<'_>) -> Result<Box<dyn LaunchedWorker>, LaunchError> {
        Ok(Box::new(Self))
    }
}

impl LaunchedWorker for Idle {
    fn pid(&self) -> Option<u32> {
        None
    }

    fn kill(&mut self) {}

    fn ended(&mut self) -> Pin<Box<dyn Future<Output = LaunchedEnd> + Send + '_>> {
        Box::pin(pending())
    }
}

fn children() -> Children {
    Children::new(Arc::new(Idle), Way::default(), mpsc::channel(1).0)
}

fn terms(children: &Children) -> Arc<ChildTerms> {
    let (spec, environs) = (WorkerSpec::default(), BTreeMap::new());
    Arc::new(ChildTerms { launcher: children.launcher(), spec, environs })
}

fn start(children: &mut Children) -> u32 {
    let terms = terms(children);
    children.start(&terms).unwrap().0
}

/// Starts and ends a child, useful or not, and returns what follows.
fn end(children: &mut Children, is_useful: bool) -> AfterExit {
    let number = start(children);
    if is_useful {
        children.was_useful(number);
    }
    children.handle_exit(number).unwrap().ended
}

const AT_ONCE: AfterExit = AfterExit::Replace(Duration::ZERO);

#[tokio::test]
async fn useless_children_are_replaced_with_backoff_up_to_a_limit() {
    let mut children = children();
    let pause = |ms| AfterExit::Replace(Duration::from_millis(ms));
    // Waiting for a launcher is no failure.
    let waits: Vec<AfterExit> =
        (0..7).map(|_| children.handle_failed_start(&LaunchError::NotYet("it is absent"))).collect();
    assert_eq!(waits, [const { AfterExit::Replace(NOT_YET) }; 7]);
    let ends: Vec<AfterExit> = (0..7).map(|_| end(&mut children, false)).collect();
    assert_eq!(ends, [AT_ONCE, AT_ONCE, pause(800), pause(1600), pause(3200), AfterExit::GiveUp, AfterExit::GiveUp]);
    // One success resets the count of failed starts.
    assert_eq!(end(&mut children, true), AT_ONCE);
    assert_eq!(end(&mut children, false), AT_ONCE);
}

#[tokio::test]
async fn place_that_fails_does_not_end_the_attempts_elsewhere() {
    let mut children = children();
    (0..MAX_FAILED_STARTS).for_each(|_| _ = end(&mut children, false));
    // Without a run no worker is useful; one that has connected and lives shows that others may.
    let elsewhere = start(&mut children);
    children.is_connected_as(elsewhere, 1);
    children.running.get_mut(&elsewhere).unwrap().began -= SHORT_LIFE;
    assert_eq!(end(&mut children, false), AT_ONCE);
    let rest: Vec<AfterExit> = (0..MAX_FAILED_STARTS).map(|_| end(&mut children, false)).collect();
    assert_eq!(rest.last(), Some(&AfterExit::GiveUp), "it is one success, not one for each failure");
    children.forget_failed_starts();
    assert_eq!(end(&mut children, false), AT_ONCE);
}

#[tokio::test]
async fn child_that_crashes_in_its_environment_is_replaced_for_ever_but_not_at_full_speed() {
    let mut children = children();
    let mut crash = || {
        let number = start(&mut children);
        children.has_crashed_at_work(number);
        children.handle_exit(number).unwrap().ended
    };
    let ends: Vec<AfterExit> = (0..7).map(|_| crash()).collect();
    let pause = |ms| AfterExit::Replace(Duration::from_millis(ms));
    assert_eq!(ends, [AT_ONCE, AT_ONCE, pause(800), pause(1600), pause(3200), pause(3200), pause(3200)]);
}

#[tokio::test]
async fn restarted_child_is_replaced_immediately_whatever_its_run_allows() {
    let mut children = children();
    children.replace_as(Replacement { max: 0, ..Replacement::default() });
    assert_eq!(end(&mut children, true), AfterExit::NotReplaced);
    for _ in 0..2 * MAX_FAILED_STARTS {
        let number = start(&mut children);
        children.restart(number);
        assert_eq!(children.handle_exit(number).unwrap().ended, AT_ONCE);
    }
    let leaving = start(&mut children);
    children.do_not_replace(leaving);
    children.restart(leaving);
    assert_eq!(children.handle_exit(leaving).unwrap().ended, AfterExit::AsWished);
}

#[tokio::test]
async fn crashes_at_work_and_starts_that_fail_are_counted_apart() {
    let mut children = children();
    let crash = |children: &mut Children| {
        let number = start(children);
        children.has_crashed_at_work(number);
        children.handle_exit(number).unwrap().ended
    };
    (0..7).for_each(|_| _ = crash(&mut children));
    // The number of failed starts is independent of the number of crashes.
    let ends: Vec<AfterExit> = (0..3).map(|_| end(&mut children, false)).collect();
    let pause = |ms| AfterExit::Replace(Duration::from_millis(ms));
    assert_eq!(ends, [AT_ONCE, AT_ONCE, pause(800)]);
    assert_eq!(crash(&mut children), pause(3200));
    let ends: Vec<AfterExit> = (0..3).map(|_| end(&mut children, false)).collect();
    assert_eq!(ends, [pause(1600), pause(3200), AfterExit::GiveUp]);
    assert_eq!(crash(&mut children), pause(3200), "a crash is never one too many");
}

#[tokio::test]
async fn failed_starts_are_retried_with_backoff_up_to_a_limit() {
    let mut children = children();
    let pauses: Vec<AfterExit> =
        (0..6).map(|_| children.handle_failed_start(&LaunchError::Failed(String::new()))).collect();
    let pause = |ms| AfterExit::Replace(Duration::from_millis(ms));
    assert_eq!(pauses, [pause(200), pause(400), pause(800), pause(1600), pause(3200), AfterExit::GiveUp]);
    // A scheduled replacement counts as a worker until it is cancelled.
    let (terms, number) = (terms(&children), children.next_number());
    children.replace_after(number, terms, Duration::from_secs(3600));
    assert_eq!((children.count(), children.staying().len(), children.awaits_any()), (1, 0, true));
    children.forget_replacements();
    assert_eq!((children.count(), children.begin_replacement(number).is_some()), (0, false));
}

#[tokio::test]
async fn a_spare_child_counts_once_it_has_a_place() {
    let mut children = children();
    let (ours, same) = (terms(&children), terms(&children));
    let others = ChildTerms { spec: WorkerSpec { cpus: 1, ..WorkerSpec::default() }, ..(*ours).clone() };
    let (spare, _) = children.start(&ours).unwrap();
    assert!(children.wants_spare());
    children.keep_as_spare(spare);
    assert_eq!((children.count(), children.staying().len(), children.wants_spare()), (0, 0, false));
    assert_eq!((children.take_spare(&others), children.take_spare(&same)), (None, Some(spare)));
    assert_eq!((children.count(), children.is_spare(spare)), (1, false));
    // The exit of a spare without a place is no failed start.
    for _ in 0..10 {
        let (spare, _) = children.start(&ours).unwrap();
        children.keep_as_spare(spare);
        assert_eq!(children.handle_exit(spare).unwrap().ended, AfterExit::AsWished);
    }
    assert_eq!((children.handle_exit(spare).unwrap().ended, children.wants_spare()), (AT_ONCE, true));
    children.replace_as(Replacement { max: 1, ..Replacement::default() });
    assert!(!children.wants_spare());
}

#[tokio::test]
async fn child_without_a_replacement_is_not_ended() {
    let mut children = children();
    let number = start(&mut children);
    assert!(children.may_end(number));
    children.replace_as(Replacement { max: 0, ..Replacement::default() });
    assert!(!children.may_end(number));
    children.do_not_replace(number);
    assert!(children.may_end(number) && !children.may_end(number + 1));
}

#[tokio::test]
async fn timer_of_an_earlier_disconnect_does_not_end_a_child_that_has_reconnected() {
    let (events, mut received) = mpsc::channel(1);
    let mut children = Children::new(Arc::new(Idle), Way::default(), events);
    let number = start(&mut children);
    children.is_connected_as(number, 3);
    children.ask_for(number, 3, Duration::ZERO);
    let Some(Event::ChildSilent { number: of, peer }) = received.recv().await else { panic!("no timer") };
    assert!(children.is_silent_since(of, peer));
    // It was connected again, and is not at the moment.
    children.is_connected_as(number, 4);
    assert!(!children.is_silent_since(of, peer) && children.is_silent_since(number, 4));
}

#[tokio::test]
async fn log_of_a_child_is_forwarded_line_by_line_within_its_limits() {
    let (events, mut received) = mpsc::channel(200);
    let mut lines = LogLines::new(7, events);
    // All lines are of one second.
    lines.second = Instant::now() + Duration::from_secs(3600);
    let mut next = || match received.try_recv() {
        Ok(Event::ChildSaid { number: 7, line }) => Some(line),
        _ => None,
    };
    lines.push(b"one\n\n tw");
    assert_eq!((next().as_deref(), next()), (Some("one"), None));
    lines.push(b"o\r\n");
    assert_eq!(next().as_deref(), Some(" two"));
    lines.push(&[b'x'; MAX_LINE_BYTES + 1]);
    assert_eq!(next().map(|line| line.len()), Some(MAX_LINE_BYTES));
    lines.push("\nmore".repeat(100).as_bytes());
    assert_eq!((0..100).filter_map(|_| next()).count() as u32, MAX_LINES_PER_S - 4);
    lines.lines = 0;
    drop(lines);
    assert_eq!(next().as_deref(), Some("more"), "a line without an end");
}

/// A process that starts and then hangs, until it is killed.
struct Hanging(switch::Sender<bool>);

impl LaunchedWorker for Hanging {
    fn pid(&self) -> Option<u32> {
        Some(1)
    }

    fn kill(&mut self) {
        self.0.send_replace(true);
    }

    fn ended(&mut self) -> Pin<Box<dyn Future<Output = LaunchedEnd> + Send + '_>> {
        Box::pin(async {
            self.0.subscribe().wait_for(|is_killed| *is_killed).await.unwrap();
            LaunchedEnd { status: "signal: 9 (SIGKILL)".into(), is_crash: false }
        })
    }
}

#[tokio::test]
async fn child_that_does_not_connect_in_time_is_killed_and_counts_as_a_failed_start() {
    let (events, mut received) = mpsc::channel(1);
    let (_kill, killed) = oneshot::channel();
    let (starting, started) = oneshot::channel();
    let hanging = || Box::new(Hanging(switch::Sender::new(false)));
    watch(7, hanging(), (killed, started), Some(Duration::ZERO), events.clone()).await;
    let Some(Event::ChildExited { number: 7, end }) = received.recv().await else { panic!("it is not killed") };
    assert_eq!(end.status, "it was killed, since it had not connected after 0 s; signal: 9 (SIGKILL)");
    assert!(starting.is_closed());
    // Once it has connected, only a request ends it.
    let (kill, killed) = oneshot::channel();
    let (starting, started) = oneshot::channel::<()>();
    drop(starting);
    let watching = tokio::spawn(watch(8, hanging(), (killed, started), Some(Duration::from_secs(3600)), events));
    kill.send(()).unwrap();
    watching.await.unwrap();
    let Some(Event::ChildExited { number: 8, end }) = received.recv().await else { panic!("it is not killed") };
    assert_eq!(end.status, "signal: 9 (SIGKILL)");
    // However long it took.
    let mut children = children();
    let number = start(&mut children);
    children.running.get_mut(&number).unwrap().began -= Duration::from_secs(120);
    assert_eq!((children.handle_exit(number).unwrap().ended, children.failed_starts), (AT_ONCE, 1));
    let number = start(&mut children);
    children.is_connected_as(number, 1);
    children.running.get_mut(&number).unwrap().began -= Duration::from_secs(120);
    assert_eq!((children.handle_exit(number).unwrap().ended, children.failed_starts), (AT_ONCE, 0));
}
