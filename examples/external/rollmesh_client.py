"""A client of a rollmesh hub: runs episodes of its own environment with the policy that the hub is training.

One file that needs only Python 3.9's standard library: the Python inside a simulator or a game has no pip. The other
half of the file is therefore a WebSocket client with the same part of RFC 6455 as a hub: binary messages of one frame,
pings, no extensions; over TLS with ``wss://``.

    with Client("ws://127.0.0.1:7878", token) as client:
        episode = client.start_episode()
        observation, _ = env.reset()
        done = False
        while not done:
            action = episode.get_action(observation)
            observation, reward, terminated, truncated, _ = env.step(action)
            episode.log_returns(reward)
            done = terminated or truncated
        episode.end_episode(observation, truncated=truncated)

``client.get_actions({episode: observation, …})`` asks for several episodes in one round trip. With ``reconnect`` a client
connects again when the connection breaks; its open episodes are lost then.

With several agents observations, actions and rewards are dicts by agent, as in RLlib's ExternalMultiAgentEnv. The bytes
are described in PROTOCOL.md.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import math
import os
import queue
import random
import select
import socket
import ssl
import struct
import threading
import time
from typing import Any, Dict, List, Optional, Tuple, Union
from urllib.parse import urlsplit

__all__ = ["Client", "Episode", "EpisodeError", "HubError"]

AgentId = Union[int, str]

WELCOME, REFUSED, GOODBYE = 0x02, 0x03, 0x04
SPACES, START_EPISODE, GET_ACTION, LOG_ACTION, LOG_RETURNS = 0x40, 0x41, 0x42, 0x43, 0x44
END_EPISODE, ABANDON_EPISODE, ACTIONS, EPISODE_REPLY = 0x45, 0x46, 0x47, 0x48
FORMATS = {"float32": "f", "float64": "d", "int32": "i", "int64": "q", "uint8": "B", "bool": "?"}
CODES = ["done", "not_open", "lost", "already_open", "bad_rows", "bad_observation", "bad_action", "out_of_turn", "too_many"]
CODES += ["stopped", "timed_out"]
LOST = CODES.index("lost")
# Seconds between two attempts to connect again, at first and at most.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0


class HubError(Exception):
    """The hub refused the client, said goodbye, or the connection broke. The client cannot be used any more."""


class BrokenError(HubError):
    """The connection broke, or the hub ended it. A client that reconnects connects again instead."""


class EpisodeError(Exception):
    """The hub did not do what an episode asked for. The connection continues, and so does the episode if it is open.

    ``code`` is one of ``CODES``, for programs. After ``lost`` (the sampler restarted, or the client has connected
    again) and ``timed_out`` (the client sent nothing about the episode for too long) start another one; after
    ``stopped`` no sampler remains. The others are mistakes of the caller."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = CODES[code] if code < len(CODES) else str(code)


