//! The connection to each worker, whatever its transport.

use std::{
    collections::VecDeque,
    fmt,
    time::{Duration, Instant},
};

use rollmesh_core::{
    calls::{CallCommand, CallEvent, UnhealthyCause},
    ids::{CallId, WeightsVersion, WorkerId},
    protocol::{Message, message},
    worker::{CommandError, CommandErrorKind, WorkerAnswer, WorkerPlace},
};

use super::{
    GroupError, GroupNotification, WorkerGroup,
    builder::Placement,
    task::{Kind, Request, TaskAnswer},
    thread::ThreadLink,
};
use crate::{hub::WorkerNotification, pulse::Pulse};

/// A remote worker of the group.
pub(super) struct Member {
    pub(super) place: WorkerPlace,
    pub(super) link: MemberLink,
    /// True if it was set up since it last connected.
    pub(super) is_set_up: bool,
    /// True if it has been healthy: a worker that connects now replaces it.
    pub(super) has_worked: bool,
    /// True if it does not answer and never will.
    pub(super) is_stuck: bool,
    /// The number of its restarts.
    pub(super) restarts: u32,
    /// Env steps of its samples, for dashboards.
    pub(super) env_steps: u64,
    /// Its number on dashboards while it has no connection.
    pub(super) number: u32,
    /// Version of the weights that it uses after all calls sent so far; the initial version before any sync.
    pub(super) weights: WeightsVersion,
}

/// Transport to a worker.
pub(super) enum MemberLink {
    Thread { link: ThreadLink, generation: u64 },
    Seat(Seat),
}

/// A place for a worker that connects through the hub.
#[derive(Debug, Default)]
pub(super) struct Seat {
    /// True if a local process takes it; else any worker that connects may.
    pub(super) is_local: bool,
    pub(super) peer: Option<u32>,
    /// The time of its worker's last message.
    pulse: Option<Pulse>,
    /// The number of the local process that is to take it.
    pub(super) child: Option<u32>,
    /// Messages queued until its worker connects.
    waiting: VecDeque<Message>,
}

impl Seat {
    pub(super) fn new(is_local: bool) -> Self {
        Self { is_local, ..Self::default() }
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("place", &self.place).field("kind", &self.kind()).finish_non_exhaustive()
    }
}

impl Member {
    pub(super) fn new(place: WorkerPlace, link: MemberLink, number: u32) -> Self {
        Self {
            place,
            link,
            is_set_up: false,
            has_worked: false,
            is_stuck: false,
            restarts: 0,
            env_steps: 0,
            number,
            weights: WeightsVersion::default(),
        }
    }

    /// Returns the kind of its transport.
    pub(super) fn kind(&self) -> &'static str {
        match &self.link {
            MemberLink::Thread { .. } => "thread",
            MemberLink::Seat(seat) if seat.is_local => "process",
            MemberLink::Seat(_) => "remote",
        }
    }

    /// Returns its seat; `None` for a worker in this process.
    pub(super) fn seat(&self) -> Option<&Seat> {
        match &self.link {
            MemberLink::Seat(seat) => Some(seat),
            MemberLink::Thread { .. } => None,
        }
    }

    pub(super) fn seat_mut(&mut self) -> Option<&mut Seat> {
        match &mut self.link {
            MemberLink::Seat(seat) => Some(seat),
            MemberLink::Thread { .. } => None,
        }
    }

    /// Returns when the worker last made progress, as far as that is visible from here.
    fn last_progress(&self) -> Option<Instant> {
        match &self.link {
            MemberLink::Thread { link, .. } => Some(link.last_progress()),
            MemberLink::Seat(seat) => seat.pulse.as_ref().map(Pulse::last),
        }
    }

    /// Returns whether it can be called: a seat may be empty.
    pub(super) fn is_there(&self) -> bool {
        self.seat().is_none_or(|seat| seat.peer.is_some())
    }
}

impl WorkerGroup {
    /// Creates the link to a new worker.
    pub(super) fn link(&mut self, id: WorkerId, placement: &Placement) -> std::io::Result<MemberLink> {
        match placement {
            Placement::Threads => self.thread_link(id, 0),
            Placement::Processes(_) => Ok(MemberLink::Seat(Seat::new(true))),
            Placement::Remote => Ok(MemberLink::Seat(Seat::new(false))),
        }
    }

