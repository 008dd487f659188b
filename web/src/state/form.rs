//! The form that starts a run: its fields, which the hub's schema describes, and their texts.

use std::collections::BTreeMap;

use rollmesh_core::{config::Config, run::RunConfig};
use serde_json::{Value, json};

use super::allowed;

/// The fields that come first; all others are below "All settings".
const FREQUENT: [&str; 12] = [
    "env",
    "algorithm",
    "model_config.fcnet_hiddens",
    "model_config.use_lstm",
    "seed",
    "num_workers",
    "num_envs",
    NUM_SLOTS,
    "stop.episode_return_mean",
    "stop.env_steps",
    "observation_filter",
    "mode",
];

/// The setting that stands for `num_workers` and `num_envs` where there are no workers to choose.
const NUM_SLOTS: &str = "num_slots";
/// The mean return at which a run is solved.
pub(super) const GOAL: &str = "stop.episode_return_mean";

/// Texts of the fields by path. Empty fields are not sent.
pub type Texts = BTreeMap<String, String>;

/// The settings that a run may have, on the hub or in this tab.
#[derive(Clone, Debug, PartialEq)]
pub struct RunSchema {
    schema: Value,
    fields: Vec<Field>,
}

/// A setting as a field of the form.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Names of the enclosing objects and its own, separated by dots.
    pub path: String,
    /// The heading under which it is shown.
    pub section: String,
    /// Description of the setting.
    pub help: String,
    /// The value that applies if the field is empty.
    pub default: String,
    /// The choices, with the values that they represent.
    pub choices: Vec<(String, Value)>,
    /// True if only these choices are allowed.
    pub is_choice: bool,
    /// True if the setting takes any text.
    takes_text: bool,
    /// The JSON Schemas of its values; a value must match one of them.
    kinds: Vec<Value>,
}

