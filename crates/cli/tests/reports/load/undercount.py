"""Reports a quarter of the tokens that it streams in `usage`.
True: the requested tokens, 10 ms each; how many the server means is unknown."""

import asyncio
from mock import *


async def chat(req, out):
    n = asked(req)
    await out.head()
    for i in range(n):
        await out.sse(delta(content=f"w{i} "))
        await asyncio.sleep(0.01)
    await out.sse(delta("length"))
    await out.sse(usage(words(req), n // 4))
    await out.sse("[DONE]")
    await out.end()


serve(chat)