class Client:
    """A connection to a hub. For one thread; its episodes may take turns in any order.

    ``agents`` are the names or numbers of the agents, ``spaces`` their spaces by agent, ``max_episodes`` is the
    maximum number of open episodes, those of all clients together.
    """

    def __init__(
        self,
        url: str,
        token: str,
        name: str = "python",
        timeout: Optional[float] = None,
        *,
        reconnect: float = 0.0,
        ca: Optional[str] = None,
        fingerprint: Optional[str] = None,
    ) -> None:
        """Connects. ``timeout`` is the maximum time for any answer in seconds; without it there is no limit.

        If the connection breaks later, the client tries for ``reconnect`` seconds to connect again. A hub at ``wss://`` is
        trusted if the system's certificates, those of the file ``ca``, or the ``fingerprint`` that the hub prints say so.

        Raises HubError; ValueError for an invalid token."""
        secret = bytes.fromhex(token)
        if len(secret) != 32:
            raise ValueError("a token has 64 hexadecimal digits")
        self._address = (url, timeout, ca, fingerprint)
        hello = _varint(1) + _varint(1) + b"\x04" + secret + _varint(0) + bytes(32)
        self._hello = hello + b"".join(_bytes(text.encode()) for text in ("python", name, "cpu"))
        self._patience, self._connections = reconnect, 0
        self._numbers = itertools.count()
        self._failures: Dict[int, Optional[EpisodeError]] = {}
        self._connect()

    def _connect(self) -> None:
        self._socket = _Socket(*self._address)
        self._connections += 1
        self._failures.clear()
        try:
            self._send(0x01, self._hello)
            kind, body = self._receive()
            if kind == REFUSED:
                raise HubError("the hub refused: " + body.skip(1).bytes().decode())
            if kind == WELCOME:
                kind, body = self._receive()
            if kind != SPACES:
                raise HubError(f"the hub answered with a message of kind {kind:#x}")
        except BaseException:
            self.close()
            raise
        self.max_episodes: int = body.varint()
        listed = json.loads(body.bytes())
        self.agents: List[AgentId] = [entry["agent"] for entry in listed]
        self.spaces: Dict[AgentId, Dict[str, Any]] = {entry["agent"]: entry for entry in listed}
        self._layouts = [
            {of: struct.Struct("<%d%s" % (_elements(entry[of]), FORMATS[entry[of + "_type"]])) for of in ("observation", "action")}
            for entry in listed
        ]
        self._places = {agent: place for place, agent in enumerate(self.agents)}

    def start_episode(self, training: bool = True) -> Episode:
        """Begins an episode. Waits while the maximum number is open. Without ``training`` it is not learned from."""
        while True:
            episode = Episode(self, next(self._numbers) & 0xFFFFFFFF)
            connections = self._connections
            try:
                episode._ask(START_EPISODE, bytes([training]))
                return episode
            except EpisodeError:
                if connections == self._connections:
                    raise

    def get_actions(self, observations: Dict[Episode, Any]) -> Dict[Episode, Any]:
        """Returns the actions of several episodes in one round trip, by episode; for a failed one its error instead."""
        bodies = {episode: _bytes(self._rows("observation", rows)) for episode, rows in observations.items()}
        return self._ask(GET_ACTION, bodies, self._actions)

    def close(self) -> None:
        """Ends the connection. Episodes that are open are abandoned."""
        self._socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The following methods are for the episodes of this client.

    def _ask(self, kind: int, bodies: Dict[Episode, bytes], take: Any) -> Dict[Episode, Any]:
        """Sends requests of episodes, and returns their answers, or errors, by episode."""
        answers: Dict[Episode, Any] = {}
        lost = "the client has connected again since: start another episode"
        for episode in bodies:
            if episode._connection != self._connections:
                answers[episode] = EpisodeError(LOST, lost)
        asked = {episode._number: episode for episode in bodies if episode not in answers}
        try:
            for number, episode in asked.items():
                self._send(kind, _varint(number) + bodies[episode])
            while asked:
                number, answer = self._answer(asked, kind)
                answers[asked.pop(number)] = take(answer) if isinstance(answer, bytes) else answer
        except BrokenError as error:
            self._reconnect(error)
            answers.update((episode, EpisodeError(LOST, lost)) for episode in asked.values())
        return answers

    def _reconnect(self, broken: BrokenError) -> None:
        """Connects again, with exponential backoff; raises the error of the last attempt."""
        end, pause = time.monotonic() + self._patience, FIRST_PAUSE
        while time.monotonic() < end:
            self._socket.close()
            try:
                return self._connect()
            except BrokenError as error:
                broken = error
            # Jitter, so that clients of a hub that restarts do not all connect at the same time.
            time.sleep(min(pause * random.uniform(0.5, 1.0), max(end - time.monotonic(), 0)))
            pause = min(2 * pause, LONGEST_PAUSE)
        raise broken

    def _send(self, kind: int, body: bytes) -> None:
        try:
            self._socket.send(b"RM\x01\x00" + bytes([kind, 0, 0, 0]) + body)
        except OSError:
            while True:  # the hub may have sent the reason before it disconnected
                self._receive()

    def _receive(self) -> Tuple[int, _Body]:
        frame = self._socket.receive()
        if frame[:3] != b"RM\x01" or len(frame) < 8:
            raise HubError("this is no rollmesh hub")
        if frame[4] == GOODBYE:
            raise BrokenError("the hub said goodbye: " + _Body(frame[8:]).bytes().decode())
        return frame[4], _Body(frame[8:])

    def _answer(self, asked: Dict[int, Episode], about: int) -> Tuple[int, Union[bytes, EpisodeError]]:
        """Waits for the answer to a question that one of these episodes has asked."""
        while True:
            kind, body = self._receive()
            number, error, answer = body.varint(), None, b""
            if kind == ACTIONS:
                kind, answer = GET_ACTION, body.bytes()
            else:
                (kind, code), reason = body.take(2), body.bytes().decode()
                error = EpisodeError(code, reason) if code else None
            failure = self._failures.get(number) or error
            if number not in asked or kind != about:  # there is no other request: it is an error of returns
                self._failures[number] = failure
                continue
            self._failures.pop(number, None)
            return number, failure or answer

    def _rows(self, of: str, rows: Any) -> bytes:
        """Encodes rows by agent as bytes; of the only agent, if there is one."""
        if self._is_multi_agent() and not isinstance(rows, dict):
            raise ValueError(f"there are several agents: {of}s are a dict by agent, not {rows!r}")
        named = rows if self._is_multi_agent() else {0: rows}
        return b"".join(self._number(agent) + self._pack(of, agent, row) for agent, row in named.items())

    def _number(self, agent: AgentId) -> bytes:
        if agent not in self._places:
            raise ValueError(f"there is no agent {agent!r}; there are {', '.join(map(repr, self.agents))}")
        return struct.pack("<H", self._places[agent])

    def _is_multi_agent(self) -> bool:
        return self.agents != [0]

    def _pack(self, of: str, agent: AgentId, row: Any) -> bytes:
        layout, wanted = self._layouts[self._places[agent]][of], _elements(self.spaces[agent][of])
        if hasattr(row, "ravel"):  # a NumPy array, or a NumPy number
            row = row.ravel().tolist()
        values = row if isinstance(row, (list, tuple)) else [row]
        if len(values) != wanted:
            raise ValueError(f"the {of} of agent {agent!r} has {wanted} elements, not {len(values)}")
        try:
            return layout.pack(*values)
        except struct.error as error:
            raise ValueError(f"the {of} of agent {agent!r} is no row of {self.spaces[agent][of + '_type']}: {error}") from error

    def _actions(self, rows: bytes) -> Any:
        actions, at = {}, 0
        while at < len(rows):
            (place,) = struct.unpack_from("<H", rows, at)
            layout, entry = self._layouts[place]["action"], self.spaces[self.agents[place]]
            action: Any = layout.unpack_from(rows, at + 2)
            actions[self.agents[place]] = action[0] if entry["action"]["type"] == "discrete" else list(action)
            at += 2 + layout.size
        return actions if self._is_multi_agent() else actions[0]