impl RunSchema {
    /// Reads the JSON Schema that a hub or the trainer of this tab sent.
    ///
    /// # Errors
    /// The text is not JSON.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let schema: Value = serde_json::from_str(text)?;
        let mut fields = Vec::new();
        collect("", "", &schema, &mut fields);
        Ok(Self { schema, fields })
    }

    /// Returns whether the hub executes runs; the schema of a hub without runs allows no settings.
    pub(super) fn allows_runs(&self) -> bool {
        self.schema["not"] != json!({})
    }

    /// Returns the fields that come first, in their order.
    pub fn frequent(&self) -> impl Iterator<Item = &Field> {
        FREQUENT
            .iter()
            .filter_map(|path| self.fields.iter().find(|field| field.path == *path && self.is_frequent(field)))
    }

    fn is_frequent(&self, field: &Field) -> bool {
        let has_workers = || self.fields.iter().any(|field| field.path == "num_workers");
        FREQUENT.contains(&&*field.path) && (field.path != NUM_SLOTS || !has_workers())
    }

    /// Returns the names of all environments.
    #[must_use]
    pub fn envs(&self) -> Vec<String> {
        let env = self.fields.iter().find(|field| field.path == "env");
        env.into_iter().flat_map(|env| &env.choices).map(|(name, _)| name.clone()).collect()
    }

    /// Returns all other fields by section, those of the chosen algorithm first.
    #[must_use]
    pub fn sections(&self, texts: &Texts) -> Vec<(String, Vec<Field>)> {
        let mut sections: BTreeMap<&str, Vec<Field>> = BTreeMap::new();
        for field in self.fields.iter().filter(|field| !self.is_frequent(field)) {
            sections.entry(&field.section).or_default().push(field.clone());
        }
        let own = (format!("Algorithm {}", self.chosen("algorithm", texts)), self.of_algorithm(texts));
        let others = sections.into_iter().map(|(title, fields)| (title.to_owned(), fields));
        [own].into_iter().filter(|(_, fields)| !fields.is_empty()).chain(others).collect()
    }

    fn of_algorithm(&self, texts: &Texts) -> Vec<Field> {
        let mut fields = Vec::new();
        collect("policy_config", "", &self.schema["$defs"][self.chosen("algorithm", texts)], &mut fields);
        fields
    }

    fn chosen<'a>(&'a self, path: &str, texts: &'a Texts) -> &'a str {
        let text = texts.get(path).filter(|text| !text.is_empty());
        text.or_else(|| self.fields.iter().find(|field| field.path == path).map(|field| &field.default))
            .map_or("", String::as_str)
    }

    /// Returns the value that applies if a field is empty: that of the preset, else the default.
    #[must_use]
    pub fn placeholder(&self, field: &Field, texts: &Texts) -> String {
        let [env, algorithm, preset] = ["env", "algorithm", "preset"].map(|path| self.chosen(path, texts));
        let presets = self.schema["x-presets"].as_array().into_iter().flatten();
        let is_for = |of: &Value, chosen: &str| of.is_null() || of == chosen;
        // The page starts no runs that read files.
        let applies = |found: &&Value| {
            preset != "none"
                && is_for(&found["env"], env)
                && is_for(&found["algorithm"], algorithm)
                && found["reads_input"] == false
        };
        let pointer = format!("/settings/{}", field.path.replace('.', "/"));
        // Later presets override earlier ones.
        let value = presets.filter(applies).filter_map(|found| found.pointer(&pointer)).next_back();
        value.map_or_else(|| field.default.clone(), shown)
    }

    /// Returns settings as texts of the fields, with which the form starts the same run.
    #[must_use]
    pub fn texts_of(&self, settings: &Config) -> Texts {
        self.values(settings).into_iter().map(|(path, value)| (path, shown(&value))).collect()
    }

    /// Returns whether this text differs from the value that applies if the field is empty.
    #[must_use]
    pub fn is_changed(&self, path: &str, text: &str, texts: &Texts) -> bool {
        if path == GOAL {
            return text.trim() != self.goal(texts);
        }
        let own = || self.of_algorithm(texts).into_iter().find(|field| field.path == path);
        let field = self.fields.iter().find(|field| field.path == path).cloned().or_else(own);
        let text = text.trim();
        let empty = field.map(|field| if field.is_choice { field.default } else { self.placeholder(&field, texts) });
        !text.is_empty() && empty.is_none_or(|empty| empty != text)
    }

    /// Returns the environments with the algorithms that have a preset for them, if the hub has both.
    #[must_use]
    pub fn presets(&self) -> Vec<(String, String)> {
        let presets = self.schema["x-presets"].as_array().into_iter().flatten();
        let has = |path: &str, word: &str| {
            let field = self.fields.iter().find(|field| field.path == path);
            field.is_some_and(|field| field.choices.iter().any(|(choice, _)| choice == word))
        };
        let preset = |preset: &Value| (shown(&preset["env"]), shown(&preset["algorithm"]));
        presets.map(preset).filter(|(env, algorithm)| has("env", env) && has("algorithm", algorithm)).collect()
    }

    /// Returns the field that an error is about: errors begin with its path.
    #[must_use]
    pub fn field_of(&self, error: &str, texts: &Texts) -> Option<String> {
        let own = self.of_algorithm(texts);
        let paths = self.fields.iter().chain(&own).map(|field| &field.path);
        let named = |path: &&String| error.strip_prefix(&***path).is_some_and(|rest| rest.starts_with([' ', ':']));
        paths.filter(named).max_by_key(|path| path.len()).cloned()
    }

    /// Returns the form's initial texts: the settings of a link, and the goal of their environment unless they have
    /// one.
    #[must_use]
    pub fn first_texts(&self, linked: &Texts) -> Texts {
        let mut texts = linked.clone();
        if !linked.contains_key(GOAL) {
            self.set_goal(&mut texts);
        }
        texts
    }

    /// Returns the values of the fields that these settings have, by path: the inverse of [`settings`](Self::settings).
    #[must_use]
    pub fn values(&self, settings: &Config) -> Vec<(String, Value)> {
        let settings = json!(settings);
        let algorithm = settings["algorithm"].as_str().unwrap_or_default();
        let own = self.of_algorithm(&[("algorithm".into(), algorithm.into())].into());
        let value = |field: &Field| {
            let value = settings.pointer(&format!("/{}", field.path.replace('.', "/")))?;
            let mut value = value.clone();
            // Settings of the algorithm have fields of their own; only the others stay in this one.
            if let ("policy_config", Some(left)) = (&*field.path, value.as_object_mut()) {
                left.retain(|name, _| !own.iter().any(|own| own.path == format!("policy_config.{name}")));
                return (!left.is_empty()).then(|| (field.path.clone(), value));
            }
            Some((field.path.clone(), value))
        };
        self.fields.iter().chain(&own).filter_map(value).collect()
    }

    /// Sets the goal to the return at which the chosen environment counts as solved; empty if it has none.
    pub fn set_goal(&self, texts: &mut Texts) {
        let goal = self.goal(texts);
        texts.insert(GOAL.into(), goal);
    }

    fn goal(&self, texts: &Texts) -> String {
        self.schema["x-goals"].get(self.chosen("env", texts)).map(shown).unwrap_or_default()
    }

    /// Returns the settings of all fields that are not empty.
    ///
    /// # Errors
    /// All values that are not allowed, or the size of settings that are longer than a hub reads. The hub or the
    /// trainer checks combinations of settings.
    pub fn settings(&self, texts: &Texts) -> Result<Config, Vec<String>> {
        let own = self.of_algorithm(texts);
        let (mut settings, mut errors) = (Config::new(), Vec::new());
        for field in self.fields.iter().chain(&own) {
            if let Some(text) = texts.get(&field.path).map(|text| text.trim()).filter(|text| !text.is_empty()) {
                let value = field.value(text);
                errors.extend(allowed::check(&field.path, &field.kinds, &value).err());
                settings = settings.with_at(&field.path, value);
            }
        }
        let (bytes, most) = (settings.to_string().len(), RunConfig::MAX_WIRE_BYTES);
        if bytes > most {
            errors.push(format!("the settings have {bytes} bytes; at most {most} are read"));
        }
        if errors.is_empty() { Ok(settings) } else { Err(errors) }
    }
}

