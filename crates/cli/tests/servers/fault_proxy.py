"""An HTTP proxy with a fault, for servers that are none of ours. It knows requests and answers, so that a fault strikes a share of them.

usage: fault_proxy.py LISTEN_PORT TARGET_PORT SEED pass | delay SECONDS | limit N | refuse SHARE | errors SHARE | cut SHARE | buffer BYTES

delay: every request waits before it is passed on. limit: at most N requests are inside, the others wait here. refuse, errors: that share is
answered 429, 500. cut: that share of the answers ends in the middle. buffer: answers are held back until so many bytes are there.
"""
import asyncio
import random
import sys

PORT, TARGET, SEED, MODE = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
SIZE = float(sys.argv[5]) if len(sys.argv) > 5 else 0.0
CHANCE = random.Random(SEED)
inside = None


async def head_of(reader):
    """The head of a message, and the bytes of its body; None where the connection has ended."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None, 0
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return head, int(line.split(b":")[1])
    return head, 0


def refusal(status):
    body = b'{"error":{"message":"%s","type":"proxy"}}' % status
    head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


class Cut(Exception):
    """The answer ends here."""


async def pass_answer(reader, writer, cut, buffered):
    """Passes one answer on, as it comes or held back until so many bytes are there."""
    head, length = await head_of(reader)
    if head is None:
        raise Cut
    held, chunked, sent, tail = head, b"chunked" in head.lower(), 0, b""
    while chunked or length > 0:
        if not buffered or len(held) >= buffered:
            writer.write(held)
            held = b""
            await writer.drain()
        data = await reader.read(65536)
        if not data:
            break
        held += data
        sent += 1
        if cut and sent >= 4:
            writer.write(held)
            await writer.drain()
            raise Cut
        length -= len(data)
        # The last chunk may come in two reads.
        tail = (tail + data)[-5:]
        if chunked and tail == b"0\r\n\r\n":
            break
    writer.write(held)
    await writer.drain()


async def pass_one(head, body, up, writer, generates):
    reader, up_writer = up
    if MODE == "delay" and generates:
        await asyncio.sleep(SIZE)
    up_writer.write(head + body)
    await up_writer.drain()
    cut = MODE == "cut" and generates and CHANCE.random() < SIZE
    await pass_answer(reader, writer, cut, SIZE if MODE == "buffer" and generates else 0)


async def serve(reader, writer):
    up = None
    try:
        while True:
            head, length = await head_of(reader)
            if head is None:
                break
            body = await reader.readexactly(length)
            generates = head.startswith(b"POST ")
            if generates and MODE in ("refuse", "errors") and CHANCE.random() < SIZE:
                writer.write(refusal(b"429 Too Many Requests" if MODE == "refuse" else b"500 Internal Server Error"))
                await writer.drain()
                continue
            # A connection for each request, because servers close theirs when they like.
            up = await asyncio.open_connection("127.0.0.1", TARGET)
            if MODE == "limit" and generates:
                async with inside:
                    await pass_one(head, body, up, writer, generates)
            else:
                await pass_one(head, body, up, writer, generates)
            up[1].close()
    except (OSError, Cut, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()
        if up:
            up[1].close()


async def main():
    global inside
    inside = asyncio.Semaphore(max(1, int(SIZE)))
    server = await asyncio.start_server(serve, "127.0.0.1", PORT, limit=1 << 20)
    async with server:
        await server.serve_forever()


asyncio.run(main())
