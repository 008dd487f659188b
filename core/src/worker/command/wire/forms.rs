//! Forms of the parts of commands and answers.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    evaluation::{OutcomeForm, read_outcome, write_outcome},
    metrics, too_large,
};
use crate::{
    batch::{AnyBatch, codec},
    config::Config,
    env::EnvSpaces,
    episode::GlobalVars,
    evaluation::{EvalOutcome, EvaluationRequest},
    filter::Filter,
    ids::{PolicyId, SlotId},
    lists::{Bytes, List},
    policy::{Gradients, LearnInfo, PolicyState},
    prelude::*,
    protocol::{convert, message::WeightsUpdate},
    weights::Weights,
    worker::{
        CommandError, DataParallelConfig, NamedFn, PolicyConfig, PolicyRoles, RolloutConfig, SgdOptions,
        TrainedPolicies, WorkerMetrics,
    },
};

/// Most JSON in one body, over all its texts: decoded values take much more memory than their text.
const MAX_JSON_BYTES: usize = 2 << 20;
/// Most policies in a body.
const MAX_POLICIES: usize = 4_096;
/// Most metrics of a policy's learning.
const MAX_INFO: usize = 4_096;
/// Most results of one function: one per environment.
const MAX_VALUES: usize = SlotId::MAX_PER_RUN as usize;

/// A part of a command or of an answer.
pub(in crate::worker::command) trait Wire: Sized {
    /// The encoded form. Its decoded size is bounded by that of its bytes; it borrows from the part when it is encoded,
    /// and from the message when it is decoded.
    type Form<'a>: Serialize + Deserialize<'a>
    where
        Self: 'a;

    fn form(&self) -> Result<Self::Form<'_>, CommandError>;

    fn read(form: Self::Form<'_>, json: &mut Json) -> Result<Self, CommandError>;
}

impl<T: Wire> Wire for Option<T> {
    type Form<'a>
        = Option<T::Form<'a>>
    where
        T: 'a;

    fn form(&self) -> Result<Self::Form<'_>, CommandError> {
        self.as_ref().map(T::form).transpose()
    }

    fn read(form: Self::Form<'_>, json: &mut Json) -> Result<Self, CommandError> {
        form.map(|form| T::read(form, json)).transpose()
    }
}

impl<T: Wire> Wire for Box<T> {
    type Form<'a>
        = T::Form<'a>
    where
        T: 'a;

    fn form(&self) -> Result<Self::Form<'_>, CommandError> {
        T::form(self)
    }

    fn read(form: Self::Form<'_>, json: &mut Json) -> Result<Self, CommandError> {
        T::read(form, json).map(Self::new)
    }
}

/// Each policy may occur once.
impl<T: Wire> Wire for BTreeMap<PolicyId, T> {
    type Form<'a>
        = List<(PolicyId, T::Form<'a>), MAX_POLICIES>
    where
        T: 'a;

    fn form(&self) -> Result<Self::Form<'_>, CommandError> {
        let entries = self.iter().map(|(id, part)| Ok((id.clone(), part.form()?)));
        entries.collect::<Result<_, _>>()
    }

    fn read(form: Self::Form<'_>, json: &mut Json) -> Result<Self, CommandError> {
        let mut map = Self::new();
        for (id, form) in form.0 {
            if map.contains_key(&id) {
                return Err(CommandError::malformed("a list by policy", format_args!("'{id}' is there twice")));
            }
            map.insert(id, T::read(form, json)?);
        }
        Ok(map)
    }
}

/// The form of a part.
pub(in crate::worker::command) type WireForm<'a, T> = <T as Wire>::Form<'a>;

/// Parts with the type of their forms: how the form is made of the part, and the part of the form.
macro_rules! forms {
    ($($part:ty as $form:ty: |$of:pat_param| $write:expr, |$from:pat_param, $json:pat_param| $read:expr;)+) => {
        $(impl Wire for $part {
            type Form<'a> = $form;

            fn form(&self) -> Result<Self::Form<'_>, CommandError> {
                let $of = self;
                Ok($write)
            }

            fn read($from: Self::Form<'_>, $json: &mut Json) -> Result<Self, CommandError> {
                Ok($read)
            }
        })+
    };
}