impl Field {
    /// Returns whether each word of a search is in the field's path, section or description.
    #[must_use]
    pub fn matches(&self, search: &str) -> bool {
        let text = format!("{} {} {}", self.path, self.section, self.help).to_lowercase();
        search.to_lowercase().split_whitespace().all(|word| text.contains(word))
    }

    /// Returns the value that a text stands for. Numbers may have separators between their digits.
    fn value(&self, text: &str) -> Value {
        let choice = self.choices.iter().find(|(word, _)| word == text).map(|(_, value)| value.clone());
        let digits = text.replace([' ', ',', '_', '\u{2009}'], "");
        let number = || digits.parse().ok().map(Value::Number);
        let takes_object = || self.kinds.iter().any(|kind| kind["type"] == "object");
        let is_allowed = |value: &Value| !self.takes_text || value.is_object() && takes_object();
        let json = || serde_json::from_str(text).ok().filter(is_allowed);
        choice.or_else(|| number().filter(|_| !self.takes_text)).or_else(json).unwrap_or_else(|| text.into())
    }
}

/// Collects the fields of an object's properties, without those that a page cannot set.
fn collect(group: &str, section: &str, schema: &Value, fields: &mut Vec<Field>) {
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        if schema["x-host"] == true || schema["deprecated"] == true || schema.get("x-fixed").is_some() {
            continue;
        }
        let path = if group.is_empty() { name.clone() } else { format!("{group}.{name}") };
        let section = schema["x-section"].as_str().unwrap_or(section);
        let one = std::slice::from_ref(schema);
        let kinds = schema["anyOf"].as_array().map_or(one, Vec::as_slice);
        if !is_group(schema) {
            fields.push(field(&path, section, schema, kinds));
        }
        kinds.iter().filter(|kind| is_group(kind)).for_each(|kind| collect(&path, section, kind, fields));
    }
}

