use std::pin::Pin;

use tokio::sync::watch as switch;

use super::*;
use crate::launch::LaunchedEnd;

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
async fn child_that_does_not_connect_in_time_is_killed() {
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
}
