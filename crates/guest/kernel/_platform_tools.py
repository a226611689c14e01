"""Tools of the host. Call them with keyword arguments; what they return is JSON."""


# All in one function: whatever a tool is named, it hides nothing that is needed here.
def __install__(module):
    import json
    import os
    import socket

    base = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    limit = 1 << 20

    class ToolError(Exception):
        """A tool failed, or could not be called. `content` is what it said."""

        def __init__(self, message="", content=None):
            Exception.__init__(self, message)
            self.content = message if content is None else content

    def exchange(name, request):
        # One connection for each call, so that threads and forks can't mix them up.
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            channel.settimeout(None)
            channel.connect(os.path.join(base, "socket"))
            try:
                channel.sendall(len(request).to_bytes(4, "little") + request)
            except (BrokenPipeError, ConnectionResetError):
                pass  # refused before it was read: the reply says why
            parts = []
            while True:
                part = channel.recv(1 << 20)
                if not part:
                    return b"".join(parts)
                parts.append(part)
        except OSError as error:
            raise ToolError("cannot call %s: %s" % (name, error)) from None
        finally:
            # An interrupted call is over also where a fork has kept a copy of the socket.
            try:
                channel.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            channel.close()

    def call(name, arguments):
        try:
            text = json.dumps(
                {"name": name, "input": arguments},
                ensure_ascii=False,
                allow_nan=False,
                separators=(",", ":"),
            )
            request = text.encode("utf-8")
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError("the arguments of %s() must be JSON: %s" % (name, error)) from None
        if len(request) > limit:
            raise ToolError("the arguments of %s() are over %d bytes of JSON" % (name, limit))
        reply = exchange(name, request)
        if not reply:
            raise ToolError("cannot call %s: the connection was closed" % name)
        try:
            reply = json.loads(reply.decode("utf-8"))
            content, is_error = reply["content"], reply.get("is_error", False)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ToolError("cannot read the reply of %s" % name) from None
        if not is_error:
            return content
        message = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        raise ToolError(message, content)

    def function(name, doc):
        def tool(*args, **kwargs):
            if args:
                raise TypeError(
                    "%s() takes keyword arguments only: write %s(name=value)" % (name, name)
                )
            return call(name, kwargs)

        tool.__name__ = tool.__qualname__ = name
        tool.__module__ = "_platform_tools"
        tool.__doc__ = doc
        return tool

    with open(os.path.join(base, "tools.json"), encoding="utf-8") as file:
        tools = json.load(file)
    for tool in tools:
        module[tool["name"]] = function(tool["name"], tool["doc"])
    ToolError.__qualname__ = "ToolError"
    module["ToolError"] = ToolError
    module["__all__"] = ["ToolError"] + [tool["name"] for tool in tools]


__install__(globals())
del __install__
