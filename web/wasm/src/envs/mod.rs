//! Environments written in JavaScript, registered by name.
//!
//! JavaScript objects stay in a table of this thread, under a number, since the core may move an environment to another
//! thread. An exception of an environment becomes an [`EnvError::Failed`]; the exception itself is stored here until
//! the error is converted for JavaScript.

mod agents;
mod single;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    sync::Arc,
};

use js_sys::{Float64Array, Function, Reflect};
use rollmesh_core::{
    env::{EnvContext, EnvError, EnvSpaces, EnvSpec, Frame, MultiAgentSpec, Rng, Vectorized},
    ids::AgentId,
    space::Space,
    worker::Registry,
};
use serde::Deserialize;
use wasm_bindgen::prelude::*;

use crate::Failure;

#[wasm_bindgen]
extern "C" {
    /// An environment behind the package's adapter, which checks what the user's code returns.
    #[derive(Clone)]
    type JsEnv;

    /// Returns the spaces by agent as JSON.
    #[wasm_bindgen(method, getter)]
    fn spaces(this: &JsEnv) -> String;

    #[wasm_bindgen(method, catch)]
    fn reset(this: &JsEnv) -> Result<Float64Array, JsValue>;

    #[wasm_bindgen(method, catch)]
    fn step(this: &JsEnv, actions: &[f64]) -> Result<Float64Array, JsValue>;

    /// Returns the environment's picture; `undefined` if it has none.
    #[wasm_bindgen(method, catch)]
    fn render(this: &JsEnv) -> Result<Option<JsPicture>, JsValue>;

    #[wasm_bindgen(method, catch)]
    fn close(this: &JsEnv) -> Result<(), JsValue>;

    type JsPicture;

    #[wasm_bindgen(method, getter)]
    fn width(this: &JsPicture) -> u32;

    #[wasm_bindgen(method, getter)]
    fn height(this: &JsPicture) -> u32;

    #[wasm_bindgen(method, getter)]
    fn rgb(this: &JsPicture) -> Vec<u8>;
}

/// The factory of an environment.
#[derive(Clone)]
struct Registered {
    /// The function that takes the context as JSON and returns a [`JsEnv`].
    create: Function,
    max_episode_steps: Option<u32>,
    has_agents: bool,
}

/// An exception of an environment.
#[derive(Clone)]
pub(crate) struct Thrown {
    /// The message, equal to the error's.
    message: String,
    /// The field of the environment's answer that is wrong.
    pub(crate) field: Option<String>,
    pub(crate) cause: JsValue,
}

thread_local! {
    static REGISTERED: RefCell<BTreeMap<String, Registered>> = const { RefCell::new(BTreeMap::new()) };
    static ENVS: RefCell<BTreeMap<u32, JsEnv>> = const { RefCell::new(BTreeMap::new()) };
    static NEXT: Cell<u32> = const { Cell::new(0) };
    /// The random numbers of the reset or step in progress.
    static RANDOM: RefCell<Option<Rng>> = const { RefCell::new(None) };
    static THROWN: RefCell<Option<Thrown>> = const { RefCell::new(None) };
}

/// Registers an environment under a name that no built-in one has.
#[wasm_bindgen(js_name = registerEnv)]
pub fn register_env(
    name: String,
    create: Function,
    max_episode_steps: Option<u32>,
    has_agents: bool,
) -> Result<(), Failure> {
    if rollmesh_web_registry::registry().env(&name).is_ok() {
        return Err(Failure::config(format!("'{name}' is a built-in environment: register yours under another name")));
    }
    let registered = Registered { create, max_episode_steps, has_agents };
    REGISTERED.with_borrow_mut(|all| all.insert(name, registered));
    Ok(())
}

/// Draws a random number in [0, 1) for the environment that is being reset or stepped; `undefined` outside of both.
#[wasm_bindgen(js_name = envRandom)]
pub fn env_random() -> Option<f64> {
    RANDOM.with_borrow_mut(|rng| rng.as_mut().map(Rng::uniform_f64))
}

/// Returns the registry for a page, a Web Worker or Node: everything that JavaScript can select by name.
pub(crate) fn registry() -> Registry {
    let registered = REGISTERED.with_borrow(BTreeMap::clone);
    registered.into_iter().fold(rollmesh_web_registry::registry(), |registry, (name, entry)| {
        let (made, limit) = (name.clone(), entry.max_episode_steps);
        if entry.has_agents {
            let make = move |context: &EnvContext| Ok(Box::new(agents::Agents::new(make(&made, context)?)) as _);
            let mut spec = MultiAgentSpec::new(name, make);
            spec.max_episode_steps = limit;
            registry.with_multi_agent_env(spec)
        } else {
            let make = move |contexts: &[EnvContext], _| {
                single::side_by_side(contexts.iter().map(|context| make(&made, context)).collect::<Result<_, _>>()?)
            };
            let mut spec = EnvSpec::fallible(name, make);
            spec.max_episode_steps = limit;
            registry.with_env(spec)
        }
    })
}

