"""Draws docs/traffic-grid.svg from the directories of runs, one per seed:

    python3 examples/traffic_grid/plot.py runs/1 runs/2 runs/3 > docs/traffic-grid.svg
"""

import json
import pathlib
import sys

# Mean return of an agent: of random policies (`sample --policy random`), and of the hand-written controller in the environment's tests.
PANELS = [
    ("cars", [("car_policy1", "gamma 0.99", "#3b82c4"), ("car_policy2", "gamma 0.95", "#d9822b")], -1.2, 2.34, (-2, 3)),
    ("lights", [("traffic_light_policy", "", "#2f9e6e")], -3.7, 0.17, (-5, 1)),
]
WIDTH, HEIGHT, LEFT, TOP, GAP = 360, 220, 44, 34, 72
GREY = "#808890"


def read(run):
    lines = (pathlib.Path(run) / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if "iteration" in line]


def curve(rows, policy):
    """Returns env steps, and mean returns of an agent in the last 100 episodes."""
    for row in rows:
        if policy in row.get("policy_reward_mean", {}):
            yield row["env_steps"], row["policy_reward_mean"][policy]


def panel(runs, x0, title, policies, random, written, scale):
    low, high = scale
    most = max(rows[-1]["env_steps"] for rows in runs)
    x = lambda steps: x0 + WIDTH * steps / most
    y = lambda value: TOP + HEIGHT * (high - min(max(value, low), high)) / (high - low)
    out = [f'<text x="{x0}" y="{TOP - 14}" class="title">{title}: mean return of an agent</text>']
    for value in range(low, high + 1):
        out.append(f'<path d="M{x0} {y(value):.1f}h{WIDTH}" class="grid"/>')
        out.append(f'<text x="{x0 - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value}</text>')
    for quarter in range(5):
        steps = most * quarter / 4
        label = f"{steps / 1000:.0f}k"
        out.append(f'<text x="{x(steps):.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{label}</text>')
    # Positions of names where no curve ends.
    for value, name, shift in ((random, "random", -5), (written, "hand-written", 16)):
        out.append(f'<path d="M{x0} {y(value):.1f}h{WIDTH}" class="level"/>')
        out.append(f'<text x="{x0 + WIDTH - 4}" y="{y(value) + shift:.1f}" text-anchor="end">{name} {value}</text>')
    for number, (policy, label, colour) in enumerate(policies):
        for rows in runs:
            points = " ".join(f"{x(steps):.1f},{y(value):.1f}" for steps, value in curve(rows, policy))
            out.append(f'<polyline points="{points}" stroke="{colour}"/>')
        place = TOP + HEIGHT / 2 + 16 * number
        out.append(f'<text x="{x0 + WIDTH - 4}" y="{place}" text-anchor="end" style="fill:{colour}">{policy} {label}</text>')
    return out


def main():
    runs = [read(path) for path in sys.argv[1:]]
    if not runs:
        sys.exit(__doc__)
    width, height = LEFT + 2 * WIDTH + GAP + 12, TOP + HEIGHT + 46
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
        "<title>Returns of the traffic grid's three policies while they learn together</title>",
        # Medium colours without a background: readable in light and dark themes.
        f"<style>text{{font:12px system-ui,sans-serif;fill:{GREY}}}.title{{font-weight:600}}"
        f"polyline{{fill:none;stroke-width:1.6;stroke-opacity:.85}}.grid{{stroke:{GREY};stroke-opacity:.25}}"
        f".level{{stroke:{GREY};stroke-dasharray:5 4}}</style>",
    ]
    for number, (title, *rest) in enumerate(PANELS):
        out += panel(runs, LEFT + number * (WIDTH + GAP), title, *rest)
    out.append(f'<text x="{width / 2:.0f}" y="{height - 8}" text-anchor="middle">env steps</text>')
    print("\n".join(out + ["</svg>"]))


main()
