"""Tells rankrun how a Python rank ends, without any change to the program.

rankrun puts the directory of this file at the front of PYTHONPATH, so that `site` imports it before the program starts.
It steps aside at once: its directory leaves `sys.path`, and the site's own `sitecustomize`, if there is one, takes its
place. What stays behind are two trip wires that nothing touches while the program runs well:

* CPython stores an exception that has reached the top in `sys.last_value` before it calls `sys.excepthook`, whoever has
  replaced that. Something lies there already, and is freed by the store.
* CPython reads `SystemExit.code` from C, with no Python frame on the stack, only when the process is about to end.

The last `atexit` handler then tells that only the finalizers of C libraries remain. A program that imports JAX finds the
job there as a cluster environment. No frame of this file is in a
traceback, and its functions belong to no file that a debugger, a profiler or coverage would look for. The protocol is in
docs/worker-socket.md, the reasons are in docs/adr/0020-interpreter-hook.md. The file must parse in every Python since
2.7; it acts in CPython from 3.6 on.
"""

import os
import sys

# Tools take code for a file's by its name, and leave names in angle brackets alone.
CODE_NAME = "<rankrun>"

# Most ranks never have anything to tell, and compiling how would cost each of them 3 ms.
TELLING = r'''
import os
import sys

MAX_LINE = 65536
MAX_MESSAGE = 8192
MAX_FRAMES = 300
# rankrun keeps so much of a traceback, and cuts the middle out of a longer one, where a cause could be.
MAX_TRACEBACK = 14000
# Of threads and finalizers that fail by the thousand, the first ones tell the story.
MAX_EVIDENCE = 16


class Telling(object):
    """What there is to tell of this process."""

    def __init__(self, speaker):
        self.speaker = speaker
        # When what is told has happened: to describe it may take long.
        self.time = 0
        self.code = 0
        self.told = False
        self.evidence_left = MAX_EVIDENCE

    def uncaught(self, error):
        """An exception has reached the top and is about to be printed."""
        if not is_interactive():
            self.code = 130 if isinstance(error, KeyboardInterrupt) else 1
            self.tell(error)

    def leaving(self, error, code):
        """A `SystemExit` has reached the top. The exit status is made of its code as CPython does it."""
        if code is None:
            self.code = 0
        elif isinstance(code, int):
            self.code = code & 255 if -(2**63) <= code < 2**63 else 255
        else:
            self.code = 1
        if self.code:
            self.tell(error)

    def tell(self, error):
        self.told = True
        last = [("code", self.code), ("thread", "MainThread")]
        traceback = traceback_at_top(error)
        if not is_quickly_described(error):
            # The job may end meanwhile.
            place = zip(("file", "line", "function"), (entries_of(traceback) or [()])[-1])
            self.say("uncaught", [("exception", type_name(error))] + list(place) + last)
        self.say("uncaught", describe(error, traceback) + last)
        self.watch_jax()

    def watch_jax(self):
        """JAX's exit handler waits for all other ranks, as MPI_Finalize does. Tells when it begins to."""
        state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
        if getattr(state, "client", None) is None or "shutdown" in vars(state):
            return
        shutdown = state.shutdown

        def watched():
            self.speaker.tell("leaving_jax")
            return shutdown()

        state.shutdown = watched

    def leaving_jax(self):
        if self.code:
            self.say("leaving", [("code", self.code)])

    def exiting(self):
        """Python's own work is done. A code of 0 takes an `uncaught` back, whose hook has called `sys.exit(0)`."""
        self.say("exiting", [("code", self.code)])

    def thread(self, args):
        if args.exc_type is not SystemExit:
            name = getattr(args.thread, "name", None) or "?"
            self.evidence("thread", args.exc_value, args.exc_traceback, [("thread", name)])

    def unraisable(self, args):
        self.evidence("unraisable", args.exc_value, args.exc_traceback, [])

    def evidence(self, what, error, traceback, more):
        if self.evidence_left > 0 and error is not None:
            self.evidence_left -= 1
            self.say("evidence", [("what", what)] + describe(error, traceback) + more)

    def say(self, kind, fields):
        self.speaker.say(line(kind, [("time", self.time)] + fields))


def line(kind, fields):
    """One JSON object and its newline, of at most `MAX_LINE` bytes. The module `json` would take 3 ms to import."""
    parts = [b'"v":1', b'"type":"' + kind.encode() + b'"']
    size = 1024
    for name, value in fields:
        if isinstance(value, str):
            # The traceback comes last of the long ones, and takes what they have left.
            value = quote(value, MAX_LINE - size if name == "traceback" else MAX_MESSAGE)
            size += len(value)
        else:
            value = str(value).encode()
        parts.append(b'"' + name.encode() + b'":' + value)
    return b"{" + b",".join(parts) + b"}\n"


def quote(text, limit):
    """A JSON string of at most `limit` bytes, without the middle of what is longer.

    Half a surrogate pair, which stands for a byte that is not UTF-8, becomes a question mark.
    """
    escapes = dict((code, "\\u%04x" % code) for code in list(range(32)) + [34, 92])
    # No character takes less than a byte; what is far too long is not worth encoding.
    keep = min(len(text), limit)
    cut = ""
    while True:
        if keep < len(text):
            cut = "\n[... %d characters cut by rankrun ...]\n" % (len(text) - keep)
        part = text[: keep // 2] + cut + text[len(text) - (keep + 1) // 2 :]
        quoted = part.translate(escapes).encode("utf-8", "replace")
        if len(quoted) <= limit - 2:
            return b'"' + quoted + b'"'
        keep = min(keep - 1, keep * (limit - 64) // len(quoted))


def is_quickly_described(error):
    """Whether only Python's own code makes the text of an exception, of plain values, and its traceback is short."""
    text_of = type(error).__str__
    if getattr(getattr(text_of, "__objclass__", None), "__module__", None) != "builtins":
        return False
    plain = (str, bytes, int, float, bool, type(None))
    if not isinstance(error, SyntaxError) and not all(type(value) in plain for value in error.args):
        return False
    depth, entry = 0, error.__traceback__
    while entry is not None and depth <= MAX_FRAMES:
        depth, entry = depth + 1, entry.tb_next
    return depth <= MAX_FRAMES


def traceback_at_top(error):
    """The traceback of an exception that has reached the top.

    Before 3.12 it is not on a `SystemExit` then, but in the hands of C. It is the youngest one that begins at the bottom
    of the stack.
    """
    if sys.version_info >= (3, 12) or not isinstance(error, SystemExit):
        return error.__traceback__
    import gc
    from types import TracebackType

    for generation in [(0,), (1,), (2,)] if sys.version_info >= (3, 8) else [()]:
        for entry in reversed(gc.get_objects(*generation)):
            if type(entry) is TracebackType and entry.tb_frame.f_back is None:
                return entry
    return error.__traceback__


def type_name(error):
    """The type of an exception, as a traceback has it."""
    kind = type(error)
    if kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return "%s.%s" % (kind.__module__, kind.__qualname__)


def entries_of(traceback):
    """File, line and function of each frame, the innermost last."""
    entries, entry = [], traceback
    while entry is not None:
        code = entry.tb_frame.f_code
        entries.append((code.co_filename, entry.tb_lineno, code.co_name))
        entry = entry.tb_next
    return entries


def describe(error, traceback):
    """The fields that say what an exception is and where it was raised."""
    name = type_name(error)
    try:
        message = str(error)
    except BaseException:
        message = "<exception str() failed>"
    fields = [("exception", name), ("message", message)]
    entries = entries_of(traceback)
    if isinstance(error, SyntaxError) and error.filename and isinstance(error.lineno, int):
        fields += [("file", str(error.filename)), ("line", error.lineno)]
    elif entries:
        fields += zip(("file", "line", "function"), entries[-1])
    text = format_traceback(error, traceback, len(entries))
    if text is None:
        lines = ['  File "%s", line %d, in %s\n' % entry for entry in entries[-MAX_FRAMES:]]
        text = "".join(["Traceback (most recent call last):\n"] + lines + ["%s: %s\n" % (name, message)])
    return fields + [("traceback", text)]


def format_traceback(error, traceback, depth):
    """The traceback as Python prints it, with source, causes and notes, or `None` where that cannot be had.

    Of each exception the outer frames are left out where all of them would be too long, so that no cause is.
    """
    if isinstance(error, KeyboardInterrupt):
        # CPython ends by SIGINT then, unless a string is evaluated before; importing `collections` does that.
        return None
    try:
        from traceback import TracebackException

        for frames in (MAX_FRAMES, 100, 30, 10):
            text = "".join(TracebackException(type(error), error, traceback, limit=-frames).format())
            if len(text) <= MAX_TRACEBACK:
                break
        left_out = "[... %d outer frames left out by rankrun ...]\n" % (depth - frames) if depth > frames else ""
        return left_out + text
    except BaseException:
        return None


def is_interactive():
    """Whether an exception at the top leads back to a prompt."""
    return sys.flags.interactive or sys.flags.inspect or hasattr(sys, "ps1") or os.environ.get("PYTHONINSPECT")
'''

