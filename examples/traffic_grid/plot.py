"""Draws docs/traffic-grid.svg from what `rollmesh learn --csv` wrote, one file per seed:

    python3 examples/traffic_grid/plot.py curve-1.csv curve-2.csv curve-3.csv > docs/traffic-grid.svg
"""

import csv
import sys

# Mean return of an agent: of random policies, and of the hand-written controller in the environment's tests.
PANELS = [
    ("cars", [("car_policy1", "gamma 0.99", "#3b82c4"), ("car_policy2", "gamma 0.95", "#d9822b")], -1.09, 2.34, (-2, 3)),
    ("lights", [("traffic_light_policy", "", "#2f9e6e")], -3.56, 0.17, (-5, 1)),
]
WIDTH, HEIGHT, LEFT, TOP, GAP = 360, 220, 44, 34, 72
GREY = "#808890"


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def curve(rows, policy):
    """Env steps and returns, smoothed over five iterations."""
    points = [(int(row["env_steps"]), row["reward_mean/" + policy]) for row in rows]
    points = [(steps, float(value)) for steps, value in points if value]
    for end in range(1, len(points) + 1):
        window = points[max(0, end - 5) : end]
        yield points[end - 1][0], sum(value for _, value in window) / len(window)


def panel(runs, x0, title, policies, random, written, scale):
    low, high = scale
    most = max(int(rows[-1]["env_steps"]) for rows in runs)
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
    for value, name in ((random, "random"), (written, "hand-written")):
        out.append(f'<path d="M{x0} {y(value):.1f}h{WIDTH}" class="level"/>')
        out.append(f'<text x="{x0 + WIDTH - 4}" y="{y(value) - 5:.1f}" text-anchor="end">{name} {value}</text>')
    for number, (policy, label, colour) in enumerate(policies):
        for rows in runs:
            points = " ".join(f"{x(steps):.1f},{y(value):.1f}" for steps, value in curve(rows, policy))
            out.append(f'<polyline points="{points}" stroke="{colour}"/>')
        place = TOP + HEIGHT - 12 - 16 * (len(policies) - 1 - number)
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
        # Mid tones on no ground: to be read in light and in dark.
        f"<style>text{{font:12px system-ui,sans-serif;fill:{GREY}}}.title{{font-weight:600}}"
        f"polyline{{fill:none;stroke-width:1.6;stroke-opacity:.85}}.grid{{stroke:{GREY};stroke-opacity:.25}}"
        f".level{{stroke:{GREY};stroke-dasharray:5 4}}</style>",
    ]
    for number, (title, *rest) in enumerate(PANELS):
        out += panel(runs, LEFT + number * (WIDTH + GAP), title, *rest)
    out.append(f'<text x="{width / 2}" y="{height - 8}" text-anchor="middle">env steps</text>')
    print("\n".join(out + ["</svg>"]))


main()
