"""Network namespaces as machines: a hub, workers, relays and a viewer, each with a link of its own to a switch.

Needs Linux, root, `ip` and `tc`, and the program, which ROLLMESH_BIN names. `cargo xtask test network` runs it. The links are pairs of virtual
Ethernet devices on a bridge, which a token bucket limits in both directions.

    hosts.py             a run whose workers, links and relay are disturbed ends as one that is not. Some workers reach the hub
                         through a proxy on a host of its own, which delays, cuts and holds back their connections
    hosts.py throughput  env steps, lag and bytes on the hub's link of an asynchronous run, for links of several rates
    hosts.py fan-out     how long new weights take to all workers, compared with what the links allow. One machine's processors must
                         encrypt and hash for all hosts: with slower links (--mbit 10) they are not what is measured
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

PROGRAM = os.environ.get("ROLLMESH_BIN", "rollmesh")
PROXY = Path(__file__).with_name("proxy.py")
PATIENCE = 180.0
PREFIX = f"rm{os.getpid() % 10_000}"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class Program:
    """A program on a host, and the lines of its standard error."""

    def __init__(self, host: "Host", *command: str, **environment: str) -> None:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = ("ip", "netns", "exec", host.name, *command)
        self.process = subprocess.Popen(command, env=os.environ | environment, text=True, **pipes)
        self.lines: list[str] = []
        self.changed = threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        for line in self.process.stderr:
            with self.changed:
                self.lines.append(line.rstrip())
                self.changed.notify_all()
        with self.changed:
            self.lines.append("")
            self.changed.notify_all()

    def find(self, pattern: str) -> re.Match[str]:
        """Waits for a line with this pattern."""
        found = None

        def is_there() -> bool:
            nonlocal found
            found = next((match for line in self.lines if (match := re.search(pattern, line))), None)
            return found is not None or "" in self.lines

        with self.changed:
            self.changed.wait_for(is_there, PATIENCE)
        if found is None:
            raise AssertionError(f"no line with {pattern}: {self.lines}")
        return found

    def say(self, line: str) -> None:
        """Writes a line to standard input, and waits for the answer of the proxy."""
        with self.changed:
            self.lines.clear()
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        self.find(f"done {line}")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def output(self, patience: float = PATIENCE) -> str:
        return self.process.communicate(timeout=patience)[0]


class Host:
    """A machine: a namespace whose only link leads to the switch."""

    def __init__(self, network: "Network", number: int) -> None:
        self.name = f"{PREFIX}-{number}"
        self.address = f"10.78.{number // 250}.{number % 250 + 1}"
        self.port = f"{PREFIX}v{number}"
        ip("netns", "add", self.name)
        ip("link", "add", self.port, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("link", "set", self.port, "master", network.bridge, "up")
        inside = ["-n", self.name]
        ip(*inside, "addr", "add", f"{self.address}/16", "dev", "eth0")
        ip(*inside, "link", "set", "eth0", "up")
        ip(*inside, "link", "set", "lo", "up")
        bucket = ["root", "tbf", "rate", f"{network.mbit}mbit", "burst", "64kb", "latency", "200ms"]
        subprocess.run(["tc", "qdisc", "add", "dev", self.port, *bucket], check=True)
        subprocess.run(["ip", "netns", "exec", self.name, "tc", "qdisc", "add", "dev", "eth0", *bucket], check=True)

    def connect(self, state: str) -> None:
        """Sets the link `up` or `down`."""
        ip("link", "set", self.port, state)

    def bytes(self) -> tuple[int, int]:
        """Returns the bytes that this machine has received and sent. They are those of the switch's end of its link."""
        counters = Path("/sys/class/net", self.port, "statistics")
        received, sent = (int(counters.joinpath(name).read_text()) for name in ("tx_bytes", "rx_bytes"))
        return received, sent


class Network:
    def __init__(self, mbit: int) -> None:
        self.bridge, self.mbit = f"{PREFIX}br", mbit
        self.hosts: list[Host] = []
        self.programs: list[Program] = []
        ip("link", "add", self.bridge, "type", "bridge")
        ip("link", "set", self.bridge, "up")

    def __enter__(self) -> "Network":
        return self

    def __exit__(self, *_: object) -> None:
        for program in self.programs:
            if program.process.poll() is None:
                program.kill()
        for host in self.hosts:
            ip("netns", "del", host.name)
        ip("link", "del", self.bridge)

    def host(self) -> Host:
        self.hosts.append(Host(self, len(self.hosts)))
        return self.hosts[-1]

    def start(self, host: Host, *words: str, **environment: str) -> Program:
        return self.start_other(host, PROGRAM, *words, **environment)

    def start_other(self, host: Host, *command: str, **environment: str) -> Program:
        self.programs.append(Program(host, *command, **environment))
        return self.programs[-1]