    pub(super) fn thread_link(&self, id: WorkerId, generation: u64) -> std::io::Result<MemberLink> {
        let link = ThreadLink::start(id, generation, self.factory.clone(), self.notification_sender.clone())?;
        Ok(MemberLink::Thread { link, generation })
    }

    /// Sends the manager's commands and handles its events.
    pub(super) fn pump(&mut self) {
        while let Some(command) = self.manager.poll_command() {
            self.forward(command);
        }
        while let Some(event) = self.manager.poll_event() {
            if let CallEvent::WorkerUnhealthy {
                worker,
                cause: UnhealthyCause::CallTimeout(_) | UnhealthyCause::LeaseExpired,
            } = event
                && let Some(member) = self.members.get_mut(&worker)
            {
                member.is_stuck = true;
            }
            self.show_notice(&event);
            self.notice(event);
        }
        self.show();
    }

    fn forward(&mut self, command: CallCommand<Request>) {
        let CallCommand { worker, call, request } = command;
        let Some(member) = self.members.get_mut(&worker) else { return };
        match &mut member.link {
            MemberLink::Thread { link, .. } => {
                if !link.send(call, request) {
                    self.manager.handle_left(worker);
                }
            }
            MemberLink::Seat(seat) => match message(call, &request) {
                Ok(message) => match (seat.peer, &self.hub) {
                    (Some(peer), Some(hub)) => hub.workers.send(peer, message),
                    _ => seat.waiting.push_back(message),
                },
                Err(error) => {
                    let now = self.now();
                    self.manager.handle_result(worker, call, Err(error), now);
                }
            },
        }
    }

    /// Handles pending notifications before deadlines, so that no worker counts as late whose answer has already
    /// arrived.
    pub fn take_notifications(&mut self) {
        while let Ok(notification) = self.notifications.try_recv() {
            self.handle(notification);
        }
        self.feel_pulses();
        self.manager.handle_timeout(self.now());
        self.pump();
    }

    fn feel_pulses(&mut self) {
        for (&id, member) in &self.members {
            if let Some(last) = member.last_progress() {
                self.manager.handle_progress(id, last.saturating_duration_since(self.epoch).into());
            }
        }
    }

