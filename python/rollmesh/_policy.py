"""Weights under PyTorch's names, and policies that act in Rust."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from . import _native
from ._batch import Array, MultiAgentBatch, SampleBatch, to_column, to_native, view

Weights = dict[str, Array]
# Names, shapes and values in the extension module's layout.
Tensors = list[tuple[str, list[int], bytes]]

_LAYER = re.compile(r"(.+)\.(\d+)\.(weight|bias)$")
_MEMORY = {f"{kind}.{part}": f"{kind}.{part}_l0" for kind in ("lstm", "gru") for part in ("weight_ih", "weight_hh")}
_MEMORY |= {f"gru.{part}": f"gru.{part}_l0" for part in ("bias_ih", "bias_hh")}
# Axes of matrices and filters, by the number of their dimensions.
_TO_TORCH = {2: (1, 0), 4: (3, 2, 0, 1)}
_OF_TORCH = {2: (1, 0), 4: (2, 3, 1, 0)}


def of_tensors(tensors: Tensors) -> Weights:
    """Returns a policy's tensors in the layout of a PyTorch module.

    Layer `i` of a network is number `2 i` of a `torch.nn.Sequential` with activations between, weights are
    `[outputs, inputs]`, filters `[filters, channels, height, width]`, and an LSTM's biases are those of the input; those of
    the hidden state are zeros. The outputs of a convolution are ordered by place and then by filter:
    `x.permute(0, 2, 3, 1).flatten(1)` goes into the next layer.
    """
    weights: Weights = {}
    for name, shape, values in tensors:
        array = np.frombuffer(values, dtype="<f4").reshape(shape)
        array = np.array(array.transpose(_TO_TORCH.get(array.ndim, tuple(range(array.ndim)))), order="C")
        if name == "lstm.bias":
            weights["lstm.bias_ih_l0"], weights["lstm.bias_hh_l0"] = array, np.zeros_like(array)
        else:
            weights[_torch_name(name)] = array
    return weights


def _torch_name(name: str) -> str:
    """Returns PyTorch's name of a tensor."""
    if match := _LAYER.match(name):
        network, layer, part = match.groups()
        return f"{network}.{2 * int(layer)}.{part}"
    return _MEMORY.get(name, name)


def _layers(names: Iterable[str]) -> dict[str, set[int]]:
    """Returns the numbers of the layers of every network."""
    numbers: dict[str, set[int]] = {}
    for network, layer, _ in (match.groups() for match in map(_LAYER.match, names) if match):
        numbers.setdefault(network, set()).add(int(layer))
    return numbers


def to_tensors(weights: Mapping[str, Any]) -> tuple[Tensors, dict[str, str]]:
    """Returns arrays or PyTorch tensors, a `state_dict` for example, as a policy's tensors, and the given names by theirs.

    The layers of a network count in the order of their numbers, with gaps for activations.
    """
    arrays = {name: _array(name, value) for name, value in weights.items()}
    ranks = {network: {n: rank for rank, n in enumerate(sorted(all_))} for network, all_ in _layers(arrays).items()}
    names = {theirs: ours for ours, theirs in _MEMORY.items()}
    if "lstm.bias_hh_l0" in arrays and "lstm.bias_ih_l0" in arrays:
        arrays["lstm.bias"] = arrays.pop("lstm.bias_ih_l0") + arrays.pop("lstm.bias_hh_l0")
    tensors, given_names = [], {}
    for given, array in arrays.items():
        name = names.get(given, given)
        if match := _LAYER.match(given):
            network, layer, part = match.groups()
            name = f"{network}.{ranks[network][int(layer)]}.{part}"
        array = array.transpose(_OF_TORCH.get(array.ndim, tuple(range(array.ndim))))
        tensors.append((name, list(array.shape), array.tobytes()))
        given_names[name] = given
    return tensors, given_names


def _array(name: str, value: Any) -> Array:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"weights '{name}' are of {array.dtype}, not numbers")
    return array.astype("<f4", copy=False)


def _floats(values: Any) -> list[float]:
    return np.asarray(values, dtype=np.float32).ravel().tolist()


def of_policies(weights: list[tuple[str, list]]) -> dict[str, Weights]:
    return {id: of_tensors(tensors) for id, tensors in weights}


def to_policies(
    weights: Mapping[str, Any], own: Callable[[list[str]], list[tuple[str, list]]] | None = None
) -> list[tuple[str, list]]:
    """Returns weights by policy; without policies they are those of the default policy.

    `own` returns the policies' own weights; those that do not fit them are refused under their given names.
    """
    _check_mapping(weights)
    if weights and not all(isinstance(value, Mapping) for value in weights.values()):
        weights = {"default_policy": weights}
    given = [(id, to_tensors(tensors)) for id, tensors in weights.items()]
    if own is not None:
        wanted = of_policies(own(list(weights)))
        for id, (tensors, given_names) in given:
            if id not in wanted:
                raise _native.PolicyError(f"there is no policy '{id}'")
            _check(id, of_tensors(tensors), given_names, wanted[id])
    return [(id, tensors) for id, (tensors, _) in given]


def _check_mapping(weights: Any) -> None:
    if not isinstance(weights, Mapping):
        raise TypeError(f"weights are a mapping of names to arrays, such as a state_dict, not {type(weights).__name__}")