def hook():
    """All that stays behind. It runs in a namespace of its own, which names no file."""
    import os
    import sys

    # The agent always reads, unless it is stopped: then the program must not wait for it.
    SEND_TIMEOUT_US = 250000

    class Speaker(object):
        """Speaks for this process, as long as it is the one that the interpreter was started in."""

        def __init__(self, path):
            from _thread import get_ident
            from time import monotonic

            self.path = path
            self.rank = os.environ.get("RANKRUN_RANK", "")
            self.telling = None
            # They are called when the interpreter may already have emptied its modules.
            self.getpid = os.getpid
            self.get_ident = get_ident
            self.monotonic = monotonic
            self.pid = os.getpid()
            self.main_thread = get_ident()

        def is_top(self, frame):
            """Whether no Python code has called this frame, in the main thread of what is not a forked child."""
            return frame.f_back is None and self.get_ident() == self.main_thread and self.getpid() == self.pid

        def tell(self, what, *details):
            """Calls a method of `Telling`. Whatever goes wrong there is none of the program's business."""
            try:
                if self.getpid() == self.pid:
                    now = self.monotonic()
                    if self.telling is None:
                        namespace = {"__name__": __name__}
                        exec(compile(TELLING, __name__, "exec"), namespace)
                        self.telling = namespace["Telling"](self)
                    self.telling.time = now
                    getattr(self.telling, what)(*details)
            except Exception:
                pass

        def say(self, message=b""):
            """Sends on a connection of its own: a descriptor that stays open would be inherited, closed or reused."""
            import _socket as api

            program = (getattr(sys, "argv", None) or [""])[0]
            program = "".join(char if char.isprintable() and char not in '"\\' else "?" for char in program)
            tag = os.environ.get("RANKRUN_WORKER", "")
            tag = tag if tag.isalnum() else ""
            hello = '{"v":1,"type":"hello","pid":%d,"rank":%d,"kind":"python","version":"%d.%d.%d","argv0":"%s","tag":"%s"}\n'
            hello %= (self.pid, int(self.rank)) + sys.version_info[:3] + (program, tag)
            socket = api.socket(api.AF_UNIX, api.SOCK_STREAM)
            try:
                socket.settimeout(None)
                width = 8 if sys.maxsize > 2**32 else 4
                timeval = (0).to_bytes(width, sys.byteorder) + SEND_TIMEOUT_US.to_bytes(width, sys.byteorder)
                # It bounds connect too, which thus can wait for a place in the agent's backlog.
                socket.setsockopt(api.SOL_SOCKET, api.SO_SNDTIMEO, timeval)
                socket.connect(self.path)
                socket.sendall(hello.encode() + message, api.MSG_NOSIGNAL)
            finally:
                socket.close()

        def leave_mpi(self):
            """The program ends well, and `MPI_Finalize` is left, which waits for the other ranks."""
            try:
                if "mpi4py.MPI" in sys.modules and self.getpid() == self.pid:
                    self.say(b'{"v":1,"type":"exiting","time":%.6f,"code":0}\n' % self.monotonic())
            except Exception:
                pass

    class TripWire(object):
        """Lies in `sys.last_value` until something else is stored there."""

        def __init__(self, speaker):
            self.speaker = speaker

        def __del__(self):
            try:
                error = getattr(sys, "last_value", None)
                if self.speaker.getpid() != self.speaker.pid:
                    # A forked child, or the interpreter is being taken down.
                    return
                if isinstance(error, BaseException) and self.speaker.is_top(sys._getframe()):
                    self.speaker.tell("uncaught", error)
                else:
                    # A test runner, a debugger or a console keeps its own exceptions there from now on.
                    watch_hook(self.speaker)
            except Exception:
                pass

    def watch_hook(speaker):
        """The second best way to see an exception at the top: programs may replace this hook."""
        original = sys.excepthook
        if original is not sys.__excepthook__:
            # Whoever has set it may look whether it is still there.
            return

        def excepthook(kind, error, traceback):
            if speaker.is_top(sys._getframe()):
                speaker.tell("uncaught", error)
            return original(kind, error, traceback)

        sys.excepthook = sys.__excepthook__ = excepthook

    def watch_exit(speaker):
        """Makes `SystemExit.code` a property, and returns what undoes it.

        Built-in types refuse assignment, so that it goes into the type's own dictionary. An attribute that was looked up
        earlier may be remembered elsewhere: then the wire is never tripped, and nothing else changes.
        """
        import gc

        members = gc.get_referents(SystemExit.__dict__)[0]
        member = members["code"]
        get_frame = sys._getframe

        def code(self):
            value = member.__get__(self)
            if speaker.is_top(get_frame()):
                speaker.tell("leaving", self, value)
            return value

        members["code"] = property(code, member.__set__, member.__delete__, member.__doc__)

        def undo():
            members["code"] = member

        return undo

    def raise_exits():
        """Before 3.12 an exception raised in C is a pair of type and value, with no attribute that could be read.

        It becomes one exception at once where another is being handled, and where a generator is told to raise it. One
        that has ended raises without a frame of its own. No Python function may do that, since it would be in the
        traceback.
        """
        builtin = sys.exit

        def ended():
            yield

        generator = ended()
        generator.close()

        def call(self):
            return throw if sys.exc_info()[1] is None else builtin

        from _functools import partial

        throw = partial(generator.throw, SystemExit)
        # All that a program can ask of it but its type, it answers as the function in C does.
        answers = {
            "__call__": property(call),
            "__class__": type(builtin),
            # `getattr` gets the object as its default. A text that the type had, too, `pydoc` would not show as the object's.
            "__doc__": property(partial(getattr, builtin, "__doc__")),
            "__getattr__": partial(getattr, builtin),
            "__module__": "sys",
            "__reduce_ex__": builtin.__reduce_ex__,
            "__repr__": builtin.__repr__,
        }
        sys.exit = type("builtin_function_or_method", (), answers)()

    def watch_threads(speaker):
        """Tells of exceptions that end a thread, or that nobody can catch, and returns what undoes it."""
        import _thread

        thread_hook = _thread._excepthook
        unraisable_hook = sys.unraisablehook
        unraisable_hooks = [name for name in ("unraisablehook", "__unraisablehook__") if getattr(sys, name) is unraisable_hook]

        def excepthook(args):
            speaker.tell("thread", args)
            return thread_hook(args)

        def unraisablehook(args):
            speaker.tell("unraisable", args)
            return unraisable_hook(args)

        # `threading` takes its hook from here when it is imported.
        _thread._excepthook = excepthook
        threading = sys.modules.get("threading")
        for name in ("excepthook", "__excepthook__"):
            if getattr(threading, name, None) is thread_hook:
                setattr(threading, name, excepthook)
        # Whether a hook is Python's own is asked by comparing the two.
        for name in unraisable_hooks:
            setattr(sys, name, unraisablehook)

        def undo():
            for name in unraisable_hooks:
                if getattr(sys, name) is unraisablehook:
                    setattr(sys, name, unraisable_hook)

        return undo

    def interpreter_arguments():
        """The whole command line, or nothing where another program embeds Python and survives its exceptions."""
        if sys.version_info >= (3, 10):
            return sys.orig_argv
        if "python" not in os.path.basename(os.readlink("/proc/self/exe")):
            return []
        with open("/proc/self/cmdline", "rb") as file:
            return os.fsdecode(file.read()).split("\0")

    def is_helper(argument):
        """Whether this interpreter serves another, which sees its exceptions: multiprocessing, loky, torch's compiler."""
        if "from multiprocessing." in argument:
            return "spawn_main" in argument or "forkserver import main" in argument or "_tracker import main" in argument
        return argument.endswith((".popen_loky_posix", "/_inductor/compile_worker/__main__.py"))

    def watch_jax():
        """Makes rankrun's jobs known to JAX, if the program imports it (jax_cluster.py).

        The finder of one directory of JAX is made before JAX asks for it. Nothing else is looked up there, so that no other
        import is slower. The finder is an ordinary one again once it has seen that JAX's base class is imported.
        """
        if "RANKRUN_JAX_COORDINATOR" not in os.environ:
            return
        package = "/jax/_src/clusters"
        for directory in [entry.rstrip("/") + package for entry in sys.path if os.path.isdir(entry + package)]:
            if directory not in sys.path_importer_cache:
                sys.path_importer_cache[directory] = watching_finder(directory)

    def watching_finder(directory):
        # The last of these is for directories.
        finder = sys.path_hooks[-1](directory)
        original = finder.find_spec

        def find_spec(*arguments):
            cluster = sys.modules.get("jax._src.clusters.cluster")
            if cluster is not None and "find_spec" in finder.__dict__:
                del finder.find_spec
                try:
                    namespace = {"__name__": __name__}
                    with open(JAX_CLUSTER, "rb") as file:
                        exec(compile(file.read(), __name__, "exec"), namespace)
                    namespace["register"](cluster.ClusterEnv)
                except Exception:
                    # JAX's insides may change, and the job's directory may be gone.
                    pass
            return original(*arguments)

        finder.find_spec = find_spec
        return finder

    def install():
        arguments = interpreter_arguments()
        # The type has been changed already where this is a second interpreter in the process.
        if not arguments or any(map(is_helper, arguments)) or isinstance(SystemExit.__dict__["code"], property):
            return
        import atexit

        speaker = Speaker(os.environ["RANKRUN_SOCKET"])
        undo = [watch_exit(speaker)]
        if sys.version_info < (3, 12):
            raise_exits()
        if sys.version_info >= (3, 8):
            undo.append(watch_threads(speaker))
        sys.last_value = TripWire(speaker)

        def last():
            if speaker.telling is not None and speaker.telling.told:
                speaker.tell("exiting")
            else:
                speaker.leave_mpi()
            speaker.pid = None
            for step in undo:
                step()

        # What is registered first runs last.
        atexit.register(last)
        speaker.say()

    for step in STEPS:
        try:
            {"watch_jax": watch_jax, "install": install}[step]()
        except Exception:
            # Whatever is unforeseen here must not cost the program its start.
            pass


