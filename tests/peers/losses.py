"""PyTorch's losses, gradients and AdamW steps of every algorithm and model, see README.md in this directory.

usage: python losses.py > tests/golden/losses.json
"""

from zlib import crc32

import torch
from torch.nn import functional

from common_torch import (
    ACTIVATIONS, Model, as_list, distributions, entropy_of, f32, golden_case, inputs_len, logp_of, policy_gradient_loss,
    ppo_loss, sample, write,
)

LENS = [3, 1, 4, 2]
ROWS = sum(LENS)
DISCRETE, CONTINUOUS = {"nvec": [3]}, {"len": 2}
PERCEPTRON = {"fcnet_hiddens": [4]}

ACTOR_CRITIC = {"use_critic": True, "vf_loss_coeff": 0.7, "entropy_coeff": 0.3, "grad_clip": 0}
IMITATION = {"beta": 0, "bc_logstd_coeff": 0, "vf_loss_coeff": 1, "grad_clip": 0}
SETTINGS = {
    "pg": {**ACTOR_CRITIC, "use_critic": False},
    "a2c": ACTOR_CRITIC,
    "ppo": {**ACTOR_CRITIC, "clip_param": 0.2, "kl_coeff": 0.4, "anneal_over_env_steps": 0},
    "bc": IMITATION,
    "marwil": {
        **IMITATION, "beta": 1.5, "moving_average_sqd_adv_norm_start": 2, "moving_average_sqd_adv_norm_update_rate": 0.25,
    },
}
COLUMNS = {
    "pg": ["advantages"],
    "a2c": ["advantages", "value_targets", "vf_preds"],
    "ppo": ["advantages", "value_targets", "vf_preds", "action_logp", "action_dist_inputs"],
    "bc": [],
    "marwil": ["advantages"],
}
# Settings of the cases that take steps.
STEPS = {"lr": 0.02, "adam_epsilon": 1e-5, "weight_decay": 0.1, "num_epochs": 4, "minibatch_size": 1000}


def imitation_loss(settings, parts, values, rows):
    """Returns the loss of `bc` or `marwil`, and its parts. The batch's advantages are returns."""
    logp = logp_of(parts, rows["actions"])
    if settings["bc_logstd_coeff"]:
        log_stds = [part.scale.log() for part in parts if hasattr(part, "scale")]
        logp = logp + settings["bc_logstd_coeff"] * sum(log_stds) / len(log_stds)
    vf_loss, weights = torch.zeros(()), 1
    if settings["beta"]:
        advantages = rows["advantages"] - values
        vf_loss = (advantages ** 2).mean()
        mean_square = next_mean_square(settings, vf_loss.detach())
        weights = (settings["beta"] * advantages.detach() / (mean_square.sqrt() + 1e-8)).exp()
    losses = {"policy_loss": -(weights * logp).mean(), "vf_loss": vf_loss, "entropy": entropy_of(parts)}
    return losses["policy_loss"] + 0.5 * settings["vf_loss_coeff"] * vf_loss, losses


def next_mean_square(settings, found):
    start, rate = (settings[f"moving_average_sqd_adv_norm_{name}"] for name in ["start", "update_rate"])
    return start + rate * (found - start)


LOSSES = {
    "pg": policy_gradient_loss, "a2c": policy_gradient_loss, "ppo": ppo_loss, "bc": imitation_loss, "marwil": imitation_loss,
}


def previous_steps(model, actions, rewards, first):
    """Returns the input of a recurrent layer from previous steps: `first`, then the sequence's actions and rewards."""
    nvec = model.space.get("nvec")
    encoded = [functional.one_hot(a.long(), n) for a, n in zip(actions.unbind(1), nvec)] if nvec else [actions]
    steps = (encoded if model.lstm_use_prev_action else []) + ([rewards[:, None]] if model.lstm_use_prev_reward else [])
    if not steps:
        return torch.zeros(ROWS, 0)
    sequences = torch.cat(steps, 1).split(LENS)
    return torch.cat([torch.cat([before[None], steps[:-1]]) for before, steps in zip(first, sequences)])