def _check(id: str, weights: Weights, given_names: Mapping[str, str], own: Weights) -> None:
    """Refuses weights that do not fit a policy's own.

    In a network with as many layers as the policy's, the layers are compared by their order, else by the given numbers: these
    say which layer is missing or unknown.
    """
    shown = {_torch_name(name): given for name, given in given_names.items()}
    found, wanted = _layers(weights), _layers(own)
    unlike = {network for network, layers in found.items() if len(layers) != len(wanted.get(network, ()))}

    def compared(name: str) -> str:
        match = _LAYER.match(name)
        return shown[name] if match and match[1] in unlike else name

    given = {compared(name): (shown.get(name, name), array.shape) for name, array in weights.items()}
    if unknown := [name for name in given if name not in own]:
        names = ", ".join(own) or "none"
        raise _native.PolicyError(f"policy '{id}' has no weights '{given[unknown[0]][0]}': its weights are {names}")
    for name, array in own.items():
        if name not in given:
            raise _native.PolicyError(f"weights '{name}' of policy '{id}' are missing: their shape is {array.shape}")
        as_given, shape = given[name]
        if shape != array.shape:
            raise _native.PolicyError(f"weights '{as_given}' of policy '{id}' are {shape}, not {array.shape}")


def space_of(spaces: Mapping[str, Any], kind: str) -> Any:
    """Returns Gymnasium's space of a policy's observations or actions (`kind` is "observation" or "action")."""
    # Only spaces need Gymnasium.
    from ._vector import space

    return space(spaces[kind], spaces[f"{kind}_type"])


class Policy:
    """A policy of a worker, which acts in Rust, bit-identically to the worker's samples."""

    def __init__(
        self, owner: _native.Worker, id: str, calls: Counter[str], set_weights: Callable[[list, None], None] | None = None
    ) -> None:
        self._owner, self.id, self._calls, self._set_weights = owner, id, calls, set_weights or owner.set_weights
        self._spaces = owner.get("spaces").get(id)
        if self._spaces is None:
            raise _native.PolicyError(f"there is no policy '{id}'")

    def __repr__(self) -> str:
        return f"Policy({self.id!r})"

    @property
    def observation_space(self) -> Any:
        """Gymnasium's space of the observations, whose discrete parts count from 0."""
        return space_of(self._spaces, "observation")

    @property
    def action_space(self) -> Any:
        """Gymnasium's space of the actions, whose discrete parts count from 0."""
        return space_of(self._spaces, "action")

    def get_weights(self) -> Weights:
        """Returns the weights as arrays under PyTorch's names."""
        return of_policies(self._owner.weights([self.id]))[self.id]

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Sets the weights: arrays or PyTorch tensors under the names of `get_weights`."""
        _check_mapping(weights)
        self._set_weights(to_policies({self.id: weights}, self._owner.weights), None)

    def learn_on_batch(self, samples: SampleBatch) -> dict[str, float]:
        """Learns from rows, if the policy is trained; returns its metrics."""
        batch = MultiAgentBatch({self.id: samples}, len(samples))
        return self._owner.learn_on_batch(to_native(batch)).get(self.id, {})

    def compute_actions(
        self,
        obs_batch: Any,
        state_batches: Any = None,
        explore: bool = True,
        timestep: int | None = None,
        *,
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
    ) -> tuple[Array, list[Array], dict[str, Array]]:
        """Acts on rows of observations.

        Returns actions as the environment takes them, the states after them, and `action_logp` and `vf_preds`.
        Exploration is a function of the row's number and the timestep: equal calls at equal timesteps return equal
        actions. The timestep defaults to the number of earlier calls for this policy of the worker, group or run.

        A model with `lstm_use_prev_reward` needs the rewards of the steps before, which are 0 if left out. The actions
        before, as the environment takes them, are those of the states if left out. Other models ignore both.
        """
        dtype = self._spaces["observation_type"]
        obs = np.asarray(obs_batch, dtype=dtype)
        state = _floats(state_batches[0]) if state_batches else None
        actions, rewards = prev_action_batch, prev_reward_batch
        if actions is not None:
            actions = to_column("prev_action_batch", np.asarray(actions, dtype=self._spaces["action_type"]))
        before = (state, actions, None if rewards is None else _floats(rewards))
        t = self._calls[self.id] if timestep is None else timestep
        self._calls[self.id] += 1
        actions, logp, vf_preds, after = self._owner.act(self.id, to_column("obs", obs), before, explore, t)
        after = view(after)
        states = [after.reshape(len(obs), -1)] if after.size else []
        return view(actions), states, {"action_logp": view(logp), "vf_preds": view(vf_preds)}

    def compute_single_action(
        self, obs: Any, state: Any = None, explore: bool = True, *, prev_action: Any = None, prev_reward: Any = None
    ) -> tuple[Any, list, dict]:
        """Acts on one observation."""
        batches = None if not state else [np.asarray(state[0])[None]]
        before = {
            "prev_action_batch": None if prev_action is None else np.asarray(prev_action)[None],
            "prev_reward_batch": None if prev_reward is None else [prev_reward],
        }
        actions, states, extras = self.compute_actions(np.asarray(obs)[None], batches, explore, **before)
        return actions[0], [state[0] for state in states], {name: values[0] for name, values in extras.items()}


class PolicyMap(Mapping[str, Policy]):
    """The policies of a worker by id. `del` removes one; `add_policy` of the worker adds one."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def __getitem__(self, policy_id: str) -> Policy:
        if policy_id not in self._worker.policy_ids:
            raise KeyError(policy_id)
        return self._worker.get_policy(policy_id)

    def __delitem__(self, policy_id: str) -> None:
        self._worker.remove_policy(self[policy_id].id)

    def __iter__(self) -> Iterator[str]:
        return iter(self._worker.policy_ids)

    def __len__(self) -> int:
        return len(self._worker.policy_ids)

    def __repr__(self) -> str:
        return f"PolicyMap({list(self)})"
