"""The process that represents one worker on the launcher's machine: it forwards the command to the launcher's actor,
and ends with the worker. `rollmesh launch` closes its standard input to end it. Uses the standard library alone, and is
run as a file."""

import json
import os
import socket
import sys
import threading


def main() -> None:
    order = {
        "name": os.environ["ROLLMESH_WORKER_NAME"],
        "spec": json.loads(os.environ["ROLLMESH_WORKER_SPEC"]),
        "arguments": json.loads(os.environ["ROLLMESH_WORKER_ARGUMENTS"]),
        "environment": json.loads(os.environ["ROLLMESH_WORKER_ENVIRONMENT"]),
        "token": sys.stdin.readline().strip(),
    }
    with socket.socket(socket.AF_UNIX) as actor:
        actor.connect(sys.argv[1])
        actor.sendall(json.dumps(order).encode() + b"\n")

        def end() -> None:
            sys.stdin.read()
            # The actor sees the end of this direction, and answers all the same.
            actor.shutdown(socket.SHUT_WR)

        threading.Thread(target=end, daemon=True).start()
        answer = b""
        while part := actor.recv(4096):
            answer += part
    if not answer:
        print("the launcher's actor has ended", file=sys.stderr)
        os._exit(1)
    ended = json.loads(answer)
    print(ended["last"], file=sys.stderr, flush=True)
    # A signal is reported as shells do. The thread may still read standard input.
    os._exit(ended["code"] if ended["code"] >= 0 else 128 - ended["code"])


if __name__ == "__main__":
    main()