class Run:
    """A hub with a run that workers on other hosts sample."""

    def __init__(self, network: Network, folder: str, *settings: str) -> None:
        self.network, self.folder, self.host, self.proxy_host = network, folder, network.host(), network.host()
        listen = f"{self.host.address}:7878"
        names = [word for host in (self.host, self.proxy_host) for word in ("--public-host", host.address)]
        train = ["train", "--listen", listen, *names, "--tls-self-signed", "--state-dir", f"{folder}/state", "--remote-only", "--json"]
        self.tokens = {role: self.create_token(role) for role in ("viewer", "worker", "relay")}
        tokens = ["--tokens", f"{folder}/tokens.json"]
        self.program = network.start(self.host, *train, *tokens, "--run-dir", f"{folder}/run", *settings)
        hub, fingerprint = self.program.find(r"rollmesh worker --hub (\S+) --tls-fingerprint (\w+)").groups()
        self.trust = ["--hub", hub, "--tls-fingerprint", fingerprint]
        self.by_proxy = ["--hub", f"wss://{self.proxy_host.address}:7878", "--tls-fingerprint", fingerprint]
        ends = [f"{self.proxy_host.address}:7878", listen]
        self.proxy = network.start_other(self.proxy_host, sys.executable, str(PROXY), *ends)
        self.proxy.find("listening")

    def create_token(self, role: str) -> str:
        create = [PROGRAM, "tokens", "create", "--role", role, "--file", f"{self.folder}/tokens.json"]
        return subprocess.run(create, check=True, capture_output=True, text=True).stdout.strip()

    def ask(self, host: Host, command: str) -> dict:
        """Returns the answer to `status` or `workers`, from a viewer on this host."""
        viewer = self.network.start(host, command, "--json", *self.trust, ROLLMESH_TOKEN=self.tokens["viewer"])
        return json.loads(viewer.output())

    def relay(self, host: Host, upstream: list[str]) -> tuple[Program, list[str]]:
        """Starts a relay. Returns the arguments of a worker that uses it, too."""
        listen = ["--listen", f"{host.address}:7879", "--tls-self-signed", "--state-dir", f"{self.folder}/{host.name}"]
        relay = self.network.start(host, "relay", *self.trust, *listen, *upstream, ROLLMESH_TOKEN=self.tokens["relay"])
        address, fingerprint = relay.find(r"relaying at (\S+), fingerprint (\w+)").groups()
        relay.find("connected to the hub")
        return relay, ["--relay", f"wss://{address}", "--relay-fingerprint", fingerprint]

    def worker(self, host: Host, way: list[str]) -> Program:
        """Starts a worker that reaches the hub in this way: `trust` or `by_proxy`, and the arguments for a relay."""
        return self.network.start(host, "worker", *way, "--name", host.name, ROLLMESH_TOKEN=self.tokens["worker"])

    def iteration(self) -> int:
        return len(self.metrics())

    def metrics(self) -> list[dict]:
        metrics = Path(self.folder, "run/metrics.jsonl")
        lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def until(self, iteration: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.iteration() < iteration:
            if time.monotonic() > deadline or self.program.process.poll() is not None:
                raise AssertionError(f"no iteration {iteration} within {PATIENCE} s: {self.program.lines[-5:]}")
            time.sleep(0.05)

    def until_more(self, iterations: int) -> None:
        self.until(self.iteration() + iterations)

    def balance(self) -> None:
        """Each env step that was granted was learned from once, or has a reason."""
        ledger = json.loads(Path(self.folder, "run/ledger.json").read_text())
        reasons = [ledger["superseded"], *ledger["rejected"].values(), *ledger["expired"].values()]
        learned = json.loads(Path(self.folder, "run/summary.json").read_text())["env_steps"]
        assert ledger["committed"] == ledger["consumed"] == learned, ledger
        assert ledger["granted"] == learned + sum(reasons) + ledger["outstanding"], ledger


def disturbed(is_disturbed: bool) -> dict:
    """Returns the summary of a run with two workers behind a relay, two behind a proxy, and a viewer."""
    with tempfile.TemporaryDirectory() as folder, Network(100) as network:
        run = Run(network, folder, "--num-slots", "16", "--seed", "3", "--max-env-steps", "150000", "--hidden", "64,64")
        relay_host, viewer = network.host(), network.host()
        relay, with_relay = run.relay(relay_host, [])
        by_relay = [*run.trust, *with_relay]
        hosts = [network.host() for _ in range(4)]
        workers = [run.worker(host, way) for host, way in zip(hosts, [by_relay, by_relay, run.by_proxy, run.by_proxy])]
        run.until(5)
        if is_disturbed:
            workers[0].kill()
            run.until_more(3)
            run.worker(hosts[0], by_relay)
            # A partition between the hub and this worker.
            hosts[1].connect("down")
            run.until_more(3)
            hosts[1].connect("up")
            relay.kill()
            run.until_more(3)
            run.relay(relay_host, [])
            # The other two: slow, disconnected, and out of reach although their connections stay.
            for command in ("delay 0.05", "cut", "partition", "heal", "delay 0"):
                run.proxy.say(command)
                run.until_more(3)
        ledger = run.ask(viewer, "status")["ledger"]
        assert ledger["balances"] and ledger["granted"] > 0, ledger
        print(json.dumps({"mbit": network.mbit} | figures(run, viewer, 1)), flush=True)
        summary = json.loads(run.program.output())
        run.balance()
        return summary


def figures(run: Run, viewer: Host, seconds: float) -> dict:
    """Returns the throughput of a run and the load of the hub's link, in means of this many seconds."""

    def look() -> list[float]:
        received, sent = run.host.bytes()
        return [time.monotonic(), run.metrics()[-1]["env_steps"], received * 8e-6, sent * 8e-6]

    before = look()
    time.sleep(seconds)
    took, steps, received, sent = (later - earlier for earlier, later in zip(before, look()))
    loads = {"hub_receives_mbit": round(received / took, 2), "hub_sends_mbit": round(sent / took, 2)}
    workers = run.ask(viewer, "workers")
    lags = [worker["weights_lag"] for worker in workers]
    return {"workers": len(workers), "steps_per_s": round(steps / took), "weights_lag": lags, **loads}


def throughput(workers: int, rates: list[int]) -> None:
    """Prints figures of an asynchronous run with this many workers, compared with the rate of each link."""
    for mbit in rates:
        with tempfile.TemporaryDirectory() as folder, Network(mbit) as network:
            run = Run(network, folder, "--mode", "async", "--seed", "3", "--num-envs-per-worker", "16", "--max-env-steps", str(10**9))
            viewer = network.host()
            for _ in range(workers):
                run.worker(network.host(), run.trust)
            # Until all have joined, there are fewer.
            run.until(20)
            print(json.dumps({"mbit": mbit} | figures(run, viewer, 10)), flush=True)


def chaos() -> None:
    calm, storm = disturbed(False), disturbed(True)
    print(json.dumps({"calm": calm["weights_hash"], "disturbed": storm["weights_hash"]}))
    assert calm["weights_hash"] == storm["weights_hash"]


def fan_out(workers: int, mbit: int, widths: str, degrees: list[int]) -> None:
    """Prints the time of an iteration with weights for all workers, through trees in which each relay has this many below it (0:
    directly), and the time of the weights alone on one link."""
    # Both networks of CartPole: policy and value.
    sizes = [[4, *map(int, widths.split(",")), outputs] for outputs in (2, 1)]
    weights = sum((inputs + 1) * outputs for layers in sizes for inputs, outputs in zip(layers, layers[1:]))
    link_ms = round(4 * 8 * weights / mbit / 1e3)
    hashes = set()
    for degree in degrees:
        with tempfile.TemporaryDirectory() as folder, Network(mbit) as network:
            settings = ["--num-slots", str(workers), "--seed", "3", "--hidden", widths, "--rollout-fragment-length", "1"]
            settings += ["--policy-config", '{"num_epochs": 1}', "--max-env-steps", str(12 * workers)]
            run = Run(network, folder, *settings)
            places: list[list[str]] = [[]]
            while degree and len(places) * degree < workers:
                places = [run.relay(network.host(), place)[1] for place in places for _ in range(degree)]
            for number in range(workers):
                run.worker(network.host(), [*run.trust, *places[number % len(places)]])
            summary = json.loads(run.program.output(20 * PATIENCE))
            times = [line["wall_s"] for line in run.metrics()]
            steps = sorted(after - before for before, after in zip(times, times[1:]))
            hashes.add(summary["weights_hash"])
            median = round(1e3 * steps[len(steps) // 2])
            figures = {"relays_per_relay": degree, "median_ms": median, "link_ms": link_ms, "ratio": round(median / link_ms, 2)}
            print(json.dumps({**figures, "weights_hash": summary["weights_hash"]}), flush=True)
    assert len(hashes) == 1, f"relays change the run: {hashes}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("test", nargs="?", choices=["chaos", "throughput", "fan-out"], default="chaos")
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--mbit", type=int, default=100, help="rate of links, for fan-out")
    parser.add_argument("--rates", type=int, nargs="+", default=[100, 10, 1], help="rates of links in Mbit/s, for throughput")
    parser.add_argument("--widths", default="1120,1120")
    parser.add_argument("--degrees", type=int, nargs="+", default=[0, 2])
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("network namespaces need root")
    if arguments.test == "chaos":
        chaos()
    elif arguments.test == "throughput":
        throughput(arguments.workers, arguments.rates)
    else:
        fan_out(arguments.workers, arguments.mbit, arguments.widths, arguments.degrees)


if __name__ == "__main__":
    main()