def case(
    name, algorithm="ppo", config=PERCEPTRON, space=DISCRETE, obs_shape=(3,), mask_len=0, env_steps=0, steps=False, **own
):
    torch.manual_seed(crc32(name.encode()))
    settings = {**SETTINGS[algorithm], **own, **(STEPS if steps else {})}
    model = Model(config, list(obs_shape), space, mask_len)
    is_recurrent = model.use_lstm or model.use_gru
    obs = f32(torch.randn(ROWS, torch.Size(obs_shape).numel()))
    cells = 2 * model.lstm_cell_size if model.use_lstm else model.gru_cell_size if model.use_gru else 0
    states = f32(torch.randn(len(LENS), cells) * 0.5)
    if mask_len:
        obs = torch.cat([(torch.arange(ROWS * mask_len).view(ROWS, mask_len) % 3 != 0).double(), obs], 1)
    seen_len = (inputs_len(space) // (2 if "len" in space else 1) if model.lstm_use_prev_action else 0)
    first = f32(torch.randn(len(LENS), seen_len + model.lstm_use_prev_reward) * 0.5)
    rewards = f32(torch.randn(ROWS)) if first.numel() else torch.zeros(ROWS)
    previous = previous_steps(model, torch.zeros(ROWS, len(space.get("nvec", [0, 0]))), rewards, first)
    inputs, values = (tensor.detach() for tensor in model.forward(obs, LENS, states, previous))

    acting = f32(inputs + 0.4 * torch.randn(ROWS, inputs_len(space)))
    old = distributions(space, acting)
    actions = sample(old)
    rows = {
        "actions": actions, "action_dist_inputs": acting, "action_logp": f32(logp_of(old, actions)),
        "vf_preds": f32(values + 0.5 * torch.randn(ROWS)), "value_targets": f32(values + torch.randn(ROWS)),
        "advantages": f32(torch.randn(ROWS)),
    }
    previous = previous_steps(model, actions, rewards, first)
    columns = {"obs": obs, "actions": actions, **{column: rows[column] for column in COLUMNS[algorithm]}}
    if is_recurrent:
        columns.update(model.state_columns(states))
    if first.numel():
        columns.update({f"state_in_{2 if model.use_lstm else 1}": first, "rewards": rewards})
    now = dict(settings)
    if settings.get("anneal_over_env_steps"):
        now["annealing"] = 1 - env_steps / settings["anneal_over_env_steps"] * (1 - settings["anneal_to"])

    def backward():
        inputs, values = model.forward(obs, LENS, states, previous)
        loss, losses = LOSSES[algorithm](now, distributions(space, inputs), values, {**rows, "old": old})
        for weight in model.weights.values():
            # Zeros instead of None, since AdamW does not decay weights without a gradient.
            weight.grad = torch.zeros_like(weight)
        loss.backward()
        if settings["grad_clip"]:
            losses["grad_gnorm"] = torch.nn.utils.clip_grad_norm_(model.weights.values(), settings["grad_clip"])
        return losses

    losses = backward()
    if algorithm == "ppo":
        assert 0 < losses["clip_fraction"] < 1, f"{name}: some ratios should be clipped, not all"
    golden = golden_case(
        name, algorithm, settings, model, columns, LENS if is_recurrent else None, losses, env_steps=env_steps)
    if steps:
        golden["after"] = take_steps(model, settings, now, backward)
    return golden


def take_steps(model, settings, now, backward):
    """Takes AdamW steps with the whole batch's gradient. Returns mean losses and the weights after the last step."""
    weights = model.weights.values()
    optimizer = torch.optim.AdamW(
        weights, settings["lr"], eps=settings["adam_epsilon"], weight_decay=settings["weight_decay"])
    sums = {"policy_loss": 0, "vf_loss": 0, "entropy": 0}
    for _ in range(settings["num_epochs"]):
        losses = backward()
        sums = {name: total + float(losses[name]) for name, total in sums.items()}
        optimizer.step()
        if settings.get("beta"):
            now["moving_average_sqd_adv_norm_start"] = next_mean_square(now, losses["vf_loss"].detach())
    return {
        "losses": {name: total / settings["num_epochs"] for name, total in sums.items()},
        "weights": {name: as_list(weight) for name, weight in model.weights.items()},
    }


ALGORITHMS = [
    case("pg", "pg"),
    case("pg without entropy", "pg", entropy_coeff=0),
    case("a2c", "a2c"),
    case("a2c with a clipped gradient", "a2c", grad_clip=0.25),
    case("a2c without critic", "a2c", use_critic=False, use_gae=False),
    case("ppo, clipped ratios alone", vf_loss_coeff=0, entropy_coeff=0, kl_coeff=0),
    case("ppo with all parts"),
    case("ppo with clipped values", vf_clip_range=0.3),
    case("ppo with a clipped gradient", grad_clip=0.25),
    case("ppo with an annealed clip_param", clip_param=0.4, anneal_over_env_steps=1000, anneal_to=0.2, env_steps=600),
    case("ppo without critic", use_critic=False, use_gae=False),
    case("ppo in steps", steps=True, grad_clip=0.5),
    case("bc", "bc"),
    case("bc with bc_logstd_coeff", "bc", space=CONTINUOUS, bc_logstd_coeff=0.6),
    case("bc in steps", "bc", steps=True),
    case("marwil", "marwil"),
    case("marwil with bc_logstd_coeff", "marwil", space=CONTINUOUS, bc_logstd_coeff=0.6, vf_loss_coeff=0.3),
    case("marwil in steps", "marwil", steps=True),
]
SHARED = {**PERCEPTRON, "vf_share_layers": True}
NORMALISED = {"fcnet_hiddens": [18, 5], "fcnet_use_layernorm": True}
FILTERS = [[3, [3, 2], [2, 1]], [2, [2, 2], [1, 2]]]
IMAGES = {"fcnet_hiddens": [4], "conv_filters": FILTERS}
MODELS = [
    *[case(f"fcnet_activation {name}", config={"fcnet_hiddens": [4, 3], "fcnet_activation": name}) for name in ACTIVATIONS],
    case("no hidden layers", config={"fcnet_hiddens": []}),
    case("vf_share_layers", config=SHARED),
    case("post_fcnet_hiddens", config={**PERCEPTRON, "post_fcnet_hiddens": [5, 3], "post_fcnet_activation": "elu"}),
    case("post_fcnet_hiddens of a shared trunk", config={**SHARED, "post_fcnet_hiddens": [3]}),
    case("fcnet_use_layernorm", config={**NORMALISED, "post_fcnet_hiddens": [3]}),
    case("fcnet_use_layernorm of a shared trunk", config={**NORMALISED, "vf_share_layers": True}),
    case("fcnet_use_layernorm in steps", config=NORMALISED, steps=True),
    case("conv_filters", config=IMAGES, obs_shape=(5, 4, 2)),
    case("conv_filters of a shared trunk", config={**IMAGES, **SHARED, "conv_activation": "silu"}, obs_shape=(5, 4, 2)),
    case("LSTM", config={**PERCEPTRON, "use_lstm": True, "lstm_cell_size": 3}),
    case("LSTM without layers before it", config={"fcnet_hiddens": [], "use_lstm": True, "lstm_cell_size": 3}),
    case("GRU", config={**PERCEPTRON, "use_gru": True, "gru_cell_size": 3}, space=CONTINUOUS),
    case("GRU after convolutions", config={**IMAGES, "use_gru": True, "gru_cell_size": 3}, obs_shape=(5, 4, 2)),
    case("LSTM that sees the previous step", config={
        "fcnet_hiddens": [2], "use_lstm": True, "lstm_cell_size": 3, "lstm_use_prev_action": True,
        "lstm_use_prev_reward": True}),
    case("GRU that sees the previous action", space=CONTINUOUS, config={
        "fcnet_hiddens": [2], "use_gru": True, "gru_cell_size": 3, "lstm_use_prev_action": True}),
    case("free_log_std", config={**PERCEPTRON, "free_log_std": True}, space=CONTINUOUS),
    case("free_log_std with an LSTM", config={"fcnet_hiddens": [2], "use_lstm": True, "lstm_cell_size": 2,
                                              "free_log_std": True}, space=CONTINUOUS),
    case("several discrete actions", space={"nvec": [2, 3]}),
    case("binary actions", space={"binary": 3}),
    case("continuous actions", space=CONTINUOUS),
    case("compound actions", space={"parts": [{"nvec": [3]}, {"len": 1}, {"binary": 2}]}),
    case("compound actions by bc with bc_logstd_coeff", "bc", space={"parts": [{"len": 1}, {"nvec": [2, 2]}]},
         bc_logstd_coeff=0.6),
    case("action masks", mask_len=3),
    case("action masks of several discrete actions", space={"nvec": [3, 3]}, mask_len=6),
]
write("losses.py", ALGORITHMS + MODELS)
