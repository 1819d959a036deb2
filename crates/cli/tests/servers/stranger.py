"""A small inference server that is none of ours: continuous batching, OpenAI's chat stream, a page with vLLM's names.

usage: stranger.py [STEP_TIMES [FRONT_MS]]   (prints its port; on SIGTERM how late its loop ever was, ms)

STEP_TIMES makes every step so many times as long, FRONT_MS holds each request back before it reaches the engine. Nothing but the
standard library; a step takes 9 ms, the square root of its answers times 2.2 ms and 0.04 ms per prompt token, times lognormal noise.
"""
import asyncio, json, math, random, signal, sys, time

STEP = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
FRONT = float(sys.argv[2]) / 1000 if len(sys.argv) > 2 else 0.0
chance, waiting, running, wake, late = random.Random(STEP + FRONT), [], [], asyncio.Event(), [0.0]
count = dict(prompt=0, out=0, done=0, ttft=0.0, gaps=0, gap=0.0)


class Request:
    def __init__(self, prompt, most):
        self.prompt, self.most, self.out, self.came, self.last = prompt, most, 0, time.monotonic(), 0.0
        self.tokens = asyncio.Queue()


async def engine():
    at = time.monotonic()
    while True:
        if not running and not waiting:
            wake.clear()
            await wake.wait()
            at = time.monotonic()
        read = waiting[:16]
        del waiting[:16]
        prompt = sum(request.prompt for request in read)
        took = (9 + 2.2 * math.sqrt(len(running)) + 0.04 * prompt) * STEP * chance.lognormvariate(0, 0.1) / 1000
        at = max(at, time.monotonic() - 0.05) + took
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        running.extend(read)
        now = time.monotonic()
        for request in list(running):
            request.out += 1
            count["out"] += 1
            if request.out == 1:
                count["ttft"] += now - request.came
                count["prompt"] += request.prompt
            else:
                count["gaps"] += 1
                count["gap"] += now - request.last
            request.last = now
            request.tokens.put_nowait(request.out)
            if request.out == request.most:
                running.remove(request)
                count["done"] += 1


def page():
    lines = []
    for name, value in [
        ("num_requests_running", len(running)), ("num_requests_waiting", len(waiting)), ("kv_cache_usage_perc", 0.1),
        ("num_preemptions_total", 0), ("prompt_tokens_total", count["prompt"]), ("generation_tokens_total", count["out"]),
        ("time_to_first_token_seconds_sum", count["ttft"]), ("time_to_first_token_seconds_count", count["done"] + len(running)),
        ("inter_token_latency_seconds_sum", count["gap"]), ("inter_token_latency_seconds_count", count["gaps"]),
    ]:
        lines.append('vllm:%s{engine="0",model_name="stranger"} %s' % (name, value))
    lines.append('vllm:request_success_total{engine="0",finished_reason="length",model_name="stranger"} %d' % count["done"])
    return "\n".join(lines) + "\n"


def chunk(choices, **more):
    body = dict(id="chatcmpl-1", object="chat.completion.chunk", created=1, model="stranger", choices=choices, **more)
    event = b"data: " + json.dumps(body).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


async def answer(writer, asked):
    await asyncio.sleep(FRONT)
    words = sum(len(message["content"].split()) for message in asked["messages"])
    request = Request(words + 9, asked.get("max_tokens") or asked.get("max_completion_tokens") or 16)
    waiting.append(request)
    wake.set()
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    writer.write(chunk([dict(index=0, delta=dict(role="assistant", content=""), finish_reason=None)]))
    while await request.tokens.get() < request.most:
        writer.write(chunk([dict(index=0, delta=dict(content=" tok"), finish_reason=None)]))
    writer.write(chunk([dict(index=0, delta=dict(content=" tok"), finish_reason="length")]))
    usage = dict(prompt_tokens=request.prompt, completion_tokens=request.most, total_tokens=request.prompt + request.most)
    writer.write(chunk([], usage=usage) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


async def connection(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").split("\r\n")
            path = head[0].split(" ")[1]
            fields = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
            body = await reader.readexactly(int(fields.get("content-length", 0)))
            if path == "/v1/chat/completions":
                await answer(writer, json.loads(body))
                continue
            known = {"/v1/models": json.dumps(dict(object="list", data=[dict(id="stranger", object="model")])), "/metrics": page()}
            text = known.get(path, "not found")
            status = "200 OK" if path in known else "404 Not Found"
            writer.write(("HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(text), text)).encode())
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def watch():
    while True:
        before = time.monotonic()
        await asyncio.sleep(0.02)
        late[0] = max(late[0], time.monotonic() - before - 0.02)


async def main():
    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    tasks = [asyncio.ensure_future(engine()), asyncio.ensure_future(watch())]
    print(server.sockets[0].getsockname()[1], flush=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    print(round(1000 * late[0]), flush=True)
    del tasks


asyncio.run(main())
