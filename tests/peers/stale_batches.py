"""PyTorch's losses and gradients of batches with rows of older weights, see README.md in this directory.

usage: python stale_batches.py > tests/golden/stale_batches.json

V-trace is summed as equation 1 of the IMPALA paper has it, without recursion, in 64-bit floats; gradients are autograd's.
"""

import json

import torch

torch.set_default_dtype(torch.float64)
GAMMA, LAMBDA, CLIP, VF_COEFF, ENTROPY_COEFF = 0.9, 0.8, 0.2, 0.7, 0.3
OBS, HIDDEN = 3, 4
# The learner's version, and pieces of episodes: rows, version that acted, whether the last row terminates or truncates.
LEARNER = 7
PIECES = [(4, 5, "terminateds"), (3, 7, None), (5, 3, None), (2, 6, "truncateds"), (3, 7, "terminateds"), (1, 6, None)]
ROWS = sum(rows for rows, _, _ in PIECES)


def f32(tensor):
    """The numbers as the batch has them."""
    return tensor.float().double()


def layers(network, *widths):
    for i, (before, after) in enumerate(zip(widths, widths[1:])):
        yield f"{network}.{i}.weight", f32(torch.randn(before, after) * 0.6)
        yield f"{network}.{i}.bias", f32(torch.randn(after) * 0.3)


def perceptron(weights, network, x):
    i = 0
    while f"{network}.{i}.weight" in weights:
        x = (x if i == 0 else torch.tanh(x)) @ weights[f"{network}.{i}.weight"] + weights[f"{network}.{i}.bias"]
        i += 1
    return x


def lstm(weights, obs, states):
    """Hidden states after each row; every piece is one sequence."""
    x = torch.tanh(perceptron(weights, "encoder", obs))
    after, row = [], 0
    for (rows, _, _), state in zip(PIECES, states):
        h, c = state[:HIDDEN], state[HIDDEN:]
        for _ in range(rows):
            gates = x[row] @ weights["lstm.weight_ih"] + h @ weights["lstm.weight_hh"] + weights["lstm.bias"]
            i, f, g, o = gates.chunk(4)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            after.append(h)
            row += 1
    return torch.stack(after)


def distribution(space, inputs):
    if "nvec" in space:
        parts = inputs.split(space["nvec"], 1)
        return [torch.distributions.Categorical(logits=part) for part in parts]
    mean, log_std = inputs.chunk(2, 1)
    return [torch.distributions.Normal(mean[:, i], log_std[:, i].exp()) for i in range(mean.shape[1])]


def logp_of(parts, actions):
    return sum(part.log_prob(actions[:, i]) for i, part in enumerate(parts))


def vtrace(rewards, values, bootstrap, ratios, gamma, lam):
    """Targets by equation 1 with clips at 1 and the traces of remark 2, and advantages that lead to the same."""
    n, rho = len(rewards), ratios.clamp(max=1.0)
    following = torch.cat([values[1:], bootstrap.view(1)])
    delta = rho * (rewards + gamma * following - values)
    v = [values[s] + sum(gamma ** (t - s) * (lam * rho[s:t]).prod() * delta[t] for t in range(s, n)) for s in range(n)]
    v = torch.stack(v)
    next_v = torch.cat([v[1:], bootstrap.view(1)])
    return v, rewards + gamma * (following + lam * (next_v - following)) - values


def gae(rewards, values, bootstrap, gamma, lam):
    following = torch.cat([values[1:], bootstrap.view(1)])
    delta = rewards + gamma * following - values
    n = len(rewards)
    return torch.stack([sum((gamma * lam) ** (t - s) * delta[t] for t in range(s, n)) for s in range(n)])