def unnamed(code):
    """The code, and all that is within it, without the name of this file."""
    if not hasattr(code, "replace"):
        # Before Python 3.8.
        return code
    constants = tuple(unnamed(item) if isinstance(item, type(code)) else item for item in code.co_consts)
    return code.replace(co_filename=CODE_NAME, co_consts=constants)


def leave_no_bytecode():
    """Under PYTHONPYCACHEPREFIX Python has kept our bytecode in the user's directory, below a name that no other job has."""
    prefix = getattr(sys, "pycache_prefix", None)
    if prefix:
        path = __spec__.cached
        os.unlink(path)
        path = os.path.dirname(path)
        while path.startswith(prefix + os.sep):
            # Up to the first one that others use.
            os.rmdir(path)
            path = os.path.dirname(path)


def leave_no_part_of_bytecode():
    """On a full disk Python may keep a part of our bytecode. It would fail at each later start, and would not be made again."""
    import marshal
    import time

    path = __spec__.cached
    # What is older has been read to its end by now, or was looked at by whoever has written it.
    if time.time() - os.stat(path).st_mtime < 10:
        with open(path, "rb") as file:
            bytecode = file.read()
        try:
            marshal.loads(bytecode[16 if sys.version_info >= (3, 7) else 12 :])
        except Exception:
            os.unlink(path)