/// Returns whether values of this schema are objects of settings, each with a field of its own.
pub(super) fn is_group(schema: &Value) -> bool {
    schema.get("properties").is_some() && schema.get("required").is_none()
}

fn field(path: &str, section: &str, schema: &Value, kinds: &[Value]) -> Field {
    let mut choices: Vec<(String, Value)> = Vec::new();
    let (mut is_choice, mut takes_text) = (true, false);
    for kind in kinds {
        let words = kind["enum"].as_array().into_iter().flatten();
        choices.extend(words.map(|word| (shown(word), word.clone())));
        // A variant that is an object is chosen by its name.
        let variants = kind["properties"].as_object().filter(|_| is_group(kind)).into_iter().flatten();
        choices.extend(variants.map(|(name, _)| (name.clone(), json!({ name: {} }))));
        match kind["type"].as_str() {
            Some("boolean") => choices.extend([true, false].map(|flag| (flag.to_string(), flag.into()))),
            Some("null") | None => {}
            Some("object") if is_group(kind) => {}
            Some(free) => {
                is_choice = false;
                takes_text |= free == "string";
            }
        }
    }
    let text = |name: &str| schema[name].as_str().unwrap_or_default().to_owned();
    let (path, section, default) = (path.to_owned(), section.to_owned(), shown(&schema["default"]));
    Field { path, section, help: text("description"), default, choices, is_choice, takes_text, kinds: kinds.to_vec() }
}

