"""`python -m rollmesh.ray up|scale|status|down`: the launcher on a Ray cluster as a command line. Tokens come from the environment
variable ROLLMESH_TOKEN: for `up` one of the role launcher, for `scale` an operator's."""

import argparse
import json
import os
import sys

import ray

from . import NotRunning, Refused, down, scale, status, up


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rollmesh.ray", description=__doc__)
    parser.add_argument("--address", default="auto", help="the cluster, as for ray.init [default: auto]")
    parser.add_argument("--name", default="ray", help="name of the launcher [default: ray]")
    commands = parser.add_subparsers(dest="command", required=True)
    begin = commands.add_parser("up", help="start a launcher")
    begin.add_argument("--hub", required=True, help="address of the hub, as nodes reach it")
    begin.add_argument("--capacity", type=int, default=64, help="most workers at the same time [default: 64]")
    begin.add_argument("--num-cpus", type=float, default=1, help="CPUs that each worker reserves [default: 1]")
    begin.add_argument("--program", help="the program rollmesh on the nodes [default: the installed one]")
    begin.add_argument(
        "--worker-option", action="append", default=[], help="a further argument of rollmesh worker, like --data-root=/data"
    )
    begin.add_argument("--tls-fingerprint", help="fingerprint of the hub's certificate, which the hub prints")
    commands.add_parser("scale", help="set the number of workers").add_argument("num_workers", type=int)
    commands.add_parser("status", help="print the launcher's state as JSON")
    commands.add_parser("down", help="end the launcher and its workers")
    return parser.parse_args()


def run(arguments: argparse.Namespace) -> None:
    ray.init(address=arguments.address, log_to_driver=False)
    name, token = arguments.name, os.environ.get("ROLLMESH_TOKEN", "")
    match arguments.command:
        case "up":
            up(
                arguments.hub,
                token,
                name=name,
                capacity=arguments.capacity,
                num_cpus=arguments.num_cpus,
                program=arguments.program,
                tls_fingerprint=arguments.tls_fingerprint,
                arguments=arguments.worker_option,
            )
        case "scale":
            scale(arguments.num_workers, token, name=name)
        case "status":
            print(json.dumps(status(name=name), indent=2))
        case "down":
            down(name=name)


try:
    run(parse())
except (NotRunning, Refused) as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(1)
