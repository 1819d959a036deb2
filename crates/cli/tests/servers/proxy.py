"""A TCP proxy with a fault, for servers that are none of ours: it delays what goes to the server, holds back what comes, drops requests or
is a narrow link that all connections share.

usage: proxy.py LISTEN_PORT TARGET_PORT delay SECONDS | buffer BYTES | drop SHARE | narrow BYTES_PER_S
"""
import asyncio
import random
import sys

PORT, TARGET, MODE, SIZE = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
# When the narrow link has passed on all that was given to it, on the loop's clock.
free_at = 0.0


async def passes(size):
    """Waits until the narrow link has carried so many bytes."""
    global free_at
    now = asyncio.get_running_loop().time()
    free_at = max(free_at, now) + size / SIZE
    await asyncio.sleep(free_at - now)


async def pump(reader, writer, fault):
    held = b""
    size = 256 if fault == "narrow" else 65536
    try:
        while True:
            # What is held goes when the peer has been silent for a while: an answer's end must not wait for the next one.
            try:
                data = await asyncio.wait_for(reader.read(size), 0.4 if held else None)
            except asyncio.TimeoutError:
                writer.write(held)
                held = b""
                continue
            if not data:
                break
            if fault == "delay":
                await asyncio.sleep(SIZE)
            if fault == "narrow":
                await passes(len(data))
            if fault == "drop" and data.startswith(b"POST ") and random.random() < SIZE:
                break
            if fault == "buffer":
                held += data
                if len(held) < SIZE and not data.endswith(b"0\r\n\r\n"):
                    continue
                data, held = held, b""
            writer.write(data)
            await writer.drain()
        writer.write(held)
    except OSError:
        pass
    finally:
        writer.close()


async def serve(reader, writer):
    try:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", TARGET)
    except OSError:
        writer.close()
        return
    there = MODE if MODE in ("delay", "drop") else None
    back = MODE if MODE in ("buffer", "narrow") else None
    await asyncio.gather(pump(reader, up_writer, there), pump(up_reader, writer, back))


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", PORT)
    async with server:
        await server.serve_forever()


asyncio.run(main())
