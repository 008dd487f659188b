"""Progress of a run, as one line that is rewritten."""

import sys
import time
from collections.abc import Mapping
from typing import Any, Self, TextIO

# Seconds between two lines.
INTERVAL = 0.2


def is_watched(stream: TextIO) -> bool:
    """Returns whether the stream is displayed: in a terminal or in a notebook."""
    return stream.isatty() or "ipykernel" in sys.modules


class Progress:
    """A line in a stream; terminals and notebooks both go back to its beginning at a carriage return."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream, self._begun, self._shown, self._width = stream, time.monotonic(), 0.0, 0
        self._steps_before: int | None = None
        self._line = ""

    def show(self, metrics: Mapping[str, Any]) -> None:
        """Shows the metrics of an iteration, unless others were shown just before."""
        now, steps = time.monotonic(), metrics["env_steps"]
        if self._steps_before is None:
            self._steps_before, self._begun = steps, now
        rate = (steps - self._steps_before) / max(now - self._begun, 1e-9)
        mean = metrics["episode_return_mean"]
        returns = "-" if mean is None else f"{mean:.1f}"
        self._line = f"{steps:,} env steps · return {returns} · iteration {metrics['iteration']} · {rate:,.0f} steps/s"
        if now - self._shown >= INTERVAL:
            self._shown = now
            self._write("\r" + self._line.ljust(self._width))
            self._width = len(self._line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._line:
            self._write("\r" + self._line.ljust(self._width) + "\n")

    def _write(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text)
            self._stream.flush()
