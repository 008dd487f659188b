//! Tests of a worker with a server that sends the messages of RLlib's.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    thread,
};

use rmpv::Value;
use rollmesh_core::{
    run::FragmentLength,
    worker::{Registry, RolloutConfig, RolloutWorkerBuilder},
};

use super::{RllinkConfig, RllinkError, serve};

/// Shapes and values of a module for CartPole-v1: one hidden layer of eight units.
const SHAPES: [(&str, &[u64]); 6] = [
    ("encoder.actor_encoder.net.mlp.0.weight", &[8, 4]),
    ("encoder.actor_encoder.net.mlp.0.bias", &[8]),
    ("encoder.critic_encoder.net.mlp.0.bias", &[3]),
    ("pi.log_std_clip_param_const", &[1]),
    ("pi.net.mlp.0.weight", &[2, 8]),
    ("pi.net.mlp.0.bias", &[2]),
];

fn map<K: Into<Value>>(fields: impl IntoIterator<Item = (K, Value)>) -> Value {
    Value::Map(fields.into_iter().map(|(name, value)| (name.into(), value)).collect())
}

/// Returns the values of an array of this shape.
fn values(shape: &[u64]) -> Vec<f32> {
    (0..shape.iter().product::<u64>()).map(|i| 0.5 - (i * 7 % 11) as f32 / 10.0).collect()
}

/// Applies a dense layer with PyTorch's weights, a row for each output.
fn dense(weight: &[u64], bias: &[u64], inputs: &[f32]) -> Vec<f32> {
    let (weight, bias) = (values(weight), values(bias));
    let sum = |row: &[f32]| row.iter().zip(inputs).map(|(w, x)| w * x).sum::<f32>();
    weight.chunks(inputs.len()).zip(bias).map(|(row, bias)| sum(row) + bias).collect()
}

fn array(kind: &[u8], shape: &[u64]) -> Value {
    let data: Vec<u8> = values(shape).into_iter().flat_map(f32::to_le_bytes).collect();
    let shape = Value::Array(shape.iter().map(|dim| (*dim).into()).collect());
    let bin = |text: &str| Value::Binary(text.as_bytes().to_vec());
    map([
        (bin("nd"), true.into()),
        (bin("type"), "<f4".into()),
        (bin("kind"), Value::Binary(kind.to_vec())),
        (bin("shape"), shape),
        (bin("data"), Value::Binary(data)),
    ])
}

fn state_of(tensors: &[(&str, Value)]) -> Value {
    let module = map(tensors.iter().cloned());
    map([("type", "SET_STATE".into()), ("state", map([("rl_module", module), ("weights_seq_no", 1.into())]))])
}

fn tensors() -> Vec<(&'static str, Value)> {
    SHAPES.iter().map(|(name, shape)| (*name, array(b"", shape))).collect()
}

fn send(stream: &mut TcpStream, message: &Value) {
    let mut body = Vec::new();
    rmpv::encode::write_value(&mut body, message).unwrap();
    stream.write_all(format!("{:08}", body.len()).as_bytes()).unwrap();
    stream.write_all(&body).unwrap();
}

fn receive(stream: &mut TcpStream) -> Value {
    let mut header = [0; 8];
    stream.read_exact(&mut header).unwrap();
    let mut body = vec![0; std::str::from_utf8(&header).unwrap().parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    rmpv::decode::read_value(&mut &body[..]).unwrap()
}

fn get<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(value, |value, name| {
        let is_it = |key: &Value| key.as_str() == Some(name) || key.as_slice() == Some(name.as_bytes());
        &value.as_map().unwrap().iter().find(|(key, _)| is_it(key)).unwrap_or_else(|| panic!("{name} in {value}")).1
    })
}

fn data<T, const N: usize>(episode: &Value, name: &str, of: fn([u8; N]) -> T) -> Vec<T> {
    let bytes = get(episode, &format!("{name}.data.data")).as_slice().unwrap();
    bytes.as_chunks().0.iter().map(|bytes| of(*bytes)).collect()
}

/// Lets a worker serve an algorithm that `answer` plays. Returns the reason of the worker's end.
fn end_of(env: &str, answer: impl FnOnce(&mut TcpStream) + Send + 'static) -> RllinkError {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let rollout =
        RolloutConfig { num_envs: 2, rollout_fragment_length: FragmentLength::Steps(32), ..RolloutConfig::new(env) };
    let server = listener.local_addr().unwrap().to_string();
    let config = RllinkConfig { server, rollout, activation: "tanh".into(), env_steps: 64 };
    let algorithm = thread::spawn(move || answer(&mut listener.accept().unwrap().0));
    let make = |config| RolloutWorkerBuilder::new(Registry::builtin()).config(config).build();
    let end = serve(&config, make, |_| {});
    algorithm.join().unwrap();
    end
}

/// Answers the first messages, up to the request of the state.
fn greet(stream: &mut TcpStream) {
    for (wanted, answer) in [("PING", Some("PONG")), ("GET_STATE", None)] {
        assert_eq!(get(&receive(stream), "type").as_str(), Some(wanted));
        answer.into_iter().for_each(|answer| send(stream, &map([("type", answer.into())])));
    }
}

