"""Models, distributions, losses and golden cases that the scripts for PyTorch share, in 64-bit floats.

Activations, recurrent cells, convolutions, distributions and divergences are PyTorch's own; names, shapes and the padding of
convolutions are rollmesh's.
"""

import json

import torch
from torch.distributions import Bernoulli, Categorical, Normal, kl_divergence
from torch.nn import functional

torch.set_default_dtype(torch.float64)

ACTIVATIONS = {
    "linear": lambda x: x, "tanh": torch.tanh, "relu": torch.relu, "silu": functional.silu, "gelu": functional.gelu,
    "elu": functional.elu,
}
MODEL_DEFAULTS = {
    "fcnet_hiddens": [], "fcnet_activation": "tanh", "post_fcnet_hiddens": [], "post_fcnet_activation": "relu",
    "fcnet_use_layernorm": False, "conv_filters": [], "conv_activation": "relu", "vf_share_layers": False,
    "use_lstm": False, "use_gru": False, "lstm_use_prev_action": False, "lstm_use_prev_reward": False,
    "free_log_std": False,
}


def f32(tensor):
    """Rounds to the 32 bits of columns and weights."""
    return tensor.float().double()


def as_list(tensor):
    """Flattens to numbers of 9 significant digits, which restore 32-bit floats exactly."""
    tensor = tensor.detach().flatten()
    return [float(f"{x:.9g}") if tensor.is_floating_point() else x for x in tensor.tolist()]


