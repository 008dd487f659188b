"""`rollmesh up|scale|status|renew|down --ray ADDRESS`: the launcher on a Ray cluster as a command line."""

import argparse
import json
import os
import sys
from collections.abc import Sequence

DESCRIPTION = """Workers of a hub on a Ray cluster. The token comes from the environment variable ROLLMESH_TOKEN or from --token-file: for `up`
and `renew` one of the role launcher, for `scale` an operator's."""


def is_for_ray(arguments: Sequence[str]) -> bool:
    """Returns whether this command line, without the program's name, is one for a Ray cluster."""
    return any(word == "--ray" or word.startswith("--ray=") for word in arguments) or arguments[:1] in (["up"], ["renew"], ["down"])


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses a command line. Ends the process with exit code 2 if it is not valid."""
    parser = argparse.ArgumentParser(prog="rollmesh", description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, about: str, *, takes_token: bool) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        added.add_argument("--ray", required=True, metavar="ADDRESS", help="the cluster, as for ray.init: auto, HOST:PORT or ray://HOST:PORT")
        added.add_argument("--name", default="ray", help="name of the launcher [default: ray]")
        if takes_token:
            added.add_argument("--token-file", metavar="FILE", help="file that holds the token, instead of ROLLMESH_TOKEN")
        return added

    up = command("up", "start a launcher on a Ray cluster", takes_token=True)
    up.add_argument("--hub", required=True, metavar="URL", help="address of the hub, as nodes reach it")
    up.add_argument("--capacity", type=int, default=64, metavar="N", help="most workers at the same time [default: 64]")
    up.add_argument("--num-cpus", type=float, default=1, metavar="N", help="CPUs that each worker reserves [default: 1]")
    up.add_argument("--num-gpus", type=float, default=0, metavar="N", help="GPUs that each worker reserves [default: 0]")
    up.add_argument(
        "--join-seconds",
        type=int,
        default=86400,
        metavar="S",
        help="seconds in which a worker has to join, while its actor waits for resources, too [default: 86400]",
    )
    up.add_argument("--program", help="the program rollmesh on the nodes [default: the installed one]")
    up.add_argument(
        "--worker-option",
        action="append",
        default=[],
        metavar="ARGUMENT",
        help="a further argument of rollmesh worker, like --worker-option=--data-root=/data; may be given several times",
    )
    up.add_argument("--tls-fingerprint", metavar="HEX", help="fingerprint of the hub's certificate, which the hub prints")
    up.add_argument("--tls-ca", metavar="FILE", help="authorities that sign the hub's certificate, a PEM file on each node")
    up.add_argument("--tls-client-cert", metavar="FILE", help="certificate for a hub that asks for one, a PEM file on each node")
    up.add_argument("--tls-client-key", metavar="FILE", help="key of that certificate, a PEM file on each node")
    scale = command("scale", "set the number of workers, and return immediately", takes_token=True)
    scale.add_argument("num_workers", type=int, metavar="N")
    command("status", "print the launcher's state as JSON", takes_token=False)
    command("renew", "give the launcher the token that replaces its own", takes_token=True)
    command("down", "end the launcher and its workers", takes_token=False)
    return parser.parse_args(arguments)


def token_of(parsed: argparse.Namespace) -> str:
    if parsed.token_file is None:
        return os.environ.get("ROLLMESH_TOKEN", "")
    if parsed.token_file == "-":
        return sys.stdin.readline().strip()
    with open(parsed.token_file) as file:
        return file.readline().strip()


def main(arguments: Sequence[str]) -> int:
    """Runs the command line. Returns its exit code."""
    parsed = parse(arguments)
    try:
        import ray

        from . import ray as cluster
    except ModuleNotFoundError as error:
        print(f"error: {error.name} is not installed: pip install 'rollmesh[ray]'", file=sys.stderr)
        return 2
    try:
        ray.init(address=parsed.ray, log_to_driver=False)
        match parsed.command:
            case "up":
                launcher = cluster.up(
                    parsed.hub,
                    token_of(parsed),
                    name=parsed.name,
                    capacity=parsed.capacity,
                    num_cpus=parsed.num_cpus,
                    num_gpus=parsed.num_gpus,
                    program=parsed.program,
                    tls_fingerprint=parsed.tls_fingerprint,
                    tls_ca=parsed.tls_ca,
                    tls_client_cert=parsed.tls_client_cert,
                    tls_client_key=parsed.tls_client_key,
                    arguments=parsed.worker_option,
                    join_seconds=parsed.join_seconds,
                )
                if launcher["found"]:
                    end = f"rollmesh down --ray {parsed.ray} --name {parsed.name}"
                    print(
                        f"the launcher {parsed.name!r} runs already, with the token and options that it was started with: {end} ends it",
                        file=sys.stderr,
                    )
            case "scale":
                cluster.scale(parsed.num_workers, token_of(parsed), name=parsed.name)
            case "status":
                print(json.dumps(cluster.status(name=parsed.name), indent=2))
            case "renew":
                cluster.renew(token_of(parsed), name=parsed.name)
            case "down":
                cluster.down(name=parsed.name)
    except (cluster.NotRunning, cluster.Refused, OSError, ValueError, ray.exceptions.RayError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