#[test]
fn episodes_continue_and_are_drawn_from_the_module() {
    let end = end_of("CartPole-v1", |stream| {
        greet(stream);
        let mut open = std::collections::BTreeMap::<String, Vec<f32>>::new();
        for _ in 0..3 {
            send(stream, &state_of(&tensors()));
            let message = receive(stream);
            assert_eq!(get(&message, "type").as_str(), Some("EPISODES_AND_GET_STATE"));
            let mut steps = 0;
            for episode in get(&message, "episodes").as_array().unwrap() {
                let id = get(episode, "id_").as_str().unwrap().to_owned();
                let obs = data(episode, "observations", f32::from_le_bytes);
                let actions = data(episode, "actions", i64::from_le_bytes);
                let inputs = data(episode, "extra_model_outputs.action_dist_inputs", f32::from_le_bytes);
                let logp = data(episode, "extra_model_outputs.action_logp", f32::from_le_bytes);
                let rows = actions.len();
                assert_eq!((obs.len(), inputs.len(), logp.len()), (4 * (rows + 1), 2 * rows, rows));
                assert_eq!(get(episode, "infos.data").as_array().unwrap().len(), rows + 1);
                assert_eq!(data(episode, "rewards", f32::from_le_bytes), vec![1.0; rows]);
                for row in 0..rows {
                    let hidden = dense(SHAPES[0].1, SHAPES[1].1, &obs[4 * row..4 * row + 4]);
                    let hidden: Vec<f32> = hidden.into_iter().map(f32::tanh).collect();
                    let logits = dense(SHAPES[4].1, SHAPES[5].1, &hidden);
                    assert!(logits.iter().zip(&inputs[2 * row..]).all(|(a, b)| (a - b).abs() < 1e-4), "{logits:?}");
                    let [left, right] = [inputs[2 * row], inputs[2 * row + 1]];
                    let own = inputs[2 * row + actions[row] as usize];
                    assert!((logp[row] - (own - (left.exp() + right.exp()).ln())).abs() < 1e-4);
                }
                let first = open.remove(&id);
                assert_eq!(first.is_some(), get(episode, "t_started").as_i64() != Some(0), "{id}");
                assert!(first.is_none_or(|first| first == obs[..4]), "a piece continues where the last one ended");
                assert_eq!(get(episode, "t").as_i64(), get(episode, "t_started").as_i64().map(|t| t + rows as i64));
                if get(episode, "is_terminated").as_bool() == Some(false) {
                    open.insert(id, obs[4 * rows..].to_vec());
                }
                steps += rows;
            }
            assert_eq!((steps, open.len()), (64, 2));
        }
        send(stream, &map([("type", "SET_CONFIG".into())]));
    });
    assert_eq!(end.to_string(), "RLlib answered SET_CONFIG where SET_STATE was expected");
}

#[test]
fn modules_that_cannot_act_are_named() {
    let with = |name: &'static str, tensor: Value| [tensors(), vec![(name, tensor)]].concat();
    let without = |name: &str| tensors().into_iter().filter(|(own, _)| *own != name).collect::<Vec<_>>();
    let lstm = "encoder.actor_encoder.lstm.weight_ih_l0";
    let cases = [
        (
            with(lstm, array(b"", &[4, 4])),
            "RLlib's module has the tensor 'encoder.actor_encoder.lstm.weight_ih_l0', which",
        ),
        (with("a", array(b"O", &[1])), "'a' in a message of RLlib is pickled: pickled objects are never read"),
        (with("a", Value::Nil), "the peer does not speak RLlink: 'a' is no array of 32- or 64-bit floats"),
        (without("pi.net.mlp.0.bias"), "RLlib's module has no vector of biases of layer 'pi.net.mlp.0'"),
        (tensors()[..4].to_vec(), "RLlib's module has no tensors 'pi.net.mlp.…'"),
        (
            [vec![("pi.net.mlp.0.weight", array(b"", &[3, 8]))], without("pi.net.mlp.0.weight")].concat(),
            "RLlib's module has no vector",
        ),
    ];
    for (tensors, wanted) in cases {
        let end = end_of("CartPole-v1", move |stream| {
            greet(stream);
            send(stream, &state_of(&tensors));
        });
        assert!(end.to_string().starts_with(wanted), "{end}");
    }
    let module_of_cart_pole = |stream: &mut TcpStream| {
        greet(stream);
        send(stream, &state_of(&tensors()));
    };
    let end = end_of("FrozenLake-v1", module_of_cart_pole);
    assert!(end.to_string().starts_with("FrozenLake-v1 has observations that are no Box"), "{end}");
    let end = end_of("Acrobot-v1", module_of_cart_pole);
    assert!(end.to_string().contains("policy.0.weight [6, 8]"), "{end}");
}

#[test]
fn peers_that_do_not_speak_the_protocol_are_named() {
    for (bytes, wanted) in [
        (&b"HTTP/1.1 400"[..], "the peer does not speak RLlink: a message does not begin with its length"),
        (b"99999999", "RLlib announced a message of 99999999 bytes; the largest that this worker takes has 67108864"),
        (b"00000002\xda\x00", "the peer does not speak RLlink: a body is no MessagePack"),
        (b"00000001\x80", "the peer does not speak RLlink: a message has no type"),
    ] {
        let end = end_of("CartPole-v1", move |stream| {
            receive(stream);
            stream.write_all(bytes).unwrap();
        });
        assert!(end.to_string().starts_with(wanted), "{end}");
    }
}