class Episode:
    """An episode in progress. Errors of the hub are raised as EpisodeError; those of log_returns, by the next call."""

    def __init__(self, client: Client, number: int) -> None:
        self._client, self._number, self._connection = client, number, client._connections

    def get_action(self, observation: Any) -> Any:
        """Returns the action of the policy in training: a number for a discrete space, else a list of numbers.

        With several agents: observations by agent in, actions by agent out."""
        return self._client._actions(self._ask(GET_ACTION, _bytes(self._client._rows("observation", observation))))

    def log_action(self, observation: Any, action: Any) -> None:
        """Logs an action that the caller chose without the policy."""
        rows = self._client._rows
        self._ask(LOG_ACTION, _bytes(rows("observation", observation)) + _bytes(rows("action", action)))

    def log_returns(self, reward: Any, info: Any = None, terminated: Any = False, truncated: Any = False) -> None:
        """Logs the reward of the latest action. Rewards add up until the next observation.

        With several agents all four are dicts by agent; ``terminated`` and ``truncated`` mark agents that are done."""
        returns, infos = [], []
        of = lambda values, agent: values.get(agent) if isinstance(values, dict) else values
        is_multi_agent = self._client._is_multi_agent()
        rewards = reward if is_multi_agent else {0: reward}
        flagged = [agent for flags in (terminated, truncated) if isinstance(flags, dict) for agent in flags]
        for agent in dict.fromkeys([*rewards, *flagged]):
            flags = bool(of(terminated, agent)) | bool(of(truncated, agent)) << 1
            returns.append(self._client._number(agent) + struct.pack("<dB", rewards.get(agent, 0.0), flags))
        for agent, agent_info in (info or {}).items() if is_multi_agent else [] if info is None else [(0, info)]:
            text = json.dumps(agent_info, separators=(",", ":"), ensure_ascii=False).encode()
            infos.append(self._client._number(agent) + struct.pack("<I", len(text)) + text)
        if self._connection == self._client._connections:  # else the next request reports that the episode is lost
            try:
                self._client._send(LOG_RETURNS, _varint(self._number) + _bytes(b"".join(returns)) + _bytes(b"".join(infos)))
            except BrokenError as error:
                self._client._reconnect(error)

    def end_episode(self, observation: Any, truncated: bool = False) -> None:
        """Ends the episode with the last observations: by a terminal state, or for another reason."""
        self._ask(END_EPISODE, bytes([truncated]) + _bytes(self._client._rows("observation", observation)))

    def abandon(self) -> None:
        """Abandons the episode. The hub discards the steps of it that it has not sampled."""
        self._ask(ABANDON_EPISODE, b"")

    def _ask(self, kind: int, body: bytes) -> bytes:
        answer = self._client._ask(kind, {self: body}, bytes)[self]
        if isinstance(answer, EpisodeError):
            raise answer
        return answer


