"""A proxy of TCP connections that injects faults: `proxy.py LISTEN TARGET`, both HOST:PORT. Each line of standard input is a command, which
is answered with a line:

    delay S      bytes arrive S seconds later, in both directions
    cut          all connections are reset; later ones are accepted
    partition    nothing arrives any more, and no end hears of it
    heal         what was held back arrives, and what follows
"""

import asyncio
import contextlib
import sys

CHUNK = 1 << 16
# Most chunks of a connection that are on their way in one direction.
DEPTH = 256


class Proxy:
    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.delay = 0.0
        self.is_whole = asyncio.Event()
        self.is_whole.set()
        self.writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        upstream = None
        try:
            await self.is_whole.wait()
            from_target, upstream = await asyncio.open_connection(*self.target)
            self.writers.add(upstream)
            ways = [self.forward(reader, upstream), self.forward(from_target, writer)]
            await asyncio.wait([asyncio.ensure_future(way) for way in ways], return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            # As if nothing listened here.
            pass
        finally:
            for end in (writer, upstream):
                if end is not None:
                    self.writers.discard(end)
                    end.transport.abort()

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forwards one direction until it ends."""
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(DEPTH)
        clock = asyncio.get_running_loop().time

        async def send() -> None:
            while True:
                arrived, chunk = await chunks.get()
                await asyncio.sleep(max(0.0, arrived + self.delay - clock()))
                await self.is_whole.wait()
                if not chunk:
                    return
                writer.write(chunk)
                await writer.drain()

        sending = asyncio.ensure_future(send())
        with contextlib.suppress(OSError):
            while chunk := await reader.read(CHUNK):
                await chunks.put((clock(), chunk))
            await chunks.put((clock(), b""))
            await sending
        sending.cancel()

    def handle(self, command: str) -> None:
        match command.split():
            case ["delay", seconds]:
                self.delay = float(seconds)
            case ["cut"]:
                for writer in self.writers:
                    writer.transport.abort()
            case ["partition"]:
                self.is_whole.clear()
            case ["heal"]:
                self.is_whole.set()
            case _:
                raise SystemExit(f"unknown command {command!r}")


async def main() -> None:
    (host, port), target = (word.rsplit(":", 1) for word in sys.argv[1:])
    proxy = Proxy(target[0], int(target[1]))
    async with await asyncio.start_server(proxy.serve, host, int(port)):
        print("listening", file=sys.stderr, flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            proxy.handle(line)
            print("done", line.strip(), file=sys.stderr, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
