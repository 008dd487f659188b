

# --- The loop that serves requests ---


def described(error):
    """Formats an exception in one line of at most about 2 kB: its message, and its calls, innermost first."""
    text = f"{type(error).__name__}: {str(error)[:240]}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    places = [f"{os.path.basename(frame.filename)}:{frame.lineno} in {frame.name[:100]}" for frame in reversed(frames)]
    between, calls = ", called from ", len(places)
    while len(between.join(places)) > 1700:
        # The innermost and the outermost calls say most, for example of an endless recursion.
        del places[len(places) // 2]
    if len(places) < calls:
        places.insert((len(places) + 1) // 2, f"{calls - len(places)} other calls")
    return f"{text} (at {between.join(places)})" if places else text


class Host:
    def __init__(self):
        self.requests = os.fdopen(os.dup(0), "rb", 1 << 16)
        self.replies = os.fdopen(os.dup(1), "wb", 1 << 16)
        with contextlib.suppress(AttributeError, OSError):
            # Large observations then need fewer exchanges with the program.
            fcntl.fcntl(self.replies, fcntl.F_SETPIPE_SZ, 1 << 20)
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)
        self.groups = {}

    def say(self, number, kind, *parts):
        self.replies.write(HEAD.pack(number, sum(map(len, parts)), kind))
        for part in parts:
            self.replies.write(part)
        self.replies.flush()

    def fail(self, number, error):
        traceback.print_exception(error)
        is_known = isinstance(error, (Refused, Unavailable))
        said = {
            "lane": getattr(error, "lane", None),
            "reason": str(error) if is_known else described(error),
            "is_unavailable": isinstance(error, Unavailable),
        }
        self.say(number, FAILED, json.dumps(said).encode())

    def make(self, body):
        request = json.loads(body)
        made = self.groups[request["group"]] = self.made(request)
        return json.dumps(made.made).encode()

    def fingerprint(self, body):
        request = {**json.loads(body), "lanes": 1}
        key = key_of(request)
        if key not in FINGERPRINTS:
            with contextlib.closing(self.made(request)) as made, contextlib.closing(self.made(request)) as twin:
                FINGERPRINTS[key] = fingerprint_of(made, twin)
        return FINGERPRINTS[key].encode()

    def made(self, request):
        if request["memory_mb"] > 0:
            import resource

            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            limit = request["memory_mb"] << 20
            limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
        self.load()
        if request["env"].startswith("pettingzoo:"):
            return Game(request)
        return VectorLaneGroup(request) if is_native(request) else LaneGroup(request)

    @staticmethod
    def load():
        try:
            globals().update(np=importlib.import_module("numpy"), gymnasium=importlib.import_module("gymnasium"))
        except ImportError as error:
            reason = f"{described(error)}: install gymnasium for {sys.executable}, or name another interpreter with --python"
            raise Unavailable(reason) from error
        globals().update(spaces=gymnasium.spaces)

    def answer(self, kind, body):
        if kind == MAKE:
            return MADE, self.make(body)
        if kind == FINGERPRINT:
            return TURN, self.fingerprint(body)
        group, first = struct.unpack_from("<II", body)
        if kind == CLOSE:
            made = self.groups.pop(group, None)
            if made:
                made.close()
            return TURN, b""
        made = self.groups[group]
        if kind == RENDER:
            try:
                return PICTURE, made.render(first)
            except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
                raise Unavailable(f"a picture needs a package that {sys.executable} lacks: {described(error)}") from error
        if kind == SAVE:
            return TURN, made.save(first)
        if kind == RESTORE:
            return TURN, made.restore(first, memoryview(body)[8:])
        (number,) = struct.unpack_from("<I", body, 8)
        if kind == RESET:
            try:
                return TURN, made.reset(first, number)
            except BaseException as error:
                error.lane = first
                raise
        turn = made.step(first, number, memoryview(body)[12:])
        return TURN, *(turn if isinstance(turn, tuple) else (turn,))

    def serve(self):
        while len(head := self.requests.read(HEAD.size)) == HEAD.size:
            number, length, kind = HEAD.unpack(head)
            body = self.requests.read(length)
            if kind == STOP:
                return
            try:
                reply = self.answer(kind, body)
            except (Exception, SystemExit) as error:
                self.fail(number, error)
            else:
                self.say(number, *reply)


def guard():
    """Starts a process that kills this process group when the program that started it has ended.

    A thread could not do that while an environment holds the interpreter's lock, and it would not run in a stopped process.
    The guard ends with the group, which the program kills when this process has ended.
    """
    if os.getpgrp() != os.getpid() or os.fork():
        return
    # An open output would hide the end of the host.
    os.closerange(1, 64)
    ends = select.poll()
    # No events are requested: a hang-up is always reported.
    ends.register(0, 0)
    ends.poll()
    os.killpg(0, signal.SIGKILL)


guard()
faulthandler.enable(all_threads=False)
Host().serve()
# Skips the exit handlers of libraries, which may hang.
sys.stderr.flush()
os._exit(0)
