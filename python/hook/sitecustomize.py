"""Tells rankrun how a Python rank ends, without any change to the program.

rankrun puts the directory of this file at the front of PYTHONPATH, so that `site` imports it before the program starts.
It steps aside at once: its directory leaves `sys.path`, and the site's own `sitecustomize`, if there is one, takes its
place. What stays behind are two trip wires that nothing touches while the program runs well:

* CPython stores an exception that has reached the top in `sys.last_value` before it calls `sys.excepthook`, whoever has
  replaced that. Something lies there already, and is freed by the store.
* CPython reads `SystemExit.code` from C, with no Python frame on the stack, only when the process is about to end.

The last `atexit` handler then tells that only the finalizers of C libraries remain. The protocol is in
docs/worker-socket.md, the reasons are in docs/adr/0020-interpreter-hook.md. The file must parse in every Python since
2.7; it acts in CPython from 3.6 on.
"""

import os
import sys

# Most ranks never have anything to tell, and compiling how would cost each of them 3 ms.
TELLING = r'''
import os
import sys

MAX_LINE = 65536
MAX_MESSAGE = 8192
MAX_FRAMES = 300
# Of threads and finalizers that fail by the thousand, the first ones tell the story.
MAX_EVIDENCE = 16


class Telling(object):
    """What there is to tell of this process."""

    def __init__(self, speaker):
        self.speaker = speaker
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
        fields = describe(error, error.__traceback__)
        self.say("uncaught", fields + [("code", self.code), ("thread", "MainThread")])

    def exiting(self):
        """Python's own work is done. A code of 0 takes an `uncaught` back, whose hook has called `sys.exit(0)`."""
        if self.told:
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
        self.speaker.say(line(kind, [("time", self.speaker.monotonic())] + fields))


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


def describe(error, traceback):
    """The fields that say what an exception is and where it was raised."""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = "%s.%s" % (kind.__module__, name)
    try:
        message = str(error)
    except BaseException:
        message = "<exception str() failed>"
    fields = [("exception", name), ("message", message)]
    entries, entry = [], traceback
    while entry is not None:
        code = entry.tb_frame.f_code
        if code.co_filename != __file__:
            entries.append((code.co_filename, entry.tb_lineno, code.co_name))
        entry = entry.tb_next
    if isinstance(error, SyntaxError) and error.filename and isinstance(error.lineno, int):
        fields += [("file", str(error.filename)), ("line", error.lineno)]
    else:
        raised_at = entries[-1] if entries else getattr(error, "_rankrun_raised_at", ())
        fields += zip(("file", "line", "function"), raised_at)
    text = format_traceback(error, traceback, len(entries))
    if text is None:
        lines = ['  File "%s", line %d, in %s\n' % entry for entry in entries[-MAX_FRAMES:]]
        text = "".join(["Traceback (most recent call last):\n"] + lines + ["%s: %s\n" % (name, message)])
    return fields + [("traceback", text)]


def format_traceback(error, traceback, depth):
    """The traceback as Python prints it, with source, causes and notes, or `None` where that cannot be had."""
    if isinstance(error, KeyboardInterrupt):
        # CPython ends by SIGINT then, unless a string is evaluated before; importing `collections` does that.
        return None
    try:
        from traceback import StackSummary, TracebackException

        limit = -MAX_FRAMES if depth > MAX_FRAMES else None
        told = TracebackException(type(error), error, traceback, limit=limit)
        told.stack = StackSummary.from_list([frame for frame in told.stack if frame.filename != __file__])
        left_out = "[... %d outer frames left out by rankrun ...]\n" % (depth - MAX_FRAMES) if limit else ""
        return left_out + "".join(told.format())
    except BaseException:
        return None


def is_interactive():
    """Whether an exception at the top leads back to a prompt."""
    return sys.flags.interactive or sys.flags.inspect or hasattr(sys, "ps1") or os.environ.get("PYTHONINSPECT")
'''

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
                if self.telling is None:
                    namespace = {"__name__": __name__, "__file__": __file__}
                    exec(compile(TELLING, __file__, "exec"), namespace)
                    self.telling = namespace["Telling"](self)
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

    def excepthook(kind, error, traceback):
        if speaker.is_top(sys._getframe()):
            speaker.tell("uncaught", error)
        return original(kind, error, traceback)

    sys.excepthook = excepthook


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
    """Before 3.12 an exception raised in C is a pair of type and value, with no attribute that could be read."""
    get_frame = sys._getframe

    def exit(status=None):
        """Exit the interpreter by raising SystemExit(status)."""
        if isinstance(status, SystemExit):
            error = status
        else:
            error = SystemExit(*(status if isinstance(status, tuple) else () if status is None else (status,)))
        caller = get_frame(1)
        # The traceback is not on the exception yet when it reaches the top.
        error._rankrun_raised_at = (caller.f_code.co_filename, caller.f_lineno, caller.f_code.co_name)
        try:
            raise error
        finally:
            # The frame must not keep the exception alive, which keeps the frame.
            del error, caller

    sys.exit = exit


def watch_threads(speaker):
    """Tells of exceptions that end a thread, or that nobody can catch, and returns what undoes it."""
    import _thread

    thread_hook = _thread._excepthook
    unraisable_hook = sys.unraisablehook

    def excepthook(args):
        speaker.tell("thread", args)
        return thread_hook(args)

    def unraisablehook(args):
        speaker.tell("unraisable", args)
        return unraisable_hook(args)

    # `threading` takes its hook from here when it is imported.
    _thread._excepthook = excepthook
    threading = sys.modules.get("threading")
    if threading is not None and threading.excepthook is thread_hook:
        threading.excepthook = excepthook
    sys.unraisablehook = unraisablehook

    def undo():
        if sys.unraisablehook is unraisablehook:
            sys.unraisablehook = unraisable_hook

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
    if argument.startswith("from "):
        return "spawn_main" in argument or "forkserver import main" in argument or "_tracker import main" in argument
    return argument.endswith((".popen_loky_posix", "/_inductor/compile_worker/__main__.py"))


def install():
    path = os.environ.get("RANKRUN_SOCKET")
    if not path or sys.version_info < (3, 6) or sys.implementation.name != "cpython":
        return
    arguments = interpreter_arguments()
    # The type has been changed already where this is a second interpreter in the process.
    if not arguments or any(map(is_helper, arguments)) or isinstance(SystemExit.__dict__["code"], property):
        return
    import atexit

    speaker = Speaker(path)
    undo = [watch_exit(speaker)]
    if sys.version_info < (3, 12):
        raise_exits()
    if sys.version_info >= (3, 8):
        undo.append(watch_threads(speaker))
    sys.last_value = TripWire(speaker)

    def last():
        if speaker.telling is not None:
            speaker.tell("exiting")
        speaker.pid = None
        for step in undo:
            step()

    # What is registered first runs last.
    atexit.register(last)
    speaker.say()


def step_aside():
    """Lets the site's own `sitecustomize` take our name. `site` expects the ImportError that it is if there is none."""
    ours = os.path.dirname(__file__)
    sys.path[:] = [entry for entry in sys.path if entry != ours]
    sys.path_importer_cache.pop(ours, None)
    # Python 2 empties a module that nobody holds.
    globals()["__itself__"] = sys.modules.pop("sitecustomize", None)
    import sitecustomize


try:
    install()
except Exception:
    # Whatever is unforeseen here must not cost the program its start.
    pass
step_aside()
