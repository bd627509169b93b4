"""Makes of an interpreter that rankrun has started a fork server: it imports modules once, and ranks are forked from it.

The interpreter was started with the command of a rank, and has come to `site`. What it forks goes on from there, as an interpreter does that
has just been started: with its own main module, arguments and paths. `sitecustomize.py` runs this file where the environment has
`RANKRUN_FORK_SERVER`, after `fork_imports.py` and `fork_seeds.py` in the same namespace; the other side is
`sys/src/processes/fork_server.rs`. Why it is made this way is in docs/adr/0041-prepared-interpreters.md.

No module is imported here but those that an interpreter has anyway, and `_socket` and `_ctypes`.
"""

import os
import sys

CODE_NAME = __name__
# The descriptor of the connection to the agent, and the one under which it is kept: a rank may have something else at the first.
CONNECTION, KEPT = 3, 63
TAG = b"RANKRUN_WORKER="
# How a rank begins, as the agent says it.
OWN_SESSION, GROUP, FOREGROUND = b"s", b"g", b"f"
# What a rank answers: it is there, it is ready, or it could not do a step, with the error. The kernel adds who has sent it.
BEGUN, READY, REFUSED = 1, 2, 3
# The steps. A test in `sys/src/processes/fork_server.rs` compares all these numbers with those of the agent.
CGROUP, SESSION, STDIO, BIND, BIND_MEMORY, WDIR = 2, 3, 4, 6, 7, 8
# Of prctl(2), set_mempolicy(2) and signal(7).
PR_SET_PDEATHSIG, PR_SET_PTRACER, SIGKILL = 1, 0x59616D61, 9
MPOL_PREFERRED, MPOL_BIND, MPOL_PREFERRED_MANY = 1, 2, 5
SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "ppc64le": 261, "riscv64": 237, "s390x": 269}
# Of open(2), in what the kernel says of a descriptor.
O_ACCMODE, O_PATH = 3, 0o10000000
# Of stat(2).
S_IFMT, S_IFIFO, S_IFREG, S_IFSOCK = 0o170000, 0o010000, 0o100000, 0o140000
DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/habanalabs", "/dev/infiniband/")


class Unfit(Exception):
    """What has been imported cannot be shared by forks, and why."""


class Refused(Exception):
    """A rank cannot begin: the step, and its error."""

    def __init__(self, step, error):
        self.step = step
        self.errno = error.errno or 0


def serve(modules):
    """Imports these modules, and forks a rank whenever the agent asks for one. Returns in each rank, with its environment; in the server never."""
    try:
        server = Server()
        try:
            server.prepare(modules)
        except Unfit as unfit:
            server.refuse(str(unfit))
        server.ready()
        spoken = server.run()
    except BaseException as error:
        # The program itself must never run here.
        sys.stderr.write("rankrun: fork server: %s: %s\n" % (type(error).__name__, error))
        os._exit(1)
    # From here on the process is the rank, whose output is read, and what fails is its own.
    speak(spoken)


