"""Workers on a Ray cluster: a launcher that starts each worker of a hub in an actor.

`up` starts the launcher, a detached actor that outlives this program. While it is connected, the hub starts all its local
workers through it: `rollmesh scale`, the dashboard's plus and minus, and the `num_workers` of runs. Each worker is a process that an
actor supervises; batches and weights go directly between worker and hub, never through Ray's object store. The hub owns the
restarts of workers, Ray those of the launcher. Actors that wait for resources make Ray's autoscaler add nodes.

    from rollmesh import ray as cluster

    cluster.up("wss://hub.example:7878", launcher_token, tls_fingerprint="…", address="auto")
    cluster.scale(10, operator_token)
    cluster.status()
    cluster.down()

`rollmesh up|scale|status|renew|down --ray ADDRESS` is the same as a command line. The nodes need this package (`runtime_env={"pip": ["rollmesh"]}`
installs it) and Ray.
"""

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from ._actors import NAMESPACE, Launcher, LauncherSettings, actor_name, program_here

__all__ = ["NotRunning", "Refused", "down", "program_here", "renew", "scale", "status", "up"]


class NotRunning(RuntimeError):
    """There is no launcher of this name on the cluster."""


class Refused(RuntimeError):
    """The launcher or a command could not execute a request; the message has the reason."""


def up(
    hub: str,
    token: str,
    *,
    address: str | None = None,
    name: str = "ray",
    capacity: int = 64,
    num_cpus: float = 1,
    num_gpus: float = 0,
    memory: int | None = None,
    resources: Mapping[str, float] | None = None,
    scheduling_strategy: Any = None,
    runtime_env: Mapping[str, Any] | None = None,
    program: str | None = None,
    tls_fingerprint: str | None = None,
    tls_ca: str | None = None,
    tls_client_cert: str | None = None,
    tls_client_key: str | None = None,
    arguments: Sequence[str] = (),
    join_seconds: int = 86400,
    timeout: float = 60,
) -> dict[str, Any]:
    """Starts a launcher on the cluster, or finds the one of this name, and waits until the hub has accepted it. A launcher
    that has ended, since the hub refused it, is replaced; one that runs keeps its settings and its token, which `renew` replaces.

    Args:
        hub: Address of the hub for the nodes.
        token: A token of the role launcher.
        address: The cluster, as for `ray.init`; not needed after `ray.init`.
        name: Name of the launcher, in the hub's tables, too.
        capacity: Maximum number of concurrent workers, including those that wait for resources.
        num_cpus, num_gpus, memory, resources: Resources of each worker's actor, unless the hub's specification of its
            workers (`--worker-cpus`, …) says otherwise.
        scheduling_strategy, runtime_env: Options of the workers' actors, as in Ray.
        program: The program `rollmesh` on the nodes; by default the installed one.
        tls_fingerprint, tls_ca: Verification of the hub by launcher and workers, as the flags of `rollmesh worker`.
        tls_client_cert, tls_client_key: Their own certificate, for a hub that asks for one: PEM files on each node.
        arguments: Further arguments of `rollmesh worker`.
        join_seconds: Seconds in which a worker has to join the hub, the time that its actor waits for resources included; at
            most 86400. Its token expires then, and the hub replaces it.
        timeout: Seconds to wait for the hub.

    Returns:
        The status, see `status`, and `found`: whether the launcher ran already.

    Raises:
        Refused: The hub does not accept the token, or cannot be reached.
    """
    if not ray.is_initialized():
        ray.init(address=address)
    flags = {
        "--tls-fingerprint": tls_fingerprint,
        "--tls-ca": tls_ca,
        "--tls-client-cert": tls_client_cert,
        "--tls-client-key": tls_client_key,
    }
    trust = [word for flag, value in flags.items() if value is not None for word in (flag, value)]
    settings = LauncherSettings(
        hub=hub,
        name=name,
        capacity=capacity,
        reserved={
            "num_cpus": num_cpus,
            "num_gpus": num_gpus,
            "memory": memory,
            "resources": dict(resources or {}),
            "scheduling_strategy": scheduling_strategy,
            "runtime_env": dict(runtime_env) if runtime_env else None,
        },
        program=program,
        trust=trust,
        arguments=list(arguments),
        join_seconds=join_seconds,
    )
    options = {"runtime_env": dict(runtime_env)} if runtime_env else {}
    found = False
    with contextlib.suppress(NotRunning):
        former = _find(name)
        found = not ray.get(former.has_ended.remote())
        if not found:
            ray.kill(former)
    actor = Launcher.options(
        name=actor_name(name), namespace=NAMESPACE, lifetime="detached", get_if_exists=True, **options
    ).remote(settings, token)
    error = ray.get(actor.serving.remote(timeout))
    if error is not None:
        ray.kill(actor)
        raise Refused(f"the launcher {name!r} does not serve {hub}: {error}")
    return ray.get(actor.status.remote()) | {"found": found}


def scale(num_workers: int, operator_token: str, *, name: str = "ray", program: str | None = None) -> None:
    """Sets the number of workers of the launcher's hub. Returns immediately: `status` shows them.

    Raises:
        NotRunning: There is no such launcher.
        Refused: The hub refuses, for example because the launcher has fewer places.
    """
    settings = ray.get(_find(name).settings.remote())
    command = [program or program_here(), "scale", str(num_workers), "--no-wait", "--hub", settings.hub, *settings.trust]
    environment = os.environ | {"ROLLMESH_TOKEN": operator_token}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Refused(done.stderr.strip().removeprefix("error: "))


def renew(token: str, *, name: str = "ray") -> None:
    """Gives the launcher the token that replaces its own after `rollmesh tokens rotate`. It presents that to the hub within two
    seconds, and keeps its workers. If Ray restarts the launcher's actor, that begins with the token of `up`.

    Raises:
        NotRunning: There is no such launcher.
        Refused: It has ended, since the hub does not accept its token.
    """
    if not ray.get(_find(name).renew.remote(token)):
        raise Refused(f"the launcher {name!r} has ended: rollmesh.ray.up starts another one with the new token")


def status(*, name: str = "ray") -> dict[str, Any]:
    """Returns the launcher's state: `hub`, `name`, `capacity`, and `workers`, a list of objects with `name`, `state` (`pending`
    while its actor waits for resources, then `running`), `node`, the host name of its machine, `actor_pid` and `since`, a Unix time.

    Raises:
        NotRunning: There is no such launcher.
    """
    return ray.get(_find(name).status.remote())


def down(*, name: str = "ray") -> None:
    """Ends the launcher and its workers, and waits for that.

    Raises:
        NotRunning: There is no such launcher.
    """
    actor = _find(name)
    ray.get(actor.stop.remote())
    ray.kill(actor)


def _find(name: str) -> Any:
    if not ray.is_initialized():
        ray.init(address="auto")
    try:
        return ray.get_actor(actor_name(name), namespace=NAMESPACE)
    except ValueError as error:
        raise NotRunning(f"there is no launcher {name!r} on this cluster: rollmesh.ray.up starts one") from error
