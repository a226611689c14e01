# The persistent interpreter, Python 3.8 and later. What every session runs is here; it imports
# nothing that Python did not import for itself, and is short, because compiling it is part of
# the start of a session. The other files are LAZY, each compiled at first need into these globals.
#
# The channel: u32 length (little endian), a type byte, a payload.
#   to here:   R call:u32 source   T folder-of-tools   X
#   from here: H version           (once, when ready)
#              S call:u32          (it runs: an interrupt from now on is for this call)
#              V kind:u8 then (u8 mime) (u32 bytes) pairs
#              D call:u32 status:i32 flags:u8 cpu_us:u64
import _signal, _thread, builtins, posix, sys
from posix import dup2, getpid, read, times, write
from sys import modules
from time import process_time_ns, sleep

G = globals()
MAIN = modules["__main__"].__dict__
PID = getpid()
AWAIT = 0x2000  # PyCF_ALLOW_TOP_LEVEL_AWAIT
SIGNALS = 2, 24  # SIGINT, SIGXCPU
WATCHED = {"linecache", "ctypes", "matplotlib.pyplot", "IPython.display"}

lock = _thread.allocate_lock()
armed = False  # between S and D
pending = future = number = 0
last = fflush = None
sources = {}


def on_signal(signum, frame):
    # Raises in user code and in `cell` only, so the rest of the kernel is never cut in two.
    global pending
    if armed:
        pending |= 1 if signum == 2 else 2
        if frame is None or frame.f_globals is not G or frame.f_code is cell.__code__:
            raise KeyboardInterrupt


def lazy(name):
    if name not in G:
        mark = b"\ndef %s(" % name.encode()
        exec(compile([s for s in LAZY if mark in s][0], "<kernel>", "exec", 0, True), G)
    return G[name]


def put(kind, data):
    frame = (len(data) + 1).to_bytes(4, "little") + kind + data
    while frame:
        frame = frame[write(FD, frame) :]


def restore():
    # Whatever the last cell did to its streams and signals, the next one starts clean.
    for fd in 0, 1, 2:
        dup2(kept[fd], fd)
    # First let go of wrappers, which close what they wrap when they go.
    sys.stdin, sys.stdout, sys.stderr = streams
    try:
        whole = True not in [stream.closed for stream in streams]
    except ValueError:  # detached
        whole = False
    if not whole:
        streams[:] = sys.stdin, sys.stdout, sys.stderr = lazy("reopen")()
    for signum in SIGNALS:
        if _signal.getsignal(signum) is not on_signal:
            _signal.signal(signum, on_signal)
    _signal.pthread_sigmask(1, SIGNALS)


def entry(name):
    # As linecache makes it: the last line ends too.
    text = sources[name]
    text += "" if text[-1:] == "\n" else "\n"
    return len(text), None, text.splitlines(True), name


def cell(source):
    global future
    if pending:
        raise KeyboardInterrupt
    name = "<cell %d>" % number
    sources[name] = source
    if len(sources) > 4096:
        del sources[next(iter(sources))]
    if "linecache" in modules:
        modules["linecache"].cache[name] = entry(name)
    tree = compile(source, name, "exec", 0x400 | AWAIT | future, True)
    body, value = tree.body, None
    if body and type(body[-1]).__name__ == "Expr":
        if ";" not in source or not lazy("muted")(source, body[-1]):
            value = body.pop().value
    codes = []
    if body:
        codes.append(compile(tree, name, "exec", AWAIT | future, True))
        future |= codes[0].co_flags & 0x1FE0000
    if value:
        tree = compile("0", name, "eval", 0x400)
        tree.body = value
        codes.append(compile(tree, name, "eval", AWAIT | future, True))
    result = None
    if codes and (codes[0].co_flags | codes[-1].co_flags) & 0x80:
        result = lazy("wait")(codes)
    else:
        for code in codes:
            result = eval(code, MAIN)
    if value and result is not None:
        lazy("show")(result)


def call(source):
    global armed, pending
    cpu, before = process_time_ns(), times()
    pending = status = flags = 0
    restore()
    armed = True
    put(b"S", number.to_bytes(4, "little"))
    try:
        try:
            cell(source)
        except BaseException as error:
            flags = pending if isinstance(error, KeyboardInterrupt) else 0
            status = lazy("report")(error)
        if sys.stdout is not streams[1] or sys.stderr is not streams[2]:
            lazy("flush")()
        if len(modules) != known_modules:
            lazy("look_for_c")()
        if fflush:
            fflush(None)
        if "matplotlib.pyplot" in modules:
            lazy("show_figures")()
    except BaseException as error:
        status = 1
        write(kept[2], b"%s while the call ended\n" % type(error).__name__.encode())
    if getpid() != PID:  # a fork that came back through the cell
        posix._exit(status & 255)
    after = times()
    cpu = (process_time_ns() - cpu) // 1000
    cpu += int((after[2] + after[3] - before[2] - before[3]) * 1e6)
    done = number | (status & 0xFFFFFFFF) << 32 | flags << 64 | cpu << 72
    with lock:
        armed = False
        put(b"D", done.to_bytes(17, "little"))


def serve():
    global number
    buffer = b""
    while True:
        end = 4 + int.from_bytes(buffer[:4], "little") if len(buffer) > 4 else 5
        if len(buffer) < end:
            chunk = read(FD, max(1 << 16, end - len(buffer)))
            if not chunk:
                return
            buffer += chunk
            continue
        kind, data, buffer = buffer[4], buffer[5:end], buffer[end:]
        if kind == 82:  # R
            number = int.from_bytes(data[:4], "little")
            call(data[4:].decode("utf-8", "replace"))
        elif kind == 84:  # T
            lazy("adopt")(data.decode())
        else:
            return


def forked():
    # A child has no part in the channel.
    global FD, lock
    fd, FD, lock = FD, -1, _thread.allocate_lock()
    posix.close(fd)


class Imports:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return lazy("watch")(name, path) if name in WATCHED else None


posix.set_inheritable(FD, False)
kept = [posix.dup(fd) for fd in (0, 1, 2)]
streams = [sys.stdin, sys.stdout, sys.stderr]
real_input = input
builtins.input = lambda prompt="": lazy("ask")(prompt)
builtins.display = lambda *values: lazy("show_each")(values)
posix.register_at_fork(after_in_child=forked)
sys.meta_path.insert(0, Imports)
sys.argv = [""]
for name in "sys", "posix", "f", "v", "n", "c", "s":
    del MAIN[name]
restore()
compile("", "<kernel>", "exec", 0x400)  # the first one makes the classes of syntax trees
# Who has just computed waits for all others that want the processor: here, not in the first call.
sleep(1e-6)
put(b"H", sys.version.split()[0].encode())
try:
    import faulthandler  # says on stderr where a crash was

    faulthandler.enable(2)
except Exception:
    pass
known_modules = len(modules)
try:
    serve()
except OSError:  # the guest is gone
    pass
