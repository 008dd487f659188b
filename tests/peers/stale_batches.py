"""PyTorch's losses and gradients of batches with rows of older weights, see README.md in this directory.

usage: python stale_batches.py > tests/golden/stale_batches.json

V-trace is the sum of equation 1 of the IMPALA paper, without recursion, in 64-bit floats; autograd computes the gradients.
"""

import torch

from common_torch import Model, distributions, f32, golden_case, logp_of, policy_gradient_loss, ppo_loss, sample, write

GAMMA, LAMBDA = 0.9, 0.8
SETTINGS = {"gamma": GAMMA, "lambda": LAMBDA, "vf_loss_coeff": 0.7, "entropy_coeff": 0.3, "grad_clip": 0, "use_critic": True}
OBS, HIDDEN = 3, 4
# The learner's version, and the pieces of episodes: rows, the version that acted, and the flag of the last row.
LEARNER = 7
PIECES = [(4, 5, "terminateds"), (3, 7, None), (5, 3, None), (2, 6, "truncateds"), (3, 7, "terminateds"), (1, 6, None)]
LENS = [rows for rows, _, _ in PIECES]
ROWS = sum(LENS)


def vtrace(rewards, values, bootstrap, ratios, gamma, lam):
    """Returns targets by equation 1 with clips at 1 and the traces of remark 2, and the advantages that correspond to them."""
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
    config = {"fcnet_hiddens": [HIDDEN], "use_lstm": True, "lstm_cell_size": HIDDEN} if memory else {"fcnet_hiddens": [HIDDEN]}
    model = Model(config, [OBS], space)
    obs, states = f32(torch.randn(ROWS, OBS)), f32(torch.randn(len(PIECES), 2 * HIDDEN) * 0.5)
    inputs, values = model.forward(obs, LENS, states)
    parts = distributions(space, inputs)
    actions = sample(parts)
    logp = logp_of(parts, actions)
    rewards, vf_preds = f32(torch.randn(ROWS)), f32(values.detach() + 0.3 * torch.randn(ROWS))
    bootstraps = f32(torch.randn(len(PIECES)))

    columns = {"terminateds": [False] * ROWS, "truncateds": [False] * ROWS, "unroll_id": [], "weights_version": []}
    behaviour, advantages, targets, old_logp = [], [], [], []
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
    rows = {"actions": actions, "action_logp": torch.cat(old_logp)}
    rows.update({"advantages": torch.cat(advantages), "value_targets": torch.cat(targets)})

    settings = {**SETTINGS, "clip_param": 0.2} if algorithm == "ppo" else SETTINGS
    loss, losses = (ppo_loss if algorithm == "ppo" else policy_gradient_loss)(settings, parts, values, rows)
    loss.backward()
    columns.update({
        "obs": obs, "actions": actions, "rewards": rewards, "vf_preds": vf_preds, "action_logp": torch.cat(behaviour),
        "advantages": torch.cat(batch_advantages), "value_targets": torch.cat(batch_targets),
    })
    if memory:
        columns.update(model.state_columns(states))
    return golden_case(name, algorithm, settings, model, columns, LENS if memory else None, losses, version=LEARNER)


write("stale_batches.py", [
    case("discrete", {"nvec": [3]}, "ppo"),
    case("several discrete", {"nvec": [2, 3]}, "ppo"),
    case("continuous", {"len": 2}, "ppo"),
    case("discrete with memory", {"nvec": [3]}, "ppo", memory=True),
    case("discrete by policy gradient", {"nvec": [3]}, "a2c"),
])