/// Takes the last exception of a JavaScript environment if its message matches.
pub(crate) fn thrown_with(is_message: impl FnOnce(&str) -> bool) -> Option<Thrown> {
    THROWN.with_borrow_mut(|thrown| thrown.take_if(|thrown| is_message(&thrown.message)))
}

/// Lets an environment draw. Returns whether it did, or its exception.
pub(crate) fn drawing(draw: impl FnOnce() -> bool) -> Result<bool, Failure> {
    // Discards the exception of an environment that was restarted since.
    THROWN.set(None);
    let drawn = draw();
    let message = THROWN.with_borrow(|thrown| thrown.as_ref().map(|thrown| thrown.message.clone()));
    message.map_or(Ok(drawn), |message| Err(EnvError::Failed(message).into()))
}

/// The spaces of an agent.
#[derive(Deserialize)]
struct AgentSpaces {
    agent: AgentKey,
    observation: Space,
    action: Space,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "an agent is an index or a name")]
enum AgentKey {
    Index(u32),
    Name(String),
}

/// An environment in the table.
struct Instance {
    name: Arc<str>,
    id: u32,
    /// The agents in the order of their numbers in the adapter.
    agents: Vec<(AgentId, EnvSpaces)>,
    /// The latest answer.
    values: Vec<f64>,
}

fn make(name: &str, context: &EnvContext) -> Result<Instance, EnvError> {
    let registered = REGISTERED.with_borrow(|all| all.get(name).cloned());
    let create = registered.ok_or_else(|| EnvError::Failed(format!("'{name}' is not registered any more")))?.create;
    let settings = serde_json::json!({
        "index": context.home.vector_index,
        "config": serde_json::to_value(&context.config).unwrap_or_default(),
    });
    let made = create.call1(&JsValue::NULL, &settings.to_string().into()).map_err(|cause| failed(name, cause))?;
    let env: JsEnv = made.unchecked_into();
    let spaces: Vec<AgentSpaces> = serde_json::from_str(&env.spaces())
        .map_err(|error| EnvError::Failed(format!("'{name}' has a space that makes no sense: {error}")))?;
    let agents = spaces.into_iter().map(|AgentSpaces { agent, observation, action }| {
        let agent = match agent {
            AgentKey::Index(index) => AgentId::Index(index),
            AgentKey::Name(name) => AgentId::name(&name),
        };
        (agent, EnvSpaces::with_usual_types(observation, action))
    });
    let id = NEXT.replace(NEXT.get().wrapping_add(1));
    let instance = Instance { name: name.into(), id, agents: agents.collect(), values: Vec::new() };
    ENVS.with_borrow_mut(|envs| envs.insert(id, env));
    Ok(instance)
}

impl Instance {
    /// Calls the environment with the random numbers of a moment; stores its answer in `values`.
    fn call(
        &mut self,
        rng: &mut Rng,
        call: impl FnOnce(&JsEnv) -> Result<Float64Array, JsValue>,
    ) -> Result<(), EnvError> {
        let env = self.env()?;
        // This environment may step another one during the call.
        let outer = RANDOM.replace(Some(rng.clone()));
        let answer = call(&env);
        if let Some(used) = RANDOM.replace(outer) {
            *rng = used;
        }
        let answer = answer.map_err(|cause| failed(&self.name, cause))?;
        self.values.resize(answer.length() as usize, 0.0);
        answer.copy_to(&mut self.values);
        Ok(())
    }

    /// Returns another reference to the environment.
    fn env(&self) -> Result<JsEnv, EnvError> {
        let found = ENVS.with_borrow(|envs| envs.get(&self.id).cloned());
        found.ok_or_else(|| EnvError::Failed(format!("'{}' is of another thread", self.name)))
    }

    fn render(&self, frame: &mut Frame) -> bool {
        let Ok(env) = self.env() else { return false };
        match env.render() {
            Ok(Some(picture)) => frame.set(picture.width(), picture.height(), &picture.rgb()),
            Ok(None) => false,
            Err(cause) => {
                failed(&self.name, cause);
                false
            }
        }
    }

    /// Returns the error for an answer whose form is not the adapter's.
    fn garbled(&self) -> EnvError {
        EnvError::Failed(format!("'{}' answers with {} numbers", self.name, self.values.len()))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let env = ENVS.try_with(|envs| envs.borrow_mut().remove(&self.id));
        // No caller remains that could receive an exception of `close`.
        let _ = env.ok().flatten().map(|env| env.close());
    }
}

/// Converts an exception of an environment into the core's error, and stores the exception.
fn failed(name: &str, thrown: JsValue) -> EnvError {
    let get = |key: &str| Reflect::get(&thrown, &key.into()).unwrap_or_default();
    let reason = get("message").as_string().unwrap_or_else(|| "it threw something that is no Error".into());
    let message = format!("'{name}': {reason}");
    let cause = Some(get("cause")).filter(|cause| !cause.is_undefined()).unwrap_or_else(|| thrown.clone());
    let field = get("field").as_string();
    THROWN.set(Some(Thrown { message: message.clone(), field, cause }));
    EnvError::Failed(message)
}