/// Returns a value as a text of a field; empty for null.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::run::schema::{Kind, Setting, accept_env_names, json_schema, object_schema};

    use super::*;

    fn schema() -> RunSchema {
        schema_of(&[("Acrobot-v1", Some(-100.0)), ("CartPole-v1", Some(475.0)), ("Pendulum-v1", None)])
    }

    fn schema_of(envs: &[(&str, Option<f64>)]) -> RunSchema {
        let gamma = Setting::new("gamma", &[Kind::FRACTION], "Discount factor.").schema(json!(0.98));
        let algorithms = [("a2c".into(), object_schema([])), ("ppo".into(), object_schema([("gamma", gamma)]))];
        let envs = envs.iter().map(|(name, goal)| ((*name).to_owned(), *goal)).collect();
        RunSchema::parse(&json_schema(&envs, &algorithms).to_string()).unwrap()
    }

    /// Covers the kinds that runs support, with the user's own environments and functions: `native-worker/tests/places`
    /// starts them.
    #[test]
    fn form_sends_the_settings_of_every_kind() {
        let kinds: Value = serde_json::from_str(include_str!("../../../tests/golden/kinds.json")).unwrap();
        let lists = ["samples", "native", "own"].map(|list| kinds[list].as_array().unwrap());
        for kind in lists.into_iter().flatten().filter(|kind| !kind["rollout_hash"].is_null()) {
            let (config, schema) = (&kind["config"], schema_of(&[(kind["config"]["env"].as_str().unwrap(), None)]));
            let typed = schema.texts_of(&Config::of(config).unwrap());
            assert_eq!(json!(schema.settings(&typed).unwrap()), *config);
        }
    }

    fn texts(texts: &[(&str, &str)]) -> Texts {
        texts.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    fn settings(typed: &[(&str, &str)]) -> Result<String, Vec<String>> {
        schema().settings(&texts(typed)).map(|settings| settings.to_string())
    }

    #[test]
    fn environments_of_the_schema_are_offered() {
        assert_eq!(schema().envs(), ["Acrobot-v1", "CartPole-v1", "Pendulum-v1"]);
    }

    #[test]
    fn only_changed_fields_are_sent() {
        assert_eq!(settings(&[("seed", ""), ("num_envs", " ")]).unwrap(), "{}");
        let typed = [
            ("env", "Acrobot-v1"),
            ("stop.env_steps", "1,000 000"),
            ("stop.episode_return_mean", "-100.5"),
            ("rollout_fragment_length", "auto"),
            ("clip_actions", "true"),
            ("model_config.fcnet_hiddens", "[32, 32]"),
            ("policy_mapping_fn", "7"),
            ("policy_config.gamma", "0.5"),
        ];
        let wanted = json!({
            "env": "Acrobot-v1",
            "stop": { "env_steps": 1_000_000, "episode_return_mean": -100.5 },
            "rollout_fragment_length": "auto",
            "clip_actions": true,
            "model_config": { "fcnet_hiddens": [32, 32] },
            "policy_mapping_fn": "7",
            "policy_config": { "gamma": 0.5 },
        });
        assert_eq!(settings(&typed).unwrap(), wanted.to_string());
    }

    #[test]
    fn modes_are_chosen_by_name_and_have_settings() {
        assert_eq!(settings(&[("mode", "deadline")]).unwrap(), r#"{"mode":{"deadline":{}}}"#);
        let typed = [("mode", "asynchronous"), ("mode.asynchronous.max_staleness", "3")];
        assert_eq!(settings(&typed).unwrap(), r#"{"mode":{"asynchronous":{"max_staleness":3}}}"#);
    }

    #[test]
    fn settings_that_no_hub_reads_are_not_sent() {
        let error = settings(&[("policy_mapping_fn", &"x".repeat(RunConfig::MAX_WIRE_BYTES))]).unwrap_err();
        assert!(error[0].starts_with("the settings have ") && error[0].ends_with(" are read"), "{error:?}");
    }

    #[test]
    fn every_setting_that_a_page_can_set_is_a_field() {
        let schema = schema();
        let frequent: Vec<&str> = schema.frequent().map(|field| &*field.path).collect();
        assert_eq!(frequent, FREQUENT.into_iter().filter(|path| *path != NUM_SLOTS).collect::<Vec<_>>());
        let sections = schema.sections(&Texts::new());
        let paths: Vec<&str> =
            sections.iter().flat_map(|(_, fields)| fields.iter().map(|field| field.path.as_str())).collect();
        let shown = [
            "train_batch_size",
            NUM_SLOTS,
            "model_config.lstm_cell_size",
            "mode.deadline.after",
            "policy_config.gamma",
        ];
        for path in shown.into_iter().chain(["batch_mode", "count_steps_by", "no_done_at_end"]) {
            assert!(paths.contains(&path), "{path}");
        }
        for path in ["host.device", "output", "sample_async", "num_envs_per_worker", "stop", "mode"] {
            assert!(!paths.contains(&path), "{path}");
        }
        assert!(sections.iter().flat_map(|(_, fields)| fields).all(|field| !field.help.is_empty()));
        assert_eq!(sections[0].0, "Algorithm ppo");
        assert!(
            schema
                .sections(&texts(&[("algorithm", "a2c")]))
                .iter()
                .all(|(title, _)| !title.starts_with("Algorithm a2c"))
        );
    }

    #[test]
    fn values_of_settings_are_those_of_the_fields() {
        let typed = [("algorithm", "ppo"), ("policy_config", r#"{"own":1}"#), ("policy_config.gamma", "0.5")];
        let settings = schema().settings(&texts(&typed)).unwrap();
        let values = schema().values(&settings);
        let shown = values.iter().map(|(path, value)| (path.clone(), shown(value))).collect::<Texts>();
        assert_eq!(shown, texts(&typed));
    }

    #[test]
    fn fields_are_found_and_changed_and_wrong_ones_are_reported() {
        let schema = schema();
        let all = || schema.sections(&Texts::new()).into_iter().flat_map(|(_, fields)| fields);
        let found: Vec<String> =
            all().filter(|field| field.matches("DISCOUNT gamma")).map(|field| field.path).collect();
        assert_eq!(found, ["policy_config.gamma"]);
        let typed = texts(&[
            ("seed", "3"),
            ("num_envs", "8"),
            ("clip_actions", "true"),
            ("policy_config.gamma", "0.98"),
            (GOAL, "475.0"),
        ]);
        let changed: Vec<&String> =
            typed.keys().filter(|path| schema.is_changed(path, &typed[*path], &typed)).collect();
        assert_eq!(changed, ["clip_actions", "seed"], "the others are the defaults");
        assert!(schema.presets().contains(&("Pendulum-v1".into(), "ppo".into())));
        assert!(schema.presets().iter().all(|(env, algorithm)| env != "FrozenLake-v1" && algorithm != "a2c"));
        let wrong =
            texts(&[("stop.env_steps", "0"), ("seed", "3"), ("num_envs", "many"), ("policy_config.gamma", "2")]);
        let errors = schema.settings(&wrong).expect_err("they are out of range");
        let fields: Vec<_> = errors.iter().filter_map(|error| schema.field_of(error, &wrong)).collect();
        assert_eq!(fields, ["num_envs", "stop.env_steps", "policy_config.gamma"]);
        assert_eq!(schema.field_of("the run has no such thing", &wrong), None);
    }

    #[test]
    fn choices_are_distinguished_from_texts() {
        let schema = schema();
        let field = |path: &str| schema.fields.iter().find(|field| field.path == path).unwrap().clone();
        let is_choice = |path: &str| field(path).is_choice;
        assert!(["env", "algorithm", "mode", "clip_actions", "compress_observations"].into_iter().all(is_choice));
        assert!(!["seed", "rollout_fragment_length", "clip_rewards", "env_config"].into_iter().any(is_choice));
        assert_eq!((field("seed").default.as_str(), field("stop.wall_s").default.as_str()), ("0", ""));
    }

    #[test]
    fn other_environments_are_typed_if_the_hub_accepts_their_names() {
        let mut accepting = schema().schema;
        accept_env_names(&mut accepting, ["gym:", "py:my.envs:"]);
        let accepting = RunSchema::parse(&accepting.to_string()).unwrap();
        let env = accepting.frequent().next().unwrap();
        assert!(env.path == "env" && !env.is_choice, "{env:?}");
        assert_eq!(accepting.envs(), schema().envs(), "the names that are registered are suggested");
        let settings = |env: &str| accepting.settings(&texts(&[("env", env)])).map(|settings| settings.to_string());
        for name in ["gym:CartPole-v1", "py:my.envs:make", "Acrobot-v1"] {
            assert_eq!(settings(name).unwrap(), json!({ "env": name }).to_string());
        }
        assert_eq!(
            settings("py:other:make").unwrap_err(),
            [
                "env is \"py:other:make\"; it must be Acrobot-v1 or CartPole-v1 or Pendulum-v1 or a text like gym:… or a \
              text like py:my.envs:…"
            ]
        );
    }

    #[test]
    fn goals_and_presets_follow_the_environment() {
        let schema = schema();
        let mut typed = schema.first_texts(&Texts::new());
        assert_eq!(typed[GOAL], "475.0");
        let length = schema.fields.iter().find(|field| field.path == "rollout_fragment_length").unwrap();
        assert_eq!(schema.placeholder(length, &typed), "64");
        typed.insert("env".into(), "Pendulum-v1".into());
        schema.set_goal(&mut typed);
        assert_eq!((&*typed[GOAL], &*schema.placeholder(length, &typed)), ("", "128"));
        typed.insert("preset".into(), "none".into());
        assert_eq!(schema.placeholder(length, &typed), "64");
    }
}