class Server(object):
    """The connection to the agent, and what a rank is to be told from."""

    def __init__(self):
        import _socket

        self.api = _socket
        os.dup2(CONNECTION, KEPT, inheritable=False)
        self.connection = _socket.socket(fileno=KEPT)
        # A rank may find something of the agent's there. Until then nobody else is to get the number.
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, CONNECTION)
        os.close(null)
        self.agent = os.getppid()
        self.pid = os.getpid()
        self.own = dict((number, identity(status)) for number, (_, status) in descriptors().items())
        self.shared_before = set(shared_memory())

    def say(self, kind, text=""):
        self.connection.send((kind + text).encode("utf-8", "replace")[:4096])

    def refuse(self, why):
        self.say("n", why)
        os._exit(0)

    def ready(self):
        self.say("y")

    def prepare(self, modules):
        """Imports what is wanted, and looks whether ranks can be forked then."""
        # These two are of `fork_imports.py`.
        first = main_directory()
        if first is not None:
            # As the program has it when it imports.
            sys.path.insert(0, first)
        of_main = imports_of_main(first, is_deep=modules != "auto")
        wanted = modules.split(",") if modules != "auto" else list(of_main)
        self.seeds = Seeds()
        environment = dict(os.environb)
        for name in wanted:
            self.import_one(name, of_main.get(name), must=modules != "auto")
        self.changes = differences(environment, dict(os.environb))
        self.seeds.end()
        # What imports have put there stays. The interpreter puts the first entry itself.
        if first is not None and first in sys.path:
            sys.path.remove(first)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        self.libc = libc()
        self.libc["fflush"](None)
        self.tag = tag_in_memory()
        import gc

        gc.collect()
        gc.freeze()
        why = self.unfit()
        if why:
            raise Unfit("after its imports it %s" % why)
        self.files = self.open_files()

    def import_one(self, name, place, must):
        """Imports a module as the statement at its place does: a warning may be one about that."""
        file, line, package = place or ("<rankrun>", 1, CODE_NAME)
        self.say("i", name)
        try:
            exec(compile("\n" * (line - 1) + "import " + name, file, "exec"), {"__name__": package})
        except BaseException as error:
            if must:
                raise Unfit('cannot import "%s": %s: %s' % (name, type(error).__name__, first_line(error)))
        why = self.unfit()
        if why:
            raise Unfit('after the import of "%s" it %s' % (name, why))

    def unfit(self):
        """What a fork would not carry, or ranks must not share."""
        if len(os.listdir("/proc/self/task")) > 1:
            # Libraries that know of forks end their threads before one, and start them again when they need them.
            fork_and_reap()
            names = [name for name in map(thread_name, os.listdir("/proc/self/task")) if name is not None]
            if names:
                return "has %d more thread%s (%s), which a fork does not carry" % (
                    len(names),
                    "" if len(names) == 1 else "s",
                    ", ".join(sorted(set(names))[:3]),
                )
        for number, target, status in self.opened():
            why = unshared(number, target, status)
            if why:
                return why
        for target in shared_memory():
            if target not in self.shared_before:
                return 'shares memory ("%s"), which all ranks would share' % target
        with open("/proc/self/task/%d/children" % os.getpid()) as children:
            if children.read():
                return "has started a process, which all ranks would share"
        if mpi_is_initialised():
            return "has called MPI_Init"
        if has_temporary_directory():
            return "has made a temporary directory, which the first rank that ends would remove"
        return None

    def opened(self):
        """What the imports have opened and hold: number, target and status of each descriptor."""
        for number, (target, status) in sorted(descriptors().items()):
            if self.own.get(number) != identity(status):
                yield number, target, status

    def open_files(self):
        """What each rank is to open again, or to copy from an earlier one with which it has the position in common."""
        files = {}
        for number, _, status in self.opened():
            if is_file(status):
                twins = [other for other in list(self.own) + list(files) if shares_position(number, other)]
                # What our caller has left open all ranks have in common, however they are started.
                state = FileState(number, twins[0] if twins else None)
                if not state.flags & O_PATH and (not twins or twins[0] in files):
                    files[number] = state
        return files

    def run(self):
        """Forks what the agent asks for. Returns in a rank, with what the imports have written."""
        room = self.api.CMSG_SPACE(6 * 4)
        while True:
            request, control, _, _ = self.connection.recvmsg(16, room)
            if not request:
                os._exit(0)
            given = [
                int.from_bytes(data[at : at + 4], sys.byteorder)
                for level, kind, data in control
                if (level, kind) == (self.api.SOL_SOCKET, self.api.SCM_RIGHTS)
                for at in range(0, len(data) // 4 * 4, 4)
            ]
            # A rank is a child of the agent: of the nearest subreaper, once the process in between has ended.
            between = quietly(os.fork)
            if between == 0:
                between = os.getpid()
                if quietly(os.fork):
                    os._exit(0)
                return self.begin(between, request, given)
            for number in given:
                os.close(number)
            os.waitpid(between, 0)

    def begin(self, between, request, given):
        """Makes a rank of this process: it gets what a process gets between its clone and its exec."""
        channel = self.api.socket(fileno=given[0])
        try:
            while os.getppid() == between:
                os.sched_yield()
            prctl = self.libc["prctl"]
            prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
            if os.getppid() != self.agent:
                os._exit(127)
            prctl(PR_SET_PTRACER, self.agent, 0, 0, 0)
            self.connection.close()
            answer(channel, BEGUN)
            spoken = self.take(receive(channel), request, given)
            answer(channel, READY)
        except Refused as refused:
            answer(channel, REFUSED, refused.step, refused.errno)
            os._exit(127)
        except BaseException:
            # The agent starts the rank from the beginning.
            os._exit(127)
        channel.close()
        return spoken

    def take(self, order, request, given):
        """Takes what is the rank's own. Returns what it is to write: nobody reads its output before it is ready."""
        wdir, tag, cpus, memory, spoken, environment = order[0], order[1], order[2], order[3:5], order[5:7], order[7:]
        session, keep, has_cgroup = request[:1], request[1], request[2]
        before = [kind_of(number) for number in range(3)]
        if has_cgroup:
            with Step(CGROUP):
                # The file is opened by the agent, for the cgroup of this rank.
                os.write(given[-1], b"0")
        with Step(SESSION):
            enter_session(session, given[1:4])
        with Step(STDIO):
            for number, source in enumerate(given[1:4]):
                os.dup2(source, number)
            if keep:
                os.dup2(given[4], keep)
            else:
                os.close(CONNECTION)
            for source in given[1:]:
                os.close(source)
        if cpus:
            with Step(BIND):
                os.sched_setaffinity(0, members(cpus))
        if memory[0]:
            bind_memory(int(memory[0]), memory[1])
        if wdir:
            with Step(WDIR):
                os.chdir(wdir)
        for number, state in sorted(self.files.items()):
            state.reopen(number)
        self.take_environment(environment)
        if self.tag:
            # What was made after it has it too, so that it is known for what it is.
            memory = os.open("/proc/self/mem", os.O_RDWR)
            os.pwrite(memory, tag, self.tag)
            os.close(memory)
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            if kind_of(number) != before[number]:
                renew_stream(number, name)
        self.seeds.renew()
        be_another()
        return spoken

    def take_environment(self, entries):
        """What the imports have changed is changed, unless the rank has another value than they have found."""
        own = dict((name, value) for name, _, value in (entry.partition(b"=") for entry in entries) if name)
        for name, found, left in self.changes:
            if own.get(name) == found:
                own[name] = left
        os.environ.clear()
        for name, value in own.items():
            if value is not None:
                os.environb[name] = value


class FileState(object):
    """A file that an import has opened for reading. Forks would share its position: each rank opens it again."""

    def __init__(self, number, twin=None):
        self.twin = twin
        fields = {}
        with open("/proc/self/fdinfo/%d" % number) as file:
            for line in file:
                name, _, value = line.partition(":")
                fields.setdefault(name, value.strip())
        self.flags = int(fields["flags"], 8)
        self.position = int(fields["pos"])
        self.is_locked = "lock" in fields

    def open(self, number):
        # What is deleted can be opened by this name, too.
        only_once = os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_NOFOLLOW
        return os.open("/proc/self/fd/%d" % number, self.flags & ~only_once)

    def reopen(self, number):
        is_inheritable = not self.flags & os.O_CLOEXEC
        if self.twin is not None:
            os.dup2(self.twin, number, inheritable=is_inheritable)
            return
        new = self.open(number)
        os.lseek(new, self.position, os.SEEK_SET)
        os.dup2(new, number, inheritable=is_inheritable)
        os.close(new)


class Step(object):
    """What fails here is the failure of this step."""

    def __init__(self, number):
        self.number = number

    def __enter__(self):
        pass

    def __exit__(self, kind, error, traceback):
        if isinstance(error, OSError):
            raise Refused(self.number, error)


def speak(spoken):
    """Writes what the imports have written, as they would have in a rank that imports by itself."""
    for number, text in zip((1, 2), map(memoryview, spoken)):
        try:
            while text:
                text = text[os.write(number, text) :]
        except OSError:
            # What the program writes next meets the same.
            pass


def unshared(number, target, status):
    """Why ranks must not share what an import holds open; `None` if they do not, or may."""
    kind = status.st_mode & S_IFMT
    if target.startswith(DEVICES):
        return 'holds a device ("%s"), which a fork cannot use' % target
    if kind in (S_IFSOCK, S_IFIFO) or target.startswith("anon_inode:"):
        return "holds an open connection (%s), which all ranks would share" % target.split("[")[-1].rstrip("]")
    if not is_file(status):
        return None
    state = FileState(number)
    if state.flags & O_PATH:
        return None
    if state.flags & O_ACCMODE != os.O_RDONLY:
        return 'has a file open for writing ("%s"), which all ranks would share' % target
    if state.is_locked:
        return 'holds a lock on a file ("%s"), which all ranks would share' % target
    if target.startswith("/proc/%d/" % os.getpid()):
        return 'has a file open that describes this process ("%s"), and not a rank' % target
    try:
        os.close(state.open(number))
    except OSError as error:
        return 'has a file open ("%s") that ranks cannot open again: %s' % (target, error.strerror)
    return None


def libc():
    """Calls functions of libc with small numbers."""
    import _ctypes

    # Not by `ctypes`: a program may be one that has not imported it.
    library = _ctypes.dlopen(None, 0)

    def function(name):
        address = _ctypes.dlsym(library, name)
        return lambda *arguments: _ctypes.call_function(address, arguments)

    return dict((name, function(name)) for name in ("prctl", "fflush"))


def tag_in_memory():
    """Where the tag of the rank is in what the kernel shows as the environment; 0 if that cannot be found."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[47]), int(fields[48])
        with open("/proc/self/mem", "rb", 0) as memory:
            memory.seek(start)
            block = memory.read(end - start)
        at = (b"\0" + block).find(b"\0" + TAG)
        return start + at + len(TAG) if at >= 0 else 0
    except (OSError, ValueError, IndexError):
        return 0


def descriptors():
    """What is open, by its number: what it leads to, and its status."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink("/proc/self/fd/" + name), os.fstat(int(name))
        except OSError:
            # The list itself was one.
            pass
    return found


def identity(status):
    """Tells what is open from what was open at the same number before."""
    return status.st_dev, status.st_ino, status.st_rdev, status.st_mode & S_IFMT


def is_file(status):
    return status.st_mode & S_IFMT == S_IFREG


def shares_position(number, other):
    """Whether a read of one descriptor moves the other one, too."""
    try:
        if identity(os.fstat(number)) != identity(os.fstat(other)):
            return False
        place = os.lseek(number, 0, os.SEEK_CUR)
        if os.lseek(other, 0, os.SEEK_CUR) != place:
            return False
        os.lseek(number, place + 1, os.SEEK_SET)
        moved = os.lseek(other, 0, os.SEEK_CUR) != place
        os.lseek(number, place, os.SEEK_SET)
        return moved
    except OSError:
        return False


def differences(before, after):
    """The variables that are not as before: name, value before and value after, `None` for none."""
    names = sorted(set(before) | set(after))
    return [(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]


def has_temporary_directory():
    """Whether there is one that is removed when an interpreter ends."""
    weakref = sys.modules.get("weakref")
    registry = getattr(getattr(weakref, "finalize", None), "_registry", {})
    return any(
        getattr(getattr(info, "func", None), "__qualname__", "").startswith("TemporaryDirectory.") for info in registry.values()
    )


def members(mask):
    """The numbers in a mask of the kernel: words of 64 bits, the lowest first."""
    words = [int.from_bytes(mask[at : at + 8], sys.byteorder) for at in range(0, len(mask), 8)]
    return [at * 64 + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1]


def shared_memory():
    """The names of the memory that would be one for all forks."""
    found = []
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            parts = line.split(None, 5)
            if len(parts) == 6 and parts[1][1:2] == b"w" and parts[1][3:4] == b"s":
                found.append(os.fsdecode(parts[5].strip()))
    return found


def mpi_is_initialised():
    with open("/proc/self/maps", "rb") as maps:
        paths = set(line.split(None, 5)[5].strip() for line in maps if b"/libmpi" in line)
    for path in paths:
        try:
            import ctypes

            flag = ctypes.c_int(0)
            ctypes.CDLL(os.fsdecode(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY).MPI_Initialized(ctypes.byref(flag))
            if flag.value:
                return True
        except (ImportError, OSError, AttributeError):
            pass
    return False


def thread_name(task):
    """The name of a thread that is not the main one, and lives."""
    if int(task) == os.getpid():
        return None
    try:
        with open("/proc/self/task/%s/comm" % task) as file:
            return file.read().strip()
    except OSError:
        return None


def fork_and_reap():
    child = quietly(os.fork)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def quietly(call):
    """Without the warnings of Python and JAX that a fork of threads may hang: there are none."""
    warnings = sys.modules.get("warnings")
    if warnings is None:
        return call()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call()


def enter_session(session, stdio):
    if session == OWN_SESSION:
        os.setsid()
        return
    os.setpgid(0, 0)
    if session == FOREGROUND:
        import _signal

        terminal = next((number for number in stdio if os.isatty(number)), None)
        if terminal is not None:
            # A process in the background would be stopped by it.
            _signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGTTOU])
            try:
                os.tcsetpgrp(terminal, os.getpid())
            except OSError:
                # It need not be the terminal of this session. A rank that is not forked goes on, too (`spawn.rs`).
                pass
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_signal.SIGTTOU])


