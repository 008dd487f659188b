"""The command line, the program that child processes run, and the Python environments that may run."""

import os
import shutil
import signal
import sys
import sysconfig
from collections.abc import Iterable

from . import _native, _ray_command

NAME = "rollmesh.exe" if os.name == "nt" else "rollmesh"


def main() -> None:
    """Runs the command line; ends the process with its exit code. Only commands for a Ray cluster run in Python."""
    if _ray_command.is_for_ray(sys.argv[1:]):
        sys.exit(_ray_command.main(sys.argv[1:]))
    # The program handles Ctrl-C itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.path.basename(sys.argv[0]) == NAME:
        _native.set_program(os.path.abspath(sys.argv[0]))
    else:
        use_installed()
    sys.exit(_native.main(sys.argv))


def find() -> str | None:
    """Returns the installed program, from the scripts of this interpreter, those of its user, or the path."""
    schemes = [None, sysconfig.get_preferred_scheme("user")]
    folders = [sysconfig.get_path("scripts", scheme) if scheme else sysconfig.get_path("scripts") for scheme in schemes]
    places = (os.path.join(folder, NAME) for folder in folders if folder)
    return next((place for place in places if os.path.isfile(place)), None) or shutil.which(NAME)


def allow_python(
    patterns: str | Iterable[str],
    python: str | os.PathLike[str] = sys.executable,
    processes: int | None = None,
) -> None:
    """Allows Python environments on this machine, in addition to earlier ones, and sets the interpreter of all.

    `processes` is the number of processes that step a worker's environments; a call without it keeps it, at first 1.

    Patterns are names with `*` for any characters but a colon: `"gym:*"`, `"py:my_package.*"`. A constructor allows the
    environment of its argument `env`, and nothing that a mapping of settings or a checkpoint names.
    """
    names = patterns if isinstance(patterns, str) else ",".join(patterns)
    _native.allow_python(names, os.fspath(python), processes)


def prepare(env: object = None) -> None:
    """Lets child processes run the installed program, and the environment of a constructor's argument run."""
    use_installed()
    _native.allow_env(env if isinstance(env, str) else None, sys.executable or None)


def use_installed() -> None:
    """Lets child processes run the installed program."""
    if (program := find()) is not None:
        _native.set_program(program)
