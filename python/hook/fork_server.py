"""Makes of an interpreter that rankrun has started a fork server: it imports modules once, and ranks are forked from it.

The interpreter was started with the command of a rank, and has come to `site`. What it forks goes on from there, as an interpreter does that
has just been started: with its own main module, arguments and paths. `sitecustomize.py` runs this file where the environment has
`RANKRUN_FORK_SERVER`; the other side is `sys/src/processes/fork_server.rs`. Why it is made this way is in docs/adr/0041-prepared-interpreters.md.

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
# What a rank answers: it is ready, or it could not do this step, with the number that the agent knows it by.
READY, SESSION, STDIO, BIND_MEMORY, WDIR = 0, 3, 4, 7, 8
# Of prctl(2), set_mempolicy(2) and signal(7).
PR_SET_PDEATHSIG, PR_SET_PTRACER, SIGKILL = 1, 0x59616D61, 9
MPOL_PREFERRED, MPOL_BIND, MPOL_PREFERRED_MANY = 1, 2, 5
SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "ppc64le": 261, "riscv64": 237, "s390x": 269}


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
        server.run()
    except BaseException as error:
        # The program itself must never run here.
        sys.stderr.write("rankrun: fork server: %s: %s\n" % (type(error).__name__, error))
        os._exit(1)


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
        self.own = set(descriptors())
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
        path = sys.path[:]
        first = main_directory()
        if first is not None:
            # As the program has it when it imports.
            sys.path.insert(0, first)
        of_main = imports_of_main(first, is_deep=modules != "auto")
        wanted = modules.split(",") if modules != "auto" else list(of_main)
        self.seeds = Seeds()
        for name in wanted:
            self.import_one(name, of_main.get(name), must=modules != "auto")
        self.seeds.end()
        sys.path[:] = path
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        self.libc = libc()
        self.libc["fflush"](None)
        self.tag = tag_in_memory()
        import gc

        gc.collect()
        gc.freeze()

    def import_one(self, name, place, must):
        """Imports a module as the statement at its place does: a warning may be one about that."""
        file, line, package = place or ("<rankrun>", 1, CODE_NAME)
        self.say("i", name)
        try:
            exec(compile("\n" * (line - 1) + "import " + name, file, "exec"), {"__name__": package})
        except BaseException as error:
            if must:
                raise Unfit('cannot import "%s": %s: %s' % (name, type(error).__name__, first_line(error)))
            return
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
        opened = [target for number, target in descriptors().items() if number not in self.own]
        for target in opened:
            if target.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/habanalabs")):
                return 'holds a device ("%s"), which a fork cannot use' % target
            if target.startswith(("socket:", "pipe:", "anon_inode:")):
                return "holds an open connection (%s), which all ranks would share" % target.split("[")[-1].rstrip("]")
        for target in shared_memory():
            if target not in self.shared_before:
                return 'shares memory ("%s"), which all ranks would share' % target
        with open("/proc/self/task/%d/children" % os.getpid()) as children:
            if children.read():
                return "has started a process, which all ranks would share"
        if mpi_is_initialised():
            return "has called MPI_Init"
        return None

    def run(self):
        """Forks what the agent asks for. Returns in a rank."""
        room = self.api.CMSG_SPACE(5 * 4)
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
                self.begin(between, request[:1], request[1], given)
                return
            for number in given:
                os.close(number)
            os.waitpid(between, 0)

    def begin(self, between, session, keep, given):
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
            enter_session(session, given[1:4])
            channel.sendall(os.getpid().to_bytes(4, sys.byteorder))
            order = receive(channel)
            self.take(order, keep, given)
        except Refused as refused:
            answer(channel, refused.step, refused.errno)
            os._exit(127)
        except BaseException:
            # The agent starts the rank from the beginning.
            os._exit(127)
        answer(channel, READY, 0)
        channel.close()

    def take(self, order, keep, given):
        wdir, tag, memory, spoken, environment = order[0], order[1], order[2:4], order[4:6], order[6:]
        before = [kind_of(number) for number in range(3)]
        try:
            for number, source in enumerate(given[1:4]):
                os.dup2(source, number)
            if keep:
                os.dup2(given[4], keep)
            else:
                os.close(CONNECTION)
            for source in given[1:]:
                os.close(source)
        except OSError as error:
            raise Refused(STDIO, error)
        if memory[0]:
            bind_memory(int(memory[0]), memory[1])
        if wdir:
            try:
                os.chdir(wdir)
            except OSError as error:
                raise Refused(WDIR, error)
        os.environ.clear()
        for entry in environment:
            name, _, value = entry.partition(b"=")
            if name:
                os.environb[name] = value
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
        for number, text in zip((1, 2), spoken):
            while text:
                text = text[os.write(number, text) :]


def main_directory():
    """What the interpreter will put at the beginning of `sys.path`; `None` if nothing."""
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return None
    program = (getattr(sys, "argv", None) or [""])[0]
    if program == "-m":
        return os.getcwd()
    if program in ("", "-", "-c"):
        return ""
    path = os.path.realpath(program)
    # A directory or an archive is run by what is in it.
    return path if os.path.isdir(path) else os.path.dirname(path)


def main_file(first):
    """The file of the main module, if there is one."""
    program = (getattr(sys, "argv", None) or [""])[0]
    if program in ("", "-", "-c"):
        return None
    if program != "-m":
        path = os.path.realpath(program)
        return os.path.join(path, "__main__.py") if os.path.isdir(path) else path
    arguments = getattr(sys, "orig_argv", [])
    for at, word in enumerate(arguments[1:], 1):
        if word.startswith("-") and not word.startswith("--") and "m" in word:
            name = word.split("m", 1)[1] or (arguments[at + 1] if at + 1 < len(arguments) else "")
            path = os.path.join(first or "", *name.split("."))
            for file in (path + ".py", os.path.join(path, "__main__.py")):
                if os.path.isfile(file):
                    return file
            return None
    return None


def imports_of_main(first, is_deep):
    """The installed modules that the program's files import when they are run and imported, each with its place: file, line, and the name of the
    module that imports it. Files in the program's own directory are read, and not run. If it is deep, all that the main file imports anywhere."""
    wanted, seen = {}, set()
    file = main_file(first)
    waiting = [(file, "__main__", "")] if file else []
    while waiting:
        file, module, package = waiting.pop(0)
        if file in seen or len(seen) > 1000:
            continue
        seen.add(file)
        try:
            with open(file, "rb") as source:
                # The flag is that of `ast.parse`.
                tree = compile(source.read(), file, "exec", 0x400, dont_inherit=True)
        except (OSError, SyntaxError, ValueError):
            continue
        for name, line in imported(tree.body, package, is_deep):
            own = None if is_deep else own_file(first, name)
            if own is None:
                if name.partition(".")[0] not in NEVER:
                    wanted.setdefault(name, (file, line, module))
            elif own:
                inner = name if own.endswith("__init__.py") else name.rpartition(".")[0]
                waiting.append((own, name, inner))
    return wanted