class Model:
    """The networks of a `model_config`. The first forward pass draws each weight where it is needed.

    Observations begin with `mask_len` numbers, the mask of valid actions.
    """

    def __init__(self, config, obs_shape, space, mask_len=0):
        self.config, self.obs_shape, self.space, self.mask_len, self.weights = config, obs_shape, space, mask_len, {}
        vars(self).update(MODEL_DEFAULTS, **config)

    def tensor(self, name, *shape):
        if name not in self.weights:
            self.weights[name] = f32(torch.randn(shape) * (0.3 if len(shape) == 1 else 0.6)).requires_grad_()
        return self.weights[name]

    def forward(self, obs, lens=None, states=None, previous=None):
        """Returns the distributions' inputs and the values of rows, which are sequences of these lengths.

        `previous` is the input of a recurrent layer from the steps before the rows.
        """
        mask, obs = obs[:, :self.mask_len], obs[:, self.mask_len:]
        is_recurrent = self.use_lstm or self.use_gru
        is_shared = self.vf_share_layers or is_recurrent
        outputs = inputs_len(self.space) // (2 if self.free_log_std else 1)
        shared = self.hidden("encoder", obs)[0] if is_shared else None
        if is_recurrent:
            seen = shared if previous is None else torch.cat([shared, previous], 1)
            shared = self.memory(seen, lens, states)
        heads = []
        for network, width in [("policy", outputs), ("value", 1)]:
            x, number = (shared, 0) if is_shared else self.hidden(network, obs)
            heads.append(self.dense(f"{network}.{number}", x, width, "linear"))
        inputs, values = heads
        if self.free_log_std:
            inputs = torch.cat([inputs, self.tensor("policy.log_std", outputs).expand(len(obs), -1)], 1)
        if self.mask_len:
            inputs = torch.where(mask != 0, inputs, f32(torch.tensor(-1e30)))
        return inputs, values[:, 0]

    def hidden(self, network, x):
        """Returns the outputs of the last hidden layer and the number of dense layers."""
        if self.conv_filters:
            x = x.view(-1, *self.obs_shape)
            for i, (filters, kernel, stride) in enumerate(self.conv_filters):
                is_last = i + 1 == len(self.conv_filters)
                x = self.convolution(f"{network}_conv.{i}", x, filters, kernel, stride, not is_last)
            x = x.flatten(1)
        layers = [(width, self.fcnet_activation) for width in self.fcnet_hiddens]
        layers += [(width, self.post_fcnet_activation) for width in self.post_fcnet_hiddens]
        for i, (width, activation) in enumerate(layers):
            if self.fcnet_use_layernorm:
                x = self.dense(f"{network}.{i}", x, width, "linear")
                x = ACTIVATIONS[activation](self.layer_norm(f"{network}_norm.{i}", x))
            else:
                x = self.dense(f"{network}.{i}", x, width, activation)
        return x, len(layers)

    def dense(self, name, x, outputs, activation):
        sums = x @ self.tensor(f"{name}.weight", x.shape[1], outputs) + self.tensor(f"{name}.bias", outputs)
        return ACTIVATIONS[activation](sums)

    def layer_norm(self, name, x):
        width = x.shape[1:]
        return functional.layer_norm(x, width, self.tensor(f"{name}.weight", *width), self.tensor(f"{name}.bias", *width))

    def convolution(self, name, images, filters, kernel, stride, is_padded):
        """Applies a convolution to images whose last dimension are the channels, as in the result."""
        weight = self.tensor(f"{name}.weight", *kernel, images.shape[3], filters)
        bias = self.tensor(f"{name}.bias", filters)
        padding = []
        # `pad` takes the last dimension first: the width.
        for side in [1, 0]:
            size = images.shape[1 + side]
            places = -(-size // stride[side])
            missing = max((places - 1) * stride[side] + kernel[side] - size, 0) if is_padded else 0
            padding += [missing // 2, missing - missing // 2]
        x = functional.pad(images.permute(0, 3, 1, 2), padding)
        x = functional.conv2d(x, weight.permute(3, 2, 0, 1), bias, stride)
        return ACTIVATIONS[self.conv_activation](x).permute(0, 2, 3, 1)

    def memory(self, x, lens, states):
        """Returns the hidden state after each row. An LSTM's cells follow the hidden state in `states`."""
        name, cells, gates = ("lstm", self.lstm_cell_size, 4) if self.use_lstm else ("gru", self.gru_cell_size, 3)
        weights = [self.tensor(f"{name}.weight_ih", x.shape[1], gates * cells).t()]
        weights.append(self.tensor(f"{name}.weight_hh", cells, gates * cells).t())
        if self.use_lstm:
            bias = self.tensor("lstm.bias", gates * cells)
            weights += [bias, torch.zeros_like(bias)]
        else:
            weights += [self.tensor(f"gru.{bias}", gates * cells) for bias in ["bias_ih", "bias_hh"]]
        hidden = []
        for rows, state in zip(x.split(lens), states):
            state = state.view(1, -1).split(cells, 1)
            for row in rows.split(1):
                if self.use_lstm:
                    state = torch.lstm_cell(row, state, *weights)
                else:
                    state = [torch.gru_cell(row, state[0], *weights)]
                hidden.append(state[0])
        return torch.cat(hidden)

    def state_columns(self, states):
        """Returns the states of sequences as the columns of a batch."""
        parts = states.chunk(2, 1) if self.use_lstm else [states]
        return {f"state_in_{i}": part for i, part in enumerate(parts)}


def inputs_len(space):
    """Returns the number of inputs of a space's distribution."""
    if "parts" in space:
        return sum(inputs_len(part) for part in space["parts"])
    return sum(space["nvec"]) if "nvec" in space else space["binary"] if "binary" in space else 2 * space["len"]


def distributions(space, inputs):
    """Returns one distribution per component of an action."""
    if "parts" in space:
        inputs = inputs.split([inputs_len(part) for part in space["parts"]], 1)
        return [component for part, own in zip(space["parts"], inputs) for component in distributions(part, own)]
    if "nvec" in space:
        return [Categorical(logits=part) for part in inputs.split(space["nvec"], 1)]
    if "binary" in space:
        return [Bernoulli(logits=logit) for logit in inputs.unbind(1)]
    means, log_stds = (part.unbind(1) for part in inputs.chunk(2, 1))
    return [Normal(mean, log_std.exp()) for mean, log_std in zip(means, log_stds)]


def sample(parts):
    return f32(torch.stack([part.sample().double() for part in parts], 1))


def logp_of(parts, actions):
    return sum(part.log_prob(action) for part, action in zip(parts, actions.unbind(1)))


def entropy_of(parts):
    return sum(part.entropy() for part in parts).mean()


def policy_gradient_loss(settings, parts, values, rows):
    """Returns the loss of `pg` or `a2c`, and its parts."""
    policy_loss = -(logp_of(parts, rows["actions"]) * rows["advantages"]).mean()
    vf_loss = ((values - rows["value_targets"]) ** 2).mean() if settings["use_critic"] else torch.zeros(())
    losses = {"policy_loss": policy_loss, "vf_loss": vf_loss, "entropy": entropy_of(parts)}
    return actor_critic_loss(settings, losses), losses


def ppo_loss(settings, parts, values, rows):
    """Returns the loss of `ppo`, and its parts. The KL divergence is from the distributions `old`."""
    ratio = (logp_of(parts, rows["actions"]) - rows["action_logp"]).exp()
    advantages = (rows["advantages"] - rows["advantages"].mean()) / (rows["advantages"].std(unbiased=False) + 1e-8)
    clip = settings["clip_param"] * settings.get("annealing", 1)
    policy_loss = -torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages).mean()
    vf_loss = torch.zeros(())
    if settings["use_critic"]:
        errors = (values - rows["value_targets"]) ** 2
        if settings.get("vf_clip_range"):
            moved = (values - rows["vf_preds"]).clamp(-settings["vf_clip_range"], settings["vf_clip_range"])
            errors = torch.max(errors, (rows["vf_preds"] + moved - rows["value_targets"]) ** 2)
        vf_loss = errors.mean()
    losses = {"policy_loss": policy_loss, "vf_loss": vf_loss, "entropy": entropy_of(parts)}
    loss = actor_critic_loss(settings, losses)
    if "old" in rows:
        losses["kl"] = sum(kl_divergence(old, now) for old, now in zip(rows["old"], parts)).mean()
        losses["clip_fraction"] = ((ratio - 1).abs() > clip).double().mean()
        loss = loss + settings.get("kl_coeff", 0) * losses["kl"]
    return loss, losses


def actor_critic_loss(settings, losses):
    loss = losses["policy_loss"] + settings["vf_loss_coeff"] * losses["vf_loss"]
    return loss - settings["entropy_coeff"] * losses["entropy"]


def golden_case(name, algorithm, settings, model, columns, lens, losses, **more):
    """Returns a case for learner/src/tests/golden.rs, with the weights' gradients after `backward`."""
    columns = {name: column if isinstance(column, list) else as_list(column) for name, column in columns.items()}
    if "nvec" in model.space or "binary" in model.space:
        columns["actions"] = [int(action) for action in columns["actions"]]
    return {
        "name": name, "algorithm": algorithm, "settings": settings, "model": model.config, "space": model.space,
        "obs_shape": model.obs_shape, "mask_len": model.mask_len, "columns": columns, "seq_lens": lens,
        "weights": [{"name": n, "shape": list(w.shape), "values": as_list(w)} for n, w in model.weights.items()],
        "losses": {name: float(loss) for name, loss in losses.items()},
        "gradients": {n: as_list(w.grad) for n, w in model.weights.items()},
        **more,
    }


def write(script, cases):
    """Prints cases, one per line."""
    print(f'{{"made_by": "tests/peers/{script} with torch {torch.__version__.split("+")[0]}", "cases": [')
    print(",\n".join(json.dumps(case) for case in cases))
    print("]}")
