"""Answers the first request of the load's own kind, and refuses every later one with the status ARGUMENT and the same words.
True: no request of a load is answered, as with a tier or a quota that the key does not have."""

from mock import *

N = [0]


async def chat(req, out):
    N[0] += 1
    if N[0] > 5:
        return await out.whole(int(sys.argv[2]), {"error": {"message": f"no such tier (request r{N[0]})"}})
    n = asked(req)
    await out.head()
    await out.sse(delta(content="w "))
    await out.sse(delta("length"))
    await out.sse(usage(words(req), n))
    await out.sse("[DONE]")
    await out.end()


serve(chat)
