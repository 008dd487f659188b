//! A worker whose messages the test sees and can change.

use std::fmt::Display;

use rollmesh::kernels::AUTO;
use rollmesh_core::{
    batch::SlotFragment,
    env::EnvRegistry,
    ids::LeaseId,
    lease::Lease,
    protocol::{
        Message, Role, Token,
        convert::{self, FragmentLimits},
        handshake::Identity,
        message::FragmentUpload,
    },
    run::RunConfig,
    sampler::{FragmentLayout, RecurrentShape},
    time::Micros,
    worker::{Registry, WorkerSession, core_fingerprint},
};

use super::TestHub;
use crate::support::client::Client;

/// A correct worker, as far as the test does not change its frames.
pub(crate) struct HandMade {
    pub(crate) client: Client,
    envs: EnvRegistry,
    session: WorkerSession,
    run_config: Option<RunConfig>,
    run: u32,
    lease: Option<Lease>,
}

impl HandMade {
    pub(crate) async fn join(hub: &TestHub) -> Self {
        Self::join_as(hub, hub.hub.worker_token(), "native").await
    }

    pub(crate) async fn join_as(hub: &TestHub, token: Token, kind: &str) -> Self {
        Self::join_with(hub, token, kind, EnvRegistry::builtin()).await
    }

    pub(crate) async fn join_with(hub: &TestHub, token: Token, kind: &str, envs: EnvRegistry) -> Self {
        Self::join_at(hub.hub.address(), token, kind, envs).await
    }

    /// Joins a hub of any process.
    pub(crate) async fn join_at(address: impl Display, token: Token, kind: &str, envs: EnvRegistry) -> Self {
        Self::join_over(Client::connect(address).await, token, kind, envs)
    }

    pub(crate) fn join_over(client: Client, token: Token, kind: &str, envs: EnvRegistry) -> Self {
        let identity = Identity::new(Role::Worker, token, kind, "by-hand", "cpu");
        let identity = Identity { core_fingerprint: core_fingerprint(AUTO), ..identity };
        let mut registry = Registry::builtin();
        registry.envs.clone_from(&envs);
        let session = WorkerSession::new(identity, registry, AUTO);
        Self { client, envs, session, run_config: None, run: 0, lease: None }
    }

    /// Works until there is something to upload; returns none once the hub has disconnected.
    pub(crate) async fn next_upload(&mut self) -> Option<FragmentUpload> {
        loop {
            while let Some(frame) = self.session.poll_frame() {
                match Message::decode(&frame).unwrap() {
                    Message::FragmentUpload(upload) => return Some(upload),
                    other => self.client.send_if_connected(&other).await,
                }
            }
            if self.session.has_work() {
                self.session.work(u32::MAX, Micros(0));
                continue;
            }
            let frame = self.client.receive_frame().await?;
            match Message::decode(&frame).unwrap() {
                Message::RunStart(start) => {
                    (self.run, self.run_config) = (start.run, RunConfig::from_wire(&start.config).ok());
                }
                Message::LeaseGrant(grant) => {
                    self.lease = Some(convert::lease(&grant, self.run_config.as_ref().unwrap()).unwrap());
                }
                _ => {}
            }
            self.session.handle_frame(&frame);
        }
    }

    /// Returns the number of slots of the latest lease.
    pub(crate) fn num_slots(&self) -> usize {
        self.lease.as_ref().map_or(0, |lease| lease.slots.len())
    }

    /// Works correctly until the hub disconnects.
    pub(crate) async fn stay(&mut self) {
        while let Some(upload) = self.next_upload().await {
            self.client.send_if_connected(&Message::FragmentUpload(upload)).await;
        }
    }

    /// Uploads the next `uploads` fragments correctly, and returns the upload that follows.
    pub(crate) async fn upload_after(&mut self, uploads: u32) -> FragmentUpload {
        for _ in 0..uploads {
            let upload = self.next_upload().await.unwrap();
            self.client.say(&Message::FragmentUpload(upload)).await;
        }
        self.next_upload().await.unwrap()
    }

    /// Returns the upload with its fragments changed.
    pub(crate) fn changed(&self, upload: &FragmentUpload, change: impl Fn(&mut SlotFragment)) -> FragmentUpload {
        let (spec, lease) = (self.run_config.as_ref().unwrap(), self.lease.as_ref().unwrap());
        let spaces = self.envs.spec(spec.env()).unwrap().spaces().unwrap();
        let limits = FragmentLimits::new(spec, &FragmentLayout::Lane { spaces, recurrent: RecurrentShape::default() });
        let mut fragments = convert::slot_fragments(upload, self.run, lease, &limits).unwrap();
        fragments.iter_mut().for_each(change);
        convert::fragment_upload(self.run, LeaseId(upload.lease), &fragments).unwrap()
    }
}
