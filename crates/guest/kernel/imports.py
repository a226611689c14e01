# What happens when certain modules get imported, and what C libraries print.


def find_fflush():
    try:
        import ctypes

        return ctypes.CDLL(None).fflush
    except Exception:
        return False


def line_buffer_c(ctypes):
    # Makes what C prints live; the default for a pipe is to keep it until 4 KiB are full.
    try:
        libc = ctypes.CDLL(None)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, 1, 0)
    except Exception:
        pass


def look_for_c():
    # Libraries that print through C's stdio come with extension modules that are not Python's.
    global known_modules, fflush
    files = [getattr(m, "__dict__", {}).get("__file__") for m in list(modules.values())]
    foreign = [f for f in files if type(f) is str and f[-3:] == ".so" and "lib-dynload" not in f]
    if fflush is None and (foreign or "_ctypes" in modules):
        fflush = find_fflush()
    known_modules = len(modules)


def remember(linecache):
    # Lets tracebacks and inspect.getsource see the cells.
    for name in [n for n in sources if n not in linecache.cache]:
        linecache.cache[name] = entry(name)


def watch(name, path):
    """Finds the module as Python would, and does something to it right after its import."""
    WATCHED.discard(name)
    specs = (finder.find_spec(name, path) for finder in sys.meta_path if finder is not Imports)
    spec = next((spec for spec in specs if spec), None)
    execute = getattr(getattr(spec, "loader", None), "exec_module", None)

    def exec_module(module):
        execute(module)
        if name == "linecache":
            remember(module)
        elif name == "ctypes":
            line_buffer_c(module)
        elif name == "matplotlib.pyplot":
            lazy("patch_pyplot")(module)
        else:
            module.display = builtins.display

    if execute:
        try:
            spec.loader.exec_module = exec_module
        except AttributeError:
            pass
    return spec


def adopt(folder):
    # The tools of the host have changed: the next import sees the new ones, here and in children.
    try:
        modules.pop("_platform_tools", None)
        sys.path_importer_cache.pop(folder, None)
        if folder not in sys.path:
            sys.path.append(folder)
        environ = modules["os"].environ
        paths = environ.get("PYTHONPATH")
        if not paths or folder not in paths.split(":"):
            environ["PYTHONPATH"] = paths + ":" + folder if paths else folder
    except Exception:  # user code can make of all of these what it likes
        pass