# Their import connects processes, or starts threads.
NEVER = ("mpi4py", "mpi4jax", "horovod", "chainermn", "sitecustomize", "usercustomize", "__main__", "__future__")


def imported(body, package, is_deep):
    """The names that these statements import, with their lines, without those within functions unless it is deep."""
    for statement in body:
        kind = type(statement).__name__
        if kind == "Import":
            for alias in statement.names:
                yield alias.name, statement.lineno
        elif kind == "ImportFrom":
            module = statement.module or ""
            if statement.level:
                parents = package.split(".")
                parents = parents[: len(parents) - statement.level + 1]
                module = ".".join([part for part in parents + [module] if part])
                if not module:
                    continue
                for alias in statement.names:
                    yield module + "." + alias.name, statement.lineno
            if module:
                yield module, statement.lineno
        elif kind == "If" and is_for_types(statement.test):
            for found in imported(statement.orelse, package, is_deep):
                yield found
        elif is_deep or kind in ("If", "Try", "TryStar", "With"):
            for part in ("body", "orelse", "finalbody"):
                for found in imported(getattr(statement, part, None) or [], package, is_deep):
                    yield found


def is_for_types(test):
    return "TYPE_CHECKING" in (getattr(test, "id", None), getattr(test, "attr", None))


def own_file(first, name):
    """The file of a module in the program's own directory: empty if it has none, `None` if it is not there."""
    if first is None:
        return None
    top = os.path.join(first or ".", name.partition(".")[0])
    if not os.path.isdir(top) and not os.path.isfile(top + ".py"):
        return None
    if "site-packages" in os.path.abspath(top).split(os.sep):
        return None
    path = os.path.join(first or ".", *name.split("."))
    for file in (path + ".py", os.path.join(path, "__init__.py")):
        if os.path.isfile(file):
            return file
    return ""


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
    """What is open, by its number."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink("/proc/self/fd/" + name)
        except OSError:
            # The list itself was one.
            pass
    return found


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
    try:
        if session == OWN_SESSION:
            os.setsid()
            return
        os.setpgid(0, 0)
        if session == FOREGROUND:
            import signal

            terminal = next((number for number in stdio if os.isatty(number)), None)
            if terminal is not None:
                # A process in the background would be stopped by it.
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
                os.tcsetpgrp(terminal, os.getpid())
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTTOU])
    except OSError as error:
        raise Refused(SESSION, error)


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


def answer(channel, step, errno):
    channel.sendall(step.to_bytes(4, sys.byteorder) + errno.to_bytes(4, sys.byteorder))


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


class Seeds(object):
    """The generators of random numbers that the modules have. Each rank is to have numbers of its own, as when it imports them itself, but where
    a module has seeded a generator, it has done so in all ranks.

    Whether it has done so is seen by the state that a generator had when its module was new. This is a finder of modules, and sees each of
    them before anybody else.
    """

    # A generator that has only been used comes to its state in so many steps, or it counts as seeded.
    STEPS = 2000

    def __init__(self):
        self.new, self.kept = {}, {}
        for name in GENERATORS:
            if name in sys.modules:
                self.note(name)
        sys.meta_path.insert(0, self)

    def note(self, name):
        try:
            self.new[name] = GENERATORS[name](sys.modules[name])
        except Exception:
            # Another module of the same name.
            pass

    def find_spec(self, name, path=None, target=None):
        if name not in GENERATORS:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self and hasattr(finder, "find_spec") else None
            if spec is not None:
                break
        else:
            return None
        loader, original = spec.loader, getattr(spec.loader, "exec_module", None)

        def exec_module(module):
            del loader.exec_module
            original(module)
            self.note(name)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            # A loader that is a type, or has no room.
            pass
        return spec

    def end(self):
        sys.meta_path.remove(self)
        for name, state in self.new.items():
            now = GENERATORS[name](sys.modules[name])
            if now != state and not is_used(name, state, now, self.STEPS):
                self.kept[name] = now

    def renew(self):
        for name in self.new:
            module = sys.modules[name]
            if name == "random":
                # It has a seed of its own since the fork.
                if name in self.kept:
                    module.setstate(self.kept[name])
            elif name not in self.kept:
                module.seed()


# What is asked for the state of the generator that all use. `torch.random` has no other use for its seed.
GENERATORS = {
    "random": lambda module: module.getstate(),
    "numpy.random": lambda module: freeze(module.get_state()),
    "torch.random": lambda module: module.initial_seed(),
}


def freeze(state):
    return tuple(tuple(part.tolist()) if hasattr(part, "tolist") else part for part in state)


def is_used(name, before, now, steps):
    """Whether numbers were taken from a generator, and no more. torch tells the seed, which stays then."""
    if name == "random":
        generator = sys.modules[name].Random()
        generator.setstate(before)
        state, step = generator.getstate, generator.random
    elif name == "numpy.random":
        generator = sys.modules[name].RandomState()
        generator.set_state(before)
        state, step = (lambda: freeze(generator.get_state())), generator.random_sample
    else:
        return False
    for _ in range(steps):
        step()
        if state() == now:
            return True
    return False


def first_line(error):
    return (str(error).splitlines() or [""])[0][:300]