def _elements(space: Dict[str, Any]) -> int:
    """Returns the number of elements in a point of a space."""
    kind = space["type"]
    if kind == "box":
        return math.prod(space["shape"])
    if kind in ("tuple", "dict"):
        parts = space["spaces"]
        return sum(_elements(part) for part in (parts.values() if kind == "dict" else parts))
    return {"discrete": 1, "multi_discrete": len(space.get("nvec", [])), "multi_binary": space.get("n", 0)}[kind]


def _varint(number: int) -> bytes:
    """Encodes an integer: seven bits per byte, least significant first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out + bytes([number]))


def _bytes(data: bytes) -> bytes:
    """Encodes a byte string, or a text in UTF-8: its length first."""
    return _varint(len(data)) + data


class _Body:
    """A message's body, read from front to back."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, count: int) -> bytes:
        self._at += count
        return self._data[self._at - count : self._at]

    def skip(self, count: int) -> _Body:
        self.take(count)
        return self

    def varint(self) -> int:
        number = shift = 0
        while True:
            (byte,) = self.take(1)
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def bytes(self) -> bytes:
        return self.take(self.varint())


class _Socket:
    """The part of a WebSocket that a hub needs. A thread reads, and so answers pings while the environment computes."""

    def __init__(self, url: str, timeout: Optional[float], ca: Optional[str], fingerprint: Optional[str]) -> None:
        parts = urlsplit(url if "://" in url else "ws://" + url)
        if parts.scheme not in ("ws", "wss") or not parts.hostname:
            raise HubError(f"'{url}' is no address like ws://127.0.0.1:7878")
        is_secure = parts.scheme == "wss"
        try:
            self._socket = socket.create_connection((parts.hostname, parts.port or (443 if is_secure else 80)), timeout)
        except OSError as error:
            raise BrokenError(f"cannot reach the hub at {url}: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._timeout, self._sending, self._using = timeout, threading.Lock(), threading.Lock()
        self._buffer = b""
        self._received: queue.SimpleQueue[Union[bytes, HubError]] = queue.SimpleQueue()
        try:
            if is_secure:
                self._secure(parts.hostname, ca, fingerprint)
            # The socket does not block from here on, since a connection over TLS serves one call at a time.
            self._socket.setblocking(False)
            self._shake_hands(url, parts.netloc)
        except ssl.SSLCertVerificationError as error:
            self._socket.close()
            raise HubError(f"the hub at {url} is not trusted: {error.verify_message}; give its fingerprint or ca") from error
        except OSError as error:
            self._socket.close()
            raise BrokenError(f"the connection broke: {error}") from error
        except HubError:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._listen, name="rollmesh client", daemon=True)
        self._thread.start()

    def _secure(self, host: str, ca: Optional[str], fingerprint: Optional[str]) -> None:
        context = ssl.create_default_context(cafile=ca)
        if fingerprint:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._socket = context.wrap_socket(self._socket, server_hostname=host)
        if fingerprint:
            found = hashlib.sha256(self._socket.getpeercert(binary_form=True) or b"").hexdigest()
            if found != fingerprint.replace(":", "").lower():
                raise HubError(f"the hub has a certificate with the fingerprint {found}, not {fingerprint}")

    def send(self, data: bytes, opcode: int = 2) -> None:
        size, mask = len(data), os.urandom(4)
        if size < 126:
            head = struct.pack(">BB", 0x80 | opcode, 0x80 | size)
        elif size < 1 << 16:
            head = struct.pack(">BBH", 0x80 | opcode, 0x80 | 126, size)
        else:
            head = struct.pack(">BBQ", 0x80 | opcode, 0x80 | 127, size)
        stream = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
        masked = (int.from_bytes(data, "big") ^ stream).to_bytes(size, "big")
        with self._sending:
            self._write(head + mask + masked)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                with self._using:
                    rest = rest[self._socket.send(rest) :]
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                select.select([], [self._socket], [], 1.0)

    def receive(self) -> bytes:
        try:
            received = self._received.get(timeout=self._timeout)
        except queue.Empty:
            raise BrokenError(f"no answer within {self._timeout} s") from None
        if isinstance(received, HubError):
            self._received.put(received)  # for the next caller
            raise received
        return received

    def close(self) -> None:
        try:
            self.send(struct.pack(">H", 1000), opcode=8)
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the connection broke before
        self._thread.join()
        self._socket.close()

    def _shake_hands(self, url: str, host: str) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        lines = ["GET /ws HTTP/1.1", "Host: " + host, "Upgrade: websocket", "Connection: Upgrade"]
        lines += ["Sec-WebSocket-Key: " + key, "Sec-WebSocket-Version: 13", "", ""]
        self._write("\r\n".join(lines).encode())
        while b"\r\n\r\n" not in self._buffer:
            self._fill(self._timeout)
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        status = head.decode("latin-1").splitlines()[0]
        if " 101 " not in status + " ":
            raise HubError(f"the hub at {url} answered '{status}'")

    def _listen(self) -> None:
        try:
            while True:
                first, size = self._read(2)
                if size > 125:
                    size = int.from_bytes(self._read(2 if size == 126 else 8), "big")
                data, opcode = self._read(size), first & 0x0F
                if opcode == 2:
                    self._received.put(data)
                elif opcode == 8:
                    raise BrokenError("the hub closed the connection")
                elif opcode == 9:
                    self.send(data, opcode=10)
        except (OSError, ValueError) as error:
            self._received.put(BrokenError(f"the connection broke: {error}"))
        except HubError as error:
            self._received.put(error)

    def _read(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._fill(None)
        data, self._buffer = self._buffer[:count], self._buffer[count:]
        return data

    def _fill(self, timeout: Optional[float]) -> None:
        """Reads the bytes that have arrived, and waits for some if there are none."""
        while True:
            try:
                with self._using:
                    read = self._socket.recv(1 << 16)
                break
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if not select.select([self._socket], [], [], timeout)[0]:
                    raise TimeoutError(f"no answer within {timeout} s") from None
        if not read:
            raise BrokenError("the hub closed the connection")
        self._buffer += read