    /// Waits until the condition holds or the timeout is over. Returns true if the condition holds.
    ///
    /// # Errors
    /// [`GroupError::NotSetUp`] if the group is stopped meanwhile, which drops its calls.
    pub(super) fn wait_until(
        &mut self,
        timeout: Option<Duration>,
        mut is_so: impl FnMut(&mut Self) -> bool,
    ) -> Result<bool, GroupError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        // A group that is being stopped waits for its workers, too.
        let was_stopped = self.is_stopped;
        loop {
            self.take_notifications();
            if self.is_stopped && !was_stopped {
                return Err(GroupError::NotSetUp);
            }
            if is_so(self) {
                return Ok(true);
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Ok(false);
            }
            let due = self.manager.poll_timeout().map(|at| self.epoch + Duration::from(at));
            let notification = match [deadline, due].into_iter().flatten().min() {
                // Slightly after the deadline, so that it has passed.
                Some(at) => {
                    self.notifications.recv_timeout(at.saturating_duration_since(now) + Duration::from_micros(1)).ok()
                }
                // The group holds a sender itself: this blocks until a notification arrives.
                None => self.notifications.recv().ok(),
            };
            if let Some(notification) = notification {
                self.handle(notification);
            }
        }
    }

    fn handle(&mut self, notification: GroupNotification) {
        let now = self.now();
        match notification {
            GroupNotification::Answer { worker, generation, call, result } => {
                let is_current = self.members.get(&worker).is_some_and(
                    |member| matches!(member.link, MemberLink::Thread { generation: current, .. } if current == generation),
                );
                if is_current {
                    self.count_env_steps(worker, &result);
                    self.manager.handle_result(worker, call, result, now);
                }
            }
            GroupNotification::Hub(WorkerNotification::Result { peer, result }) => {
                if let Some(worker) = self.sitting(peer) {
                    let answer = WorkerAnswer::read(&result).map(TaskAnswer::Answer);
                    self.count_env_steps(worker, &answer);
                    self.manager.handle_result(worker, CallId(result.call), answer, now);
                }
            }
            GroupNotification::Hub(WorkerNotification::Joined { peer, child, pulse, is_throttled }) => {
                if let Some(worker) = self.take_seat(peer, child, pulse) {
                    // Cannot fail: it has a seat, so the manager knows it.
                    let _ = self.manager.set_throttled(worker, is_throttled);
                }
            }
            GroupNotification::Hub(WorkerNotification::Left { peer, reason }) => {
                if let Some(worker) = self.sitting(peer) {
                    if let Some(seat) = self.members.get_mut(&worker).and_then(Member::seat_mut) {
                        (seat.peer, seat.pulse) = (None, None);
                        seat.waiting.clear();
                    }
                    self.manager.handle_left(worker);
                    self.notice(format_args!("worker {worker} left: {reason}"));
                }
            }
            GroupNotification::Hub(WorkerNotification::Replaced { child, by }) => {
                let mut seats = self.members.values_mut().filter_map(Member::seat_mut);
                if let Some(seat) = seats.find(|seat| seat.child == Some(child)) {
                    seat.child = Some(by);
                }
            }
            GroupNotification::Notice(text) => self.notice(text),
            // A request from before the group was set up again is stale.
            GroupNotification::Stop if !self.stopper.is_asked() => {}
            GroupNotification::Stop => self.stop(),
            GroupNotification::Hub(WorkerNotification::GaveUp(reason)) => {
                self.notice(&reason);
                self.gave_up = Some(reason);
            }
        }
        self.pump();
    }

    /// Returns the worker whose seat a peer has.
    fn sitting(&self, peer: u32) -> Option<WorkerId> {
        let has = |member: &Member| member.seat().is_some_and(|seat| seat.peer == Some(peer));
        self.members.iter().find(|(_, member)| has(member)).map(|(&id, _)| id)
    }

    /// Assigns a seat to a peer that connected: its own to a local process, otherwise the first free one. Returns the worker
    /// whose seat it is.
    fn take_seat(&mut self, peer: u32, child: Option<u32>, pulse: Pulse) -> Option<WorkerId> {
        let is_for_it = |seat: &Seat| match child {
            // A peer that still has it is a lost connection of the same process.
            Some(_) => seat.child == child,
            None => !seat.is_local && seat.peer.is_none(),
        };
        let mut seats = self.members.iter().filter(|(_, member)| member.seat().is_some_and(is_for_it));
        let Some(id) = seats.next().map(|(&id, _)| id) else {
            // There is no free seat: the peer is dismissed, and may connect again.
            if let Some(hub) = &self.hub {
                hub.workers.dismiss(peer);
            }
            self.notice(format_args!("a worker came for whom the group has no place: ask for more workers first"));
            return None;
        };
        let member = self.members.get_mut(&id)?;
        let came_before = member.is_set_up;
        (member.is_set_up, member.is_stuck) = (false, false);
        let MemberLink::Seat(seat) = &mut member.link else { return None };
        let was_taken = seat.peer.replace(peer).is_some();
        seat.pulse = Some(pulse);
        if let Some(hub) = &self.hub {
            for message in seat.waiting.drain(..) {
                hub.workers.send(peer, message);
            }
        }
        if came_before || was_taken || self.manager.is_healthy(id) == Some(false) {
            self.manager.handle_joined(id);
        }
        Some(id)
    }
}

/// Returns the message to a worker in another process.
fn message(call: CallId, request: &Request) -> Result<Message, CommandError> {
    match &request.0 {
        Kind::Setup(setup) => setup.message(call),
        Kind::Command(command, bytes) => {
            let body = bytes.get_or_init(|| command.encode()).clone()?;
            Ok(Message::Call(message::Call { call: call.0, body }))
        }
        Kind::Code(_) => {
            Err(CommandError::new(CommandErrorKind::Malformed, "closures stay in their process: ask by name"))
        }
    }
}