def case(name, space, algorithm, memory=False):
    torch.manual_seed(len(name))
    outputs = sum(space["nvec"]) if "nvec" in space else 2 * space["len"]
    weights = {}
    if memory:
        weights.update(layers("encoder", OBS, HIDDEN))
        weights["lstm.weight_ih"] = f32(torch.randn(HIDDEN, 4 * HIDDEN) * 0.6)
        weights["lstm.weight_hh"] = f32(torch.randn(HIDDEN, 4 * HIDDEN) * 0.6)
        weights["lstm.bias"] = f32(torch.randn(4 * HIDDEN) * 0.3)
    features = HIDDEN if memory else OBS
    weights.update(layers("policy", features, HIDDEN, outputs))
    weights.update(layers("value", features, HIDDEN, 1))
    for tensor in weights.values():
        tensor.requires_grad_()

    obs, states = f32(torch.randn(ROWS, OBS)), f32(torch.randn(len(PIECES), 2 * HIDDEN) * 0.5)
    x = lstm(weights, obs, states) if memory else obs
    parts = distribution(space, perceptron(weights, "policy", x))
    values = perceptron(weights, "value", x)[:, 0]
    actions = torch.stack([part.sample() for part in parts], 1)
    actions = actions if "nvec" in space else f32(actions)
    logp = logp_of(parts, actions)
    rewards, vf_preds = f32(torch.randn(ROWS)), f32(values.detach() + 0.3 * torch.randn(ROWS))
    bootstraps = f32(torch.randn(len(PIECES)))

    columns = {"terminateds": [False] * ROWS, "truncateds": [False] * ROWS, "unroll_id": [], "weights_version": []}
    behaviour, advantages, targets, old_logp, corrected = [], [], [], [], []
    batch_advantages, batch_targets = [], []
    start = 0
    for number, ((rows, version, end), bootstrap) in enumerate(zip(PIECES, bootstraps)):
        piece = slice(start, start + rows)
        start += rows
        columns["unroll_id"] += [number] * rows
        columns["weights_version"] += [version] * rows
        if end:
            columns[end][piece.stop - 1] = True
        bootstrap = torch.zeros(()) if end == "terminateds" else bootstrap
        now, current = logp[piece].detach(), values[piece].detach()
        acted = f32(now + 0.4 * torch.randn(rows)) if version < LEARNER else f32(now)
        own = gae(rewards[piece], vf_preds[piece], bootstrap, GAMMA, LAMBDA)
        batch_advantages.append(f32(own))
        batch_targets.append(f32(own + vf_preds[piece]))
        if version < LEARNER:
            v, a = vtrace(rewards[piece], current, bootstrap, (now - acted).exp(), GAMMA, LAMBDA)
            advantages.append(a if algorithm == "ppo" else (now - acted).exp().clamp(max=1.0) * a)
            targets.append(v)
            old_logp.append(acted)
        else:
            advantages.append(own)
            targets.append(own + vf_preds[piece])
            old_logp.append(now)
        behaviour.append(acted)
    advantages, targets, old_logp = torch.cat(advantages), torch.cat(targets), torch.cat(old_logp)

    if algorithm == "ppo":
        ratio = (logp - old_logp).exp()
        normal = (advantages - advantages.mean()) / (advantages.std(unbiased=False) + 1e-8)
        policy_loss = -torch.min(ratio * normal, ratio.clamp(1 - CLIP, 1 + CLIP) * normal).mean()
    else:
        policy_loss = -(logp * advantages).mean()
    vf_loss = ((values - targets) ** 2).mean()
    entropy = sum(part.entropy() for part in parts).mean()
    (policy_loss + VF_COEFF * vf_loss - ENTROPY_COEFF * entropy).backward()

    as_list = lambda tensor: [float(x) for x in tensor.detach().flatten()]
    columns.update({
        "obs": as_list(obs), "actions": as_list(actions), "rewards": as_list(rewards), "vf_preds": as_list(vf_preds),
        "action_logp": as_list(torch.cat(behaviour)), "advantages": as_list(torch.cat(batch_advantages)),
        "value_targets": as_list(torch.cat(batch_targets)),
    })
    if memory:
        columns.update({"state_in_0": as_list(states[:, :HIDDEN]), "state_in_1": as_list(states[:, HIDDEN:])})
    return {
        "name": name, "space": space, "algorithm": algorithm, "columns": columns,
        "seq_lens": [rows for rows, _, _ in PIECES] if memory else None,
        "weights": [{"name": n, "shape": list(t.shape), "values": as_list(t)} for n, t in weights.items()],
        "policy_loss": float(policy_loss), "vf_loss": float(vf_loss),
        "gradients": {n: as_list(t.grad) for n, t in weights.items()},
    }


CASES = [
    case("discrete", {"nvec": [3]}, "ppo"),
    case("several discrete", {"nvec": [2, 3]}, "ppo"),
    case("continuous", {"len": 2}, "ppo"),
    case("discrete with memory", {"nvec": [3]}, "ppo", memory=True),
    case("discrete by policy gradient", {"nvec": [3]}, "a2c"),
]
print(json.dumps({
    "made_by": f"tests/peers/stale_batches.py with torch {torch.__version__.split('+')[0]}", "version": LEARNER,
    "settings": {
        "gamma": GAMMA, "lambda": LAMBDA, "vf_loss_coeff": VF_COEFF, "entropy_coeff": ENTROPY_COEFF, "grad_clip": 0,
    },
    "clip_param": CLIP, "cases": CASES,
}))
