//! The process of a sub-environment.

use std::{
    fs::File,
    io::{self, BufReader, Read, Write as _},
};

use rollmesh_core::{
    env::{BaseEnv as _, EnvActions, EnvError, EnvUpdates, Frame, InProcess, Reset, multi_agent::Turn},
    ids::AgentId,
    worker::{Registry, SetupError},
};

use super::wire::{
    ChildError, ChildReply, ChildRequest, HEAD, Head, MadeEnv, MakeRequest, SpacesOf, message, put_part,
};
use crate::{
    child::{end_with_parent, limit_memory, take_stdio},
    kernels,
};

/// Answers requests until the pipe closes.
pub(crate) fn serve(registry: &Registry) -> io::Result<()> {
    Pipes::take()?.serve(registry)
}

/// The process's pipes.
struct Pipes {
    requests: BufReader<File>,
    replies: File,
    /// The latest message in either direction.
    bytes: Vec<u8>,
}

impl Pipes {
    fn take() -> io::Result<Self> {
        // The worker may exit while the environment hangs.
        end_with_parent()?;
        let (requests, replies) = take_stdio()?;
        Ok(Self { requests: BufReader::with_capacity(1 << 16, requests), replies, bytes: Vec::new() })
    }

    /// Returns the next request, whose body is in `bytes`; `None` at the end.
    fn receive(&mut self) -> io::Result<Option<(u64, ChildRequest)>> {
        let mut head = [0; HEAD];
        match self.requests.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            result => result?,
        }
        let head = Head::read(head).ok_or_else(nonsense)?;
        let request = ChildRequest::of(head.kind).ok_or_else(nonsense)?;
        self.bytes.resize(head.len, 0);
        self.requests.read_exact(&mut self.bytes)?;
        Ok(Some((head.number, request)))
    }

    fn say(&mut self, number: u64, reply: ChildReply, body: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        if message(&mut self.bytes, number, reply as u8, body).is_none() {
            let said = json(&ChildError::Failed("what it observes is too long for a message".into()));
            // The message is short.
            let _ = message(&mut self.bytes, number, ChildReply::Failed as u8, |out| out.extend(&said));
        }
        self.replies.write_all(&self.bytes)
    }

    fn fail(&mut self, number: u64, error: EnvError) -> io::Result<()> {
        let said = ChildError::from(error);
        self.say(number, ChildReply::Failed, |out| out.extend(json(&said)))
    }

    fn serve(mut self, registry: &Registry) -> io::Result<()> {
        let Some((number, ChildRequest::Make)) = self.receive()? else { return Err(nonsense()) };
        let request: MakeRequest = serde_json::from_slice(&self.bytes).map_err(io::Error::other)?;
        if request.memory_mb > 0 {
            limit_memory(u64::from(request.memory_mb) << 20)?;
        }
        let (env, is_wrapped) = match request.spec.make(registry, kernels::AUTO) {
            Ok(made) => made,
            Err(SetupError::Env { source, .. }) => return self.fail(number, source),
            Err(error) => return self.fail(number, EnvError::Failed(error.to_string())),
        };
        let mut env = Served {
            env,
            answer: [EnvActions::default()],
            updates: EnvUpdates::new(),
            owed: Turn::new(),
            announced: Vec::new(),
        };
        let agents = env.env.agents();
        let made = MadeEnv { is_wrapped, agents: env.introduce(agents.iter()) };
        self.say(number, ChildReply::Made, |out| out.extend(json(&made)))?;
        let mut frame = Frame::new();
        let mut turn = Turn::new();
        while let Some((number, request)) = self.receive()? {
            match request {
                ChildRequest::Reset => match env.reset(&self.bytes, &mut turn) {
                    Ok(()) => self.reply_turn(number, &mut env, &turn)?,
                    Err(error) => self.fail(number, error)?,
                },
                ChildRequest::Step => match env.step(&self.bytes, &mut turn) {
                    Ok(()) => self.reply_turn(number, &mut env, &turn)?,
                    Err(error) => self.fail(number, error)?,
                },
                ChildRequest::Render => {
                    let is_drawn = env.env.try_render(0, &mut frame);
                    self.say(number, ChildReply::Picture, |out| {
                        if is_drawn {
                            out.extend(frame.width().to_le_bytes());
                            out.extend(frame.height().to_le_bytes());
                            out.extend_from_slice(frame.rgb());
                        }
                    })?;
                }
                ChildRequest::Make
                | ChildRequest::Close
                | ChildRequest::Save
                | ChildRequest::Restore
                | ChildRequest::Fingerprint => {
                    return Err(nonsense());
                }
                ChildRequest::Stop => break,
            }
        }
        Ok(())
    }

    fn reply_turn(&mut self, number: u64, env: &mut Served, turn: &Turn) -> io::Result<()> {
        let agents = turn.obs().iter().map(|(agent, _)| agent).chain(turn.outcomes().map(|(agent, _)| agent));
        let new = env.introduce(agents);
        self.say(number, ChildReply::Turn, |out| {
            put_part(out, |out| turn.write(out));
            put_part(out, |out| env.owed.write(out));
            if !new.is_empty() {
                out.extend(json(&new));
            }
        })
    }
}

/// The environment, the only one of its process.
struct Served {
    env: InProcess,
    answer: [EnvActions; 1],
    updates: EnvUpdates,
    owed: Turn,
    /// Agents whose spaces have been sent to the worker, ascending.
    announced: Vec<AgentId>,
}

impl Served {
    fn reset(&mut self, body: &[u8], turn: &mut Turn) -> Result<(), EnvError> {
        let episode = body.try_into().map_err(|_| EnvError::Failed("a request makes no sense".into()))?;
        self.env.set_next_episode(0, u32::from_le_bytes(episode));
        match self.env.try_reset(0, turn)? {
            Reset::Done => {}
            Reset::Later | Reset::Unsupported => return Err(EnvError::Failed("it has not begun its episode".into())),
        }
        self.env.owed(0, &mut self.owed);
        Ok(())
    }

    fn step(&mut self, body: &[u8], turn: &mut Turn) -> Result<(), EnvError> {
        let nonsense = || EnvError::Failed("a request makes no sense".into());
        let (is_paid, actions) = body.split_first().ok_or_else(nonsense)?;
        if *is_paid > 0 {
            self.env.pay_out(0, &mut self.owed);
        }
        self.answer[0].actions.read(actions).map_err(|_| nonsense())?;
        self.env.send_actions(&self.answer)?;
        self.updates.clear();
        self.env.poll(&mut self.updates)?;
        let entry = self.updates.entries_mut().first_mut().ok_or_else(nonsense)?;
        std::mem::swap(turn, &mut entry.turn);
        self.env.owed(0, &mut self.owed);
        Ok(())
    }

    /// Returns the spaces of those agents whose spaces have not been sent yet.
    fn introduce<'a>(&mut self, agents: impl Iterator<Item = &'a AgentId>) -> Vec<SpacesOf> {
        let mut new = Vec::new();
        for agent in agents {
            let Err(at) = self.announced.binary_search(agent) else { continue };
            if let Some(spaces) = self.env.spaces(agent) {
                self.announced.insert(at, agent.clone());
                new.push(SpacesOf { agent: agent.clone(), spaces });
            }
        }
        new
    }
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    // Names, numbers and lists of them can always be serialised.
    serde_json::to_vec(value).unwrap_or_default()
}

fn nonsense() -> io::Error {
    io::Error::other("this is the process of a sub-environment, and what it hears makes no sense")
}
