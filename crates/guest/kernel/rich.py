# Representations beside plain text: pictures, tables, figures.

shown = []  # figures that this call has shown already
LIMIT = 16 << 20
PLAIN_LIMIT = 64 << 10
REPRS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
)


def show_rich(value):
    lazy("emit")(b"\0", bundle(value))


def show_each(values):
    for value in values:
        lazy("emit")(b"\1", bundle(value))


def bundle(value):
    """The representations of a value, as bytes by media type, within the limit of a frame."""
    kind = type(value)
    found = {"text/plain": plain(value)}
    if not isinstance(value, type):
        picture = attempt(image_of, value)
        if picture:
            found["image/png"] = picture
        else:
            many = attempt(method(kind, "_repr_mimebundle_"), value)
            many = many[0] if isinstance(many, tuple) and many else many
            for mime, data in many.items() if isinstance(many, dict) else ():
                add(found, mime, data)
            for name, mime in REPRS:
                if mime not in found:
                    add(found, mime, attempt(method(kind, name), value))
    while sum(map(len, found.values())) > LIMIT - 4096 or len(found) > 32:
        largest = max(found, key=lambda mime: len(found[mime]))
        size = len(found.pop(largest))
        note = "[%s of %d bytes left out: over %d]" % (largest, size, LIMIT)
        found["text/plain"] = found.get("text/plain", b"")[:PLAIN_LIMIT] + note.encode()
    return found


def method(kind, name):
    return getattr(kind, name, None)


def attempt(function, value):
    # A representation that fails is told on stderr, and the others still count.
    if not callable(function):
        return None
    try:
        return function(value)
    except Exception as error:
        lazy("without_kernel")(error)
        lazy("complain")(error)


def add(found, mime, data):
    if isinstance(data, tuple) and data:
        data = data[0]
    if data is None or not isinstance(mime, str) or not 0 < len(mime) < 128 or not mime.isascii():
        return
    if isinstance(data, str):
        if mime[:6] == "image/" and mime != "image/svg+xml":
            data = attempt(base64, data)
        else:
            data = data.encode("utf-8", "backslashreplace")
    elif not isinstance(data, (bytes, bytearray, memoryview)):
        data = attempt(json, data)
    if data is not None:
        found[mime] = bytes(data)


def base64(text):
    import binascii

    return binascii.a2b_base64(text)


def json(data):
    import json

    return json.dumps(data, default=str).encode()


def plain(value):
    try:
        text = repr(value)
    except Exception as error:
        lazy("without_kernel")(error)
        lazy("complain")(error)
        text = "<%s object, whose repr raised %s>" % (type(value).__name__, type(error).__name__)
    data = text.encode("utf-8", "backslashreplace")
    if len(data) > PLAIN_LIMIT:
        half = PLAIN_LIMIT // 2 - 32
        note = " ... [%d bytes left out] ... " % (len(data) - 2 * half)
        head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
        data = (head + note + tail).encode()
    return data


def image_of(value):
    """A picture or a figure as PNG."""
    if "PIL.Image" in modules and isinstance(value, modules["PIL.Image"].Image):
        import io

        out = io.BytesIO()
        if value.mode not in ("1", "L", "LA", "I", "P", "RGB", "RGBA", "I;16"):
            value = value.convert("RGB")
        value.save(out, "PNG")
        return out.getvalue()
    figure = getattr(modules.get("matplotlib.figure"), "Figure", None)
    if figure and isinstance(value, figure):
        shown.append(value)
        return render(value)


def render(figure):
    import io

    out = io.BytesIO()
    figure.savefig(out, format="png", bbox_inches="tight")
    return out.getvalue()


def show_figures():
    """Shows every open figure of pyplot and closes it."""
    helpers = modules.get("matplotlib._pylab_helpers")
    managers = helpers.Gcf.get_all_fig_managers() if hasattr(helpers, "Gcf") else ()
    for manager in managers:
        figure = manager.canvas.figure
        if figure not in shown and (figure.axes or figure.lines or figure.texts or figure.images):
            show_figure(figure)
    if managers:
        modules["matplotlib.pyplot"].close("all")
    shown.clear()


def show_figure(figure, warn=True):
    picture = attempt(render, figure)
    if picture:
        shown.append(figure)
        lazy("emit")(b"\1", {"text/plain": plain(figure), "image/png": picture})


def patch_pyplot(pyplot):
    def show(*args, **kwargs):
        """Shows the open figures now; the end of the call would show them too."""
        show_figures()

    pyplot.show = show
    pyplot.Figure.show = show_figure
