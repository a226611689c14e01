# How a cell ended: exceptions, exits, and streams that need care.


def report(error):
    """Tells an exception of a cell on stderr; the status of the call."""
    if isinstance(error, SystemExit):
        code = error.code
        if code is None:
            return 0
        if isinstance(code, int):
            return int(code) & 255
        to_stderr("%s\n" % (code,))
        return 1
    without_kernel(error)
    first = traceback_of_user(error.__traceback__)
    error.__traceback__ = first
    if sys.excepthook is not sys.__excepthook__:
        try:
            sys.excepthook(type(error), error, first)
            return 1
        except Exception:
            pass
    complain(error)
    return 1


def complain(error):
    import traceback

    lazy("remember")(modules["linecache"])
    to_stderr("".join(traceback.format_exception(type(error), error, error.__traceback__)))


def to_stderr(text):
    # Past whatever the user made of sys.stderr and of descriptor 2.
    flush()
    data = memoryview(text.encode("utf-8", "backslashreplace"))
    while data:
        data = data[write(kept[2], data) :]


def flush():
    # Streams that user code put in place of ours have buffers of their own.
    for stream in sys.stdout, sys.stderr:
        try:
            stream.flush()
        except Exception:
            pass


def traceback_of_user(first):
    # What comes before the first frame of a cell is the event loop.
    trace = first
    while trace is not None and trace.tb_frame.f_code.co_filename[:6] != "<cell ":
        trace = trace.tb_next
    return trace or first


def without_kernel(error):
    todo, seen = [error], set()
    while todo:
        error = todo.pop()
        if not isinstance(error, BaseException) or id(error) in seen:
            continue
        seen.add(id(error))
        trace, before = error.__traceback__, None
        while trace is not None:
            if trace.tb_frame.f_globals is not G:
                before = trace
            elif before is None:
                error.__traceback__ = trace.tb_next
            else:
                before.tb_next = trace.tb_next
            trace = trace.tb_next
        todo += (error.__cause__, error.__context__)
        if isinstance(getattr(error, "exceptions", None), tuple):
            todo += error.exceptions


def reopen():
    import io

    def stream(fd, mode):
        raw = io.FileIO(fd, mode, closefd=False)
        if mode == "r":
            return io.TextIOWrapper(io.BufferedReader(raw), encoding="utf-8")
        errors = "backslashreplace" if fd == 2 else "surrogateescape"
        return io.TextIOWrapper(raw, encoding="utf-8", errors=errors, write_through=True)

    sys.__stdin__, sys.__stdout__, sys.__stderr__ = stream(0, "r"), stream(1, "w"), stream(2, "w")
    return sys.__stdin__, sys.__stdout__, sys.__stderr__
