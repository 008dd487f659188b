//! Pictures of the watched slot and of evaluations.

use super::*;

#[test]
fn watched_slot_is_drawn_for_a_dashboard_that_connects_after_the_run() {
    let config = config();
    let mut runner = SlotRunner::new(&config, builder()).expect("a runner");
    let mut hub = hub_with_run();
    let (id, link) = join(&mut hub, Role::Worker).expect("it is admitted");
    hub.handle_message(id, Message::RunAnswer(RunAnswer::new(1, Ok(()))));
    effects(&mut hub);
    let sent = link.take();
    let Some(Message::LeaseGrant(grant)) = sent.last() else { panic!("{sent:?}") };
    runner.begin(convert::lease(grant, &config).expect("a lease")).expect("it can be run");
    let Advance::Done { lease, fragments } = runner.advance(8) else { panic!("8 steps are a fragment") };
    hub.handle_decoded(id, DecodedUpload::new(lease, fragments));
    assert_eq!(effects(&mut hub), ["Delivered", "Consume"], "no dashboard watches");
    hub.run.as_mut().expect("a run").0.handle_taken(Micros(0));
    hub.course.handle_counted();
    assert_eq!(effects(&mut hub), ["End"]);

    let (viewer, shown) = join(&mut hub, Role::Viewer).expect("it is admitted");
    let mut all = core::iter::from_fn(|| hub.poll_effect());
    let Some(HubEffect::Draw(job)) = all.find(|effect| matches!(effect, HubEffect::Draw(_))) else { panic!("a job") };
    let clip = job.draw(&mut SlotRunner::new(&config, builder()).expect("a runner"));
    assert_eq!((clip.steps().collect::<Vec<_>>(), &*clip.reason), ((0..8).map(|t| (0, t)).collect(), ""));
    let mut film = Film::read(clip.width, clip.height, &clip.film).expect("a film");
    assert!(film.len() == 8 && film.picture(0).cloned() != film.picture(7).cloned());
    assert_eq!(codec::decode(&clip.batch).expect("rows").len(), 8);
    hub.handle_clip(clip.clone());
    hub.refresh_dashboards();
    assert!(shown.take().contains(&Message::SlotClip(clip.clone())));
    assert!(effects(&mut hub).is_empty(), "it is drawn once");
    let (_, later) = join(&mut hub, Role::Viewer).expect("it is admitted");
    assert!(later.take().contains(&Message::SlotClip(clip)), "it stays");

    let mut ask = |slot| {
        hub.handle_message(viewer, Message::RecentFragmentRequest(RecentFragmentRequest { request: 9, slot, back: 0 }));
        shown.take().pop()
    };
    assert!(matches!(ask(0), Some(Message::FragmentReport(report)) if report.rows == 8 && report.worker == id));
    let kept = "of slot 1 since a dashboard is connected";
    assert!(
        matches!(ask(1), Some(Message::Reply(reply)) if reply.error.contains(kept)),
        "only the watched slot's was kept"
    );
}

#[test]
fn clips_follow_a_history_that_fills_the_queue_of_a_new_dashboard() {
    let mut hub = hub_with_run();
    hub.handle_clip(EnvClip { run: 1, film: vec![7; EnvClip::MAX_FILM_BYTES], ..EnvClip::default() });
    for iteration in 1..=4_000 {
        let point = Iteration { run: 1, iteration, ..Iteration::default() };
        hub.dashboards.add_iteration(point, NamedMetrics::new(1, iteration, [("lag_mean".into(), 0.5)]));
    }
    let (_, link) = join(&mut hub, Role::Viewer).expect("it is admitted");
    let has_clip = |kinds: &[Kind]| kinds.contains(&Kind::SlotClip);
    let first = link.kinds();
    assert!(first.contains(&Kind::LedgerReport) && !has_clip(&first));
    hub.refresh_dashboards();
    assert!(has_clip(&link.kinds()), "its queue is empty again");
}

#[test]
fn dashboards_of_a_run_without_leases_get_the_reason_why_there_are_no_pictures_once() {
    let parts = builder().learning_parts(&config()).expect("a run");
    let parts = RunLoopConfig::sampling(1, config(), &parts).expect("weights");
    let parts = RunLoopConfig { consumer: BatchConsumer::OwnWorker, ..parts };
    let mut hub = hub();
    hub.run = Some(Run(RunLoop::new(parts, Micros(0)).expect("a run of its own worker")));
    let (_, shown) = join(&mut hub, Role::Viewer).expect("it is admitted");
    let clips = |shown: &Queue| {
        let messages = shown.take().into_iter();
        messages
            .filter_map(|message| if let Message::SlotClip(clip) = message { Some(clip) } else { None })
            .collect::<Vec<_>>()
    };
    assert_eq!(clips(&shown), []);
    effects(&mut hub);
    hub.refresh_dashboards();
    let [clip] = &clips(&shown)[..] else { panic!("one clip") };
    assert!(clip.run == 1 && clip.film.is_empty() && clip.reason.starts_with("the run has no leases"), "{clip:?}");
    effects(&mut hub);
    hub.refresh_dashboards();
    assert_eq!(clips(&shown), []);
    let (_, later) = join(&mut hub, Role::Viewer).expect("it is admitted");
    assert_eq!(clips(&later), core::slice::from_ref(clip), "it stays");
}

#[test]
fn best_evaluation_is_the_best_of_those_with_pictures() {
    let mut hub = hub_with_run();
    let clip = |iteration| EnvClip { run: 1, weights_version: iteration, ..EnvClip::default() };
    let mut evaluate = |iteration, episode_return_mean, is_drawn: bool| {
        let point = EvaluationPoint { run: 1, iteration, episode_return_mean, ..EvaluationPoint::default() };
        hub.dashboards.add_evaluation(point, is_drawn.then(|| clip(iteration)));
    };
    evaluate(1, 10.0, true);
    evaluate(2, 50.0, false);
    evaluate(3, 20.0, true);
    evaluate(4, 15.0, true);
    evaluate(5, f32::NAN, true);
    let (_, link) = join(&mut hub, Role::Viewer).expect("it is admitted");
    let sent = link.take();
    assert!(sent.contains(&Message::BestEvaluationClip(clip(3))), "the better one of 2 has no pictures");
    assert!(sent.contains(&Message::EvaluationClip(clip(5))));
}
