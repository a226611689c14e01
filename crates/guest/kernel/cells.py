# Forms of cells that are not the plain one.

loop = None


def muted(source, node):
    # A semicolon after the last expression; nothing but brackets and comments can be there too.
    lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")[node.end_lineno - 1 :]
    lines[0] = lines[0].encode()[node.end_col_offset :].decode()
    return any(";" in line.split("#")[0] for line in lines)


def wait(codes):
    # A cell with await. One loop for the life of the kernel, so that tasks and clients outlive their cell.
    global loop
    import asyncio

    if loop is None or loop.is_closed():
        loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)

    async def steps():
        for code in codes:
            result = eval(code, MAIN)
            if code.co_flags & 0x80:
                result = await result
        return result

    task = loop.create_task(steps())
    try:
        return loop.run_until_complete(task)
    except BaseException as error:
        if task.done():
            raise
        task.cancel()
        try:
            loop.run_until_complete(task)
        except BaseException as end:
            # Where the cell waited says more than where the loop did.
            error.__traceback__ = end.__traceback__
        raise error


def ask(prompt):
    if sys.stdin is not streams[0]:
        return real_input(prompt)
    raise EOFError(
        "input() is not available here: there is no terminal; pass data in a file or variable"
    )