def step_aside():
    """Lets the site's own `sitecustomize` take our name. `site` expects the ImportError that it is if there is none."""
    ours = os.path.dirname(__file__)
    sys.path[:] = [entry for entry in sys.path if entry != ours]
    sys.path_importer_cache.pop(ours, None)
    # Python 2 empties a module that nobody holds.
    globals()["__itself__"] = sys.modules.pop("sitecustomize", None)
    import sitecustomize


def act(*steps):
    if os.environ.get("RANKRUN_SOCKET") and sys.version_info >= (3, 6) and sys.implementation.name == "cpython":
        cluster = os.path.join(os.path.dirname(__file__), "jax_cluster.py")
        names = {"__name__": CODE_NAME, "TELLING": TELLING, "JAX_CLUSTER": cluster, "STEPS": steps}
        try:
            exec(unnamed(hook.__code__), names)
        except Exception:
            # As above.
            pass


def serve_forks(modules):
    """Returns in each rank that is forked, as an interpreter that has just been started."""
    if sys.version_info < (3, 7) or sys.implementation.name != "cpython":
        os._exit(3)
    act("watch_jax")
    names = {"__name__": CODE_NAME}
    for part in "fork_imports.py", "fork_seeds.py", "fork_server.py":
        with open(os.path.join(os.path.dirname(__file__), part), "rb") as file:
            exec(compile(file.read(), CODE_NAME, "exec"), names)
    names["serve"](modules)
    act("install")


def main():
    # What is started by what is imported serves nobody.
    modules = os.environ.pop("RANKRUN_FORK_SERVER", None)
    if modules is None:
        act("watch_jax", "install")
    for step in leave_no_bytecode, leave_no_part_of_bytecode:
        try:
            step()
        except Exception:
            pass
    try:
        step_aside()
    finally:
        if modules is not None:
            serve_forks(modules)


main()