forms! {
    bool as bool: |part| *part, |form, _| form;
    u16 as u16: |part| *part, |form, _| form;
    u64 as u64: |part| *part, |form, _| form;
    usize as usize: |part| *part, |form, _| form;
    String as Cow<'a, str>: |part| part.as_str().into(), |form, _| form.into_owned();
    PolicyId as PolicyId: |part| part.clone(), |form, _| form;
    SgdOptions as Cow<'a, SgdOptions>: |part| Cow::Borrowed(part), |form, _| form.into_owned();
    DataParallelConfig as Cow<'a, DataParallelConfig>: |part| Cow::Borrowed(part), |form, _| form.into_owned();
    EvaluationRequest as Cow<'a, EvaluationRequest>: |part| Cow::Borrowed(part), |form, _| form.into_owned();

    EnvSpaces as Cow<'a, str>: |spaces| json_of(spaces)?, |text, json| json.read("a space", &text)?;
    PolicyConfig as Cow<'a, str>: |policy| json_of(policy)?, |text, json| json.read("a policy's settings", &text)?;
    RolloutConfig as Cow<'a, str>: |config| json_of(config)?, |text, json| json.read("settings", &text)?;
    Config as Cow<'a, str>: |value| json_of(value)?, |text, json| json.config("a function's answer", &text)?;
    Vec<Config> as List<Cow<'a, str>, MAX_VALUES>: |values| {
        let texts: Vec<Cow<'_, str>> = values.iter().map(|value| value.to_string().into()).collect();
        check_json(texts.iter().map(|text| text.len()).sum())?;
        List(texts)
    }, |texts, json| {
        let values = texts.0.iter().map(|text| json.config("a function's answer", text));
        values.collect::<Result<_, _>>()?
    };
    NamedFn as (Cow<'a, str>, Cow<'a, str>): |NamedFn { name, arguments }| (name.as_str().into(), json_of(arguments)?),
        |(name, arguments), json| {
            let arguments = json.config("a function's arguments", &arguments)?;
            NamedFn { name: name.into_owned(), arguments }
        };

    Vec<u8> as Bytes<'a>: |bytes| Bytes(bytes.into()), |form, _| form.0.into_owned();
    Filter as Bytes<'a>: |filter| Bytes(filter.encode().into()),
        |form, _| Self::decode(&form.0).map_err(|why| CommandError::malformed("a filter", why))?;
    PolicyState as Bytes<'a>: |state| {
        let bytes = state.encode().map_err(|why| CommandError::malformed("a policy's state", why))?;
        Bytes(bytes.into())
    }, |form, _| Self::decode(&form.0).map_err(|why| CommandError::malformed("a policy's state", why))?;
    AnyBatch as Bytes<'a>: |batch| Bytes(codec::encode_any(batch).into()),
        |form, _| codec::decode_any(&form.0).map_err(|why| CommandError::malformed("a batch", why))?;
    Weights as WeightsUpdate: |weights| {
        convert::readable_weights_update(0, weights).map_err(|why| CommandError::malformed("weights", why))?
    }, |form, _| convert::weights(&form).map_err(|why| CommandError::malformed("weights", why))?;
    Gradients as WeightsUpdate: |gradients| gradients.0.form()?, |form, json| Self(Wire::read(form, json)?);

    LearnInfo as List<(Cow<'a, str>, f64), MAX_INFO>:
        |info| info.iter().map(|(name, number)| (name.as_str().into(), *number)).collect(),
        |form, _| form.0.into_iter().map(|(name, number)| (name.into_owned(), number)).collect_ordered();
    (Gradients, LearnInfo) as (WireForm<'a, Gradients>, WireForm<'a, LearnInfo>):
        |(gradients, info)| (gradients.form()?, info.form()?),
        |(gradients, info), json| (Wire::read(gradients, json)?, Wire::read(info, json)?);
    GlobalVars as (u64, WireForm<'a, BTreeMap<PolicyId, u64>>):
        |vars| (vars.timestep, vars.num_grad_updates_per_policy.form()?),
        |(timestep, updates), json| Self { timestep, num_grad_updates_per_policy: Wire::read(updates, json)? };

    Vec<PolicyId> as List<PolicyId, MAX_POLICIES>: |ids| ids.iter().cloned().collect(), |form, _| form.0;
    BTreeSet<PolicyId> as List<PolicyId, MAX_POLICIES>:
        |ids| ids.iter().cloned().collect(), |form, _| form.0.into_iter().collect();
    TrainedPolicies as Option<WireForm<'a, BTreeSet<PolicyId>>>: |trained| match trained {
        Self::All => None,
        Self::Ids(ids) => Some(ids.form()?),
    }, |form, json| match form {
        None => Self::All,
        Some(ids) => Self::Ids(Wire::read(ids, json)?),
    };
    PolicyRoles as (WireForm<'a, Option<NamedFn>>, WireForm<'a, Option<TrainedPolicies>>):
        |roles| (roles.policy_mapping_fn.form()?, roles.policies_to_train.form()?),
        |(function, trained), json| {
            Self { policy_mapping_fn: Wire::read(function, json)?, policies_to_train: Wire::read(trained, json)? }
        };

    WorkerMetrics as Cow<'a, WorkerMetrics>:
        |metrics| metrics::within_limits(metrics), |form, _| metrics::checked(form.into_owned())?;
    EvalOutcome as OutcomeForm<'a>: |outcome| write_outcome(outcome), |form, _| read_outcome(form)?;
}

/// Decodes JSON values and counts their bytes against the limit.
pub(in crate::worker::command) struct Json(usize);

impl Json {
    pub(in crate::worker::command) fn new() -> Self {
        Self(MAX_JSON_BYTES)
    }

    fn read<T: DeserializeOwned>(&mut self, what: &str, text: &str) -> Result<T, CommandError> {
        self.count(what, text)?;
        serde_json::from_str(text).map_err(|why| CommandError::malformed(what, why))
    }

    fn config(&mut self, what: &str, text: &str) -> Result<Config, CommandError> {
        self.count(what, text)?;
        text.parse().map_err(|why| CommandError::malformed(what, why))
    }

    fn count(&mut self, what: &str, text: &str) -> Result<(), CommandError> {
        let rest = self.0.checked_sub(text.len());
        self.0 = rest.ok_or_else(|| {
            CommandError::malformed(what, format_args!("there are more than {MAX_JSON_BYTES} bytes of JSON"))
        })?;
        Ok(())
    }
}

fn json_of(value: &impl Serialize) -> Result<Cow<'static, str>, CommandError> {
    let text = serde_json::to_string(value).map_err(|why| CommandError::malformed("it has no form as JSON", why))?;
    check_json(text.len())?;
    Ok(text.into())
}

fn check_json(bytes: usize) -> Result<(), CommandError> {
    if bytes > MAX_JSON_BYTES { Err(too_large("JSON", bytes, MAX_JSON_BYTES)) } else { Ok(()) }
}