def bind_memory(mode, nodes):
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    call = SET_MEMPOLICY.get(os.uname().machine)

    def is_set(mode):
        return call and library.syscall(call, mode, nodes, ctypes.c_ulong(len(nodes) * 8 + 1)) == 0

    # Where the kernel knows no preference for several nodes, it takes the first; without either it does what it does unasked.
    if not is_set(mode) and not (mode == MPOL_PREFERRED_MANY and is_set(MPOL_PREFERRED)) and mode == MPOL_BIND:
        raise Refused(BIND_MEMORY, OSError(ctypes.get_errno(), ""))


def receive(channel):
    """The fields of an order: each is its length and its bytes, and before all is their number."""

    def exactly(size):
        data = b""
        while len(data) < size:
            piece = channel.recv(size - len(data))
            if not piece:
                # The agent does not want this rank any more.
                os._exit(127)
            data += piece
        return data

    size = int.from_bytes(exactly(4), sys.byteorder)
    data, fields, at = exactly(size), [], 0
    while at < size:
        length = int.from_bytes(data[at : at + 4], sys.byteorder)
        fields.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return fields


def answer(channel, kind, step=0, errno=0):
    channel.sendall(b"".join(number.to_bytes(4, sys.byteorder) for number in (kind, step, errno)))


def kind_of(number):
    """What decides how Python makes a stream of a descriptor."""
    try:
        return os.fstat(number).st_mode & 0o170000, os.isatty(number)
    except OSError:
        return None


def renew_stream(number, name):
    """Makes a stream as `create_stdio` of CPython does."""
    import io

    old = getattr(sys, name)
    if old is None or old is not getattr(sys, "__%s__" % name):
        return
    is_written = number > 0
    is_buffered = not (is_written and isinstance(old.buffer, io.RawIOBase))
    buffer = io.open(number, "wb" if is_written else "rb", -1 if is_buffered else 0, closefd=False)
    raw = buffer.raw if is_buffered else buffer
    raw.name = "<%s>" % name
    write_through = old.write_through
    line_buffering = not write_through and (raw.isatty() or number == 2)
    stream = io.TextIOWrapper(buffer, old.encoding, old.errors, "\n", line_buffering, write_through)
    stream.mode = "w" if is_written else "r"
    setattr(sys, name, stream)
    setattr(sys, "__%s__" % name, stream)


def be_another():
    """Makes what modules took from the process when they were imported that of this process."""
    for package in ("multiprocessing", "multiprocess"):
        process = sys.modules.get(package + ".process")
        if process is not None:
            process.current_process()._config["authkey"] = process.AuthenticationString(os.urandom(32))
    threading = sys.modules.get("threading")
    if threading is not None:
        # Before 3.13 a fork keeps the number of the parent's thread.
        getattr(threading.main_thread(), "_set_native_id", bool)()


def first_line(error):
    return (str(error).splitlines() or [""])[0][:300]
