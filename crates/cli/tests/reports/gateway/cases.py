"""The cases of README.md, each as a test.

    PLIMSOLL=path/to/plimsoll python3 cases.py [--part 1/4] [CASE ...]

A case prints `right`, or `WRONG` and what was seen. Names that begin with `keep-` are right today and must stay so.
"""

import gzip, hashlib, posixpath, traceback, urllib.parse, zlib
from lab import *

CASES = {}


def case(name, *args, seconds=5):
    """Registers a case; `seconds` orders them, the longest first."""

    def register(f):
        CASES[name] = (lambda lab: f(lab, *args), seconds, f.__doc__)
        return f

    return register


# ---- what is a failed answer


@case("fast-401", "e401", seconds=12)
@case("fast-404", "e404", seconds=12)
@case("fast-400", "e400", seconds=12)
@case("fast-error-event", "err_event_200", seconds=12)
@case("fast-empty-500", "empty_500", seconds=12)
@case("keep-500-with-body", "e500", seconds=12)
def fails_fast(lab, mode):
    """A replica that fails at once gets no more than its fair share beside a sound one, and is named."""
    a, b = lab.replica("ok"), lab.replica(mode)
    g = lab.gateway([a, b])
    got = codes(at_once(120, 6, lambda i: g.chat(f"q{i} " + "x" * 400, stream=True, timeout=15)))
    A, B = len(a.requests()), len(b.requests())
    share, named = B / max(1, A + B), g.names(b)
    check(
        share <= 0.6 and named,
        f"{share:.0%} went to the replica that fails, {'named' if named else 'not named'}; clients got {got}",
    )


@case("fast-empty-200", "empty_cl0", seconds=12)
@case("fast-empty-stream", "empty_stream", seconds=12)
def fails_empty(lab, mode):
    """An empty 200 to a request that generates is a failure."""
    fails_fast(lab, mode)


@case("fast-401-mixed", seconds=12)
def fails_beside_mistakes(lab):
    """Every third client is wrong on both replicas; one replica refuses everybody."""
    a, b = lab.replica("mistakes"), lab.replica("e401")
    g = lab.gateway([a, b])
    at_once(120, 6, lambda i: g.chat(("wrong " if i % 3 == 0 else "q") + f"{i}", stream=True, timeout=15))
    A, B = len(a.requests()), len(b.requests())
    check(B / max(1, A + B) <= 0.6 and g.names(b), f"a {A}, b {B}, b {'named' if g.names(b) else 'not named'}")


@case("protocol-messages", "/v1/messages")
@case("protocol-responses", "/v1/responses")
@case("protocol-ollama", "/api/chat")
def protocols(lab, path):
    """Each protocol's own word for a failure is a failure."""
    a = lab.replica("failed_by_protocol")
    g = lab.gateway([a])
    for _ in range(3):
        g.ask(path, {"model": "m", "stream": True, "input": "hi", "messages": [{"role": "user", "content": "hi"}]})
    time.sleep(0.2)
    seen = g.outcomes()
    check(seen.get("answered", 0) == 0 and sum(seen.values()) == 3, f"{seen}")


@case("keep-own-mistake", seconds=8)
def own_mistake(lab):
    """A client's own mistake: both replicas answer 400 alike; neither loses its requests and clients see the 400."""
    a, b = lab.replica("e400"), lab.replica("e400")
    g = lab.gateway([a, b])
    got = codes(at_once(60, 4, lambda i: g.chat(f"q{i}", timeout=8)))
    A, B = len(a.requests()), len(b.requests())
    check(set(got) == {400} and min(A, B) >= 10, f"clients got {got}, a {A}, b {B}")


@case("count-no-finish", "cut_clean")
@case("count-error-event", "err_event_200")
@case("count-error-json", "err_json_200")
@case("keep-no-done", "no_done")
def endings(lab, mode):
    """/metrics and the record agree on whether an answer failed."""
    a = lab.replica(mode)
    g = lab.gateway([a], f"record: {{dir: '{lab.dir}/record'}}\n")
    for _ in range(2):
        g.chat(stream=True)
    time.sleep(0.3)
    seen = g.outcomes()
    lab.stop(g)
    shown = lab.plimsoll("show", sorted((lab.dir / "record").iterdir())[0], "--format", "json").stdout
    counts = next(
        (c for d in documents(shown) for c in find(d, lambda x: "finished" in x and "failed" in x)), None
    )
    check(counts is not None, "`show --format json` has no counts")
    good = mode == "no_done"
    check(
        (seen.get("answered", 0) > 0) == good and (counts["finished"] > 0) == good,
        f"/metrics: {seen}; record: finished {counts['finished']}, failed {counts['failed']}; truth: {'whole' if good else 'failed'}",
    )


@case("empty-204", "e204", "DELETE", "/v1/files/file-1")
@case("empty-200", "empty_cl0", "DELETE", "/v1/files/file-1")
@case("empty-head", "ok", "HEAD", "/v1/models/m")
def empty_answers(lab, mode, method, path):
    """204, an empty 200 and the answer to HEAD are answers; the replica's connection is kept."""
    a = lab.replica(mode)
    g = lab.gateway([a])
    got = codes(g.ask(path, method=method) for _ in range(6))
    time.sleep(0.2)
    seen, used = g.outcomes(), {x["conn"] for x in a.requests()}
    check(
        set(got) <= {200, 204}
        and seen.get("cancelled", 0) == 0
        and seen.get("answered", 0) >= 6
        and len(used) <= 3,
        f"clients got {got}; /metrics {seen}; {len(used)} connections to the replica for 6 requests",
    )


# ---- who is down


@case("silent-no-head", "hang_read", seconds=30)
@case("keep-silent-after-head", "hang_after_head", seconds=20)
def silent(lab, mode):
    """A replica whose pages answer and whose engine does not is found silent and named."""
    a, b = lab.replica("ok"), lab.replica(mode)
    g = lab.gateway([a, b])
    lost = sum(
        b"[DONE]" not in x.body for x in at_once(40, 6, lambda i: g.chat(str(i), stream=True, timeout=6))
    )
    named = g.names(b)
    check(
        lost <= 14 and named,
        f"{lost} of 40 streams hang or fail; the replica is {'named' if named else 'not named'}",
    )


@case("slow-health-page", seconds=28)
def slow_page(lab):
    """Both health pages are slow while streams move: neither replica is down, a new request is answered."""
    a, b = lab.replica("busy_health", gap=0.2, tokens=110), lab.replica("busy_health", gap=0.2, tokens=110)
    g = lab.gateway([a, b])
    with ThreadPoolExecutor(4) as pool:
        streams = [pool.submit(g.chat, f"s{i}", stream=True, timeout=40) for i in range(4)]
        time.sleep(9)
        short = g.chat("short", timeout=30)
        whole = [b"[DONE]" in s.result().body for s in streams]
    check(
        short.status == 200 and short.seconds <= 5 and all(whole),
        f"a short request beside 4 moving streams: {short!r} after {short.seconds:.1f} s; streams whole: {sum(whole)} of 4",
    )


# ---- what may be tried again


@case("poison", seconds=10)
def poison(lab):
    """A prompt that kills the engine is tried on one other replica at most."""
    replicas = [lab.replica("poison") for _ in range(5)]
    g = lab.gateway(replicas)
    for i in range(5):
        g.chat(f"warm {i}")
    a = g.chat("poison", timeout=20)
    time.sleep(0.7)
    dead = sum(not r.is_alive() for r in replicas)
    check(1 <= dead <= 2, f"one request killed {dead} of 5 replicas; its client got {a!r}")


@case("poison-again", seconds=12)
def poison_again(lab):
    """The client's own second try of the same body kills no third replica."""
    replicas = [lab.replica("poison") for _ in range(5)]
    g = lab.gateway(replicas)
    for i in range(5):
        g.chat(f"warm {i}")
    got = []
    for _ in range(4):
        got.append(g.chat("poison", timeout=20))
        time.sleep(0.7)
    dead = sum(not r.is_alive() for r in replicas)
    other = g.chat("sound")
    check(1 <= dead <= 2 and other.status == 200, f"{dead} of 5 died; {codes(got)}; another request {other!r}")


@case("silent-no-head-whole", seconds=45)
def silent_whole(lab):
    """The same replica, asked for answers that do not stream."""
    a, b = lab.replica("ok"), lab.replica("hang_read")
    g = lab.gateway([a, b])
    lost = sum(x.status != 200 for x in at_once(40, 6, lambda i: g.chat(str(i), timeout=4)))
    check(lost <= 14 and g.names(b), f"{lost} of 40 hang or fail; {'named' if g.names(b) else 'not named'}")


@case("sent-once")
def sent_once(lab):
    """A batch at which a replica breaks off is sent to no other."""
    replicas = [lab.replica("poison") for _ in range(3)]
    g = lab.gateway(replicas)
    for i in range(3):
        g.ask("/v1/batches", {"input_file_id": f"warm {i}"})
    a = g.ask("/v1/batches", {"input_file_id": "poison"})
    time.sleep(0.5)
    dead = sum(not r.is_alive() for r in replicas)
    check(dead == 1 and a.status >= 500, f"{dead} of 3 got it; {a!r}")


# ---- what may be cached


@case("cache-error-json", "err_json_200", False)
@case("cache-error-object", "object_error_200", False)
@case("cache-abort", "abort_done", True)
@case("cache-late-error", "late_err", True)
@case("keep-error-event-uncached", "err_event_200", True)
def cached_error(lab, mode, stream):
    """An answer that failed is never kept."""
    a = lab.replica(mode)
    g = lab.gateway([a], "cache: {}\n")
    kept = [g.chat(stream=stream, temperature=0).kept for _ in range(3)]
    asked = len(a.requests())
    check(
        asked >= 3 and "hit" not in kept, f"three equal requests: {kept}; the replica was asked {asked} times"
    )


@case("keep-cache", True)
@case("keep-cache-plain", False)
def cached_answer(lab, stream):
    """A whole answer is kept: three equal requests cost one."""
    a = lab.replica("ok")
    g = lab.gateway([a], "cache: {}\n")
    r = [g.chat(stream=stream, temperature=0) for _ in range(3)]
    check(
        len(a.requests()) == 1 and r[0].body == r[2].body,
        f"{[x.kept for x in r]}; the replica was asked {len(a.requests())} times",
    )


@case("cache-no-store")
def no_store(lab):
    """An answer with Cache-Control: no-store and Vary: X-User is not another user's."""
    a = lab.replica("nostore")
    g = lab.gateway([a], "cache: {which: all}\n")
    alice, bob = (g.chat(headers=[f"x-user: {u}"]) for u in ("alice", "bob"))
    check(bob.get("x-echo") == "bob", f"bob's answer says x-echo: {bob.get('x-echo')}, cache {bob.kept}")


@case("cache-beta-header")
def beta_header(lab):
    """Two values of anthropic-beta are two requests."""
    a = lab.replica("ok")
    g = lab.gateway([a], "cache: {which: all}\n")
    kept = [g.chat(headers=[f"anthropic-beta: {v}"]).kept for v in "ab"]
    check(len(a.requests()) == 2, f"{kept}; the replica was asked {len(a.requests())} times")


# ---- what model and tokens does a request have


def two_models(lab, mode, one="org/alpha", two="org/beta"):
    a, b = lab.replica(mode, one), lab.replica(mode, two)
    return a, b, lab.gateway([a, b])


@case("packed-gzip", "gzip")
@case("packed-deflate", "deflate")
def packed_request(lab, how):
    """The model of a packed body is read, and the body passes unchanged (415 is right for what cannot be read)."""
    a, b, g = two_models(lab, "typed")
    d = json.dumps(chat("x", model="org/beta")).encode()
    z = gzip.compress(d) if how == "gzip" else zlib.compress(d)
    got = codes(g.ask("/v1/chat/completions", z, [f"Content-Encoding: {how}"]) for _ in range(12))
    same = {x.get("body_sha") for x in b.truth() if "body_sha" in x} <= {hashlib.sha256(z).hexdigest()}
    check(
        got == {200: 12} and same or how != "gzip" and got == {415: 12},
        f"12 {how} requests for beta: {got}; bytes {'unchanged' if same else 'changed'}",
    )


@case("packed-unreadable")
def unreadable_request(lab):
    """A body that is not what Content-Encoding says is refused; it is not sent to any replica."""
    a, b, g = two_models(lab, "typed")
    got = codes(
        g.ask(
            "/v1/chat/completions",
            json.dumps(chat("x", model="org/beta")).encode(),
            ["Content-Encoding: gzip"],
        )
        for _ in range(6)
    )
    asked = len(a.requests()) + len(b.requests())
    check(set(got) <= {400, 415} and asked == 0, f"{got}; replicas were asked {asked} times")


@case("form-model")
def form(lab):
    """The model of a multipart form (audio) is read, and the file passes unchanged."""
    a, b, g = two_models(lab, "typed", "whisper", "chatty")
    wav = bytes(range(256)) * 2000
    d = (
        b'--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
        + b'--XX\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
        + b"Content-Type: audio/wav\r\n\r\n"
        + wav
        + b"\r\n--XX--\r\n"
    )
    got = codes(
        g.ask("/v1/audio/transcriptions", d, ["Content-Type: multipart/form-data; boundary=XX"])
        for _ in range(12)
    )
    same = {x["body_sha"] for r in (a, b) for x in r.truth() if "body_sha" in x} == {
        hashlib.sha256(d).hexdigest()
    }
    check(
        got == {200: 12} and same, f"12 forms for whisper: {got}; bytes {'unchanged' if same else 'changed'}"
    )


@case("path-model")
def path_model(lab):
    """The path contains the model: KServe, Triton, Azure."""
    a, b = lab.replica("v2", "resnet"), lab.replica("v2", "llama")
    g = lab.gateway(
        [f"{{url: '{a.url}', name: a, models: [resnet]}}", f"{{url: '{b.url}', name: b, models: [llama]}}"]
    )
    got = {
        p: codes(g.ask(p, {"inputs": []}) for _ in range(8))
        for p in (
            "/v2/models/llama/infer",
            "/v2/models/llama/generate_stream",
            "/openai/deployments/llama/chat/completions",
        )
    }
    check(all(c == {200: 8} for c in got.values()), f"{got}")


@case("responses-owner")
def responses(lab):
    """previous_response_id and GET go to the replica that made the answer."""
    a, b, g = two_models(lab, "responses", "m", "m")
    turn, get = [], []
    for i in range(10):
        made = g.ask("/v1/responses", {"model": "m", "input": f"hello {i}"}).json.get("id")
        turn.append(
            g.ask("/v1/responses", {"model": "m", "input": "and then?", "previous_response_id": made})
        )
        get.append(g.ask(f"/v1/responses/{made}", method="GET"))
    check(
        codes(turn) == {200: 10} and codes(get) == {200: 10}, f"second turns {codes(turn)}, GETs {codes(get)}"
    )


# ---- which paths and URLs pass


@case("dot-segments")
def dots(lab):
    """No path leaves the prefix of a replica's URL."""
    a = lab.replica("ok")
    g = lab.gateway([f"{{url: '{a.url}/tenant-a', name: a}}"])
    out = []
    plain = g.chat()
    inside = [x["path"] for x in a.requests()]
    for p in (
        "/../tenant-b/v1/chat/completions",
        "/%2e%2e/tenant-b/v1/chat/completions",
        "/v1/../../tenant-b/v1/chat/completions",
        "/v1/%2E%2e/.%2e/tenant-b/v1/chat/completions",
    ):
        g.ask(p, chat())
    for p in [x["path"] for x in a.requests()]:
        if not posixpath.normpath(urllib.parse.unquote(p.split("?")[0])).startswith("/tenant-a/"):
            out.append(p)
    check(
        plain.status == 200 and inside == ["/tenant-a/v1/chat/completions"],
        f"a sound path: {plain!r} {inside}",
    )
    check(not out, f"sent to the replica: {out}")


KEYS = "keys: [{id: alice, key: {env: CLIENT_KEY}%s}]\nadmin_key: {env: ADMIN_KEY}\n"
KEY = "sk-secret-0123456789abcdef"
SECRETS = {"CLIENT_KEY": KEY, "ADMIN_KEY": "admin-0123456789abcdef"}


@case("admin-paths")
def admin_paths(lab):
    """A client's key does not reach the engine's administrative paths."""
    a = lab.replica("ok")
    g = lab.gateway([a], KEYS % "", env=SECRETS)
    h = [f"Authorization: Bearer {KEY}"]
    for p in (
        "/pause",
        "/sleep?level=2",
        "/abort_requests",
        "/update_weights",
        "/reset_prefix_cache",
        "/v1/load_lora_adapter",
        "/flush_cache",
        "/collective_rpc",
    ):
        g.ask(p, {}, h)
    through = [x["path"] for x in a.requests()]
    check(not through, f"{len(through)} of 8 reached the engine: {' '.join(through)}")


@case("keep-public-paths")
def public_paths(lab):
    """The public API passes."""
    a = lab.replica("ok")
    g = lab.gateway([a])
    ask = [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/responses",
        "/v1/rerank",
        "/v1/score",
    ]
    got = {p: g.ask(p, chat()).status for p in ask}
    got["/v1/models"] = g.ask("/v1/models", method="GET").status
    check(set(got.values()) == {200}, f"{got}")


# ---- bytes on the wire


@case("two-lengths", "te_and_cl")
@case("two-lengths-split", "split_answer")
def two_lengths(lab, mode):
    """An answer with Content-Length and chunks: the chunks are right; or 502. Never a part that looks whole."""
    a = lab.replica(mode)
    g = lab.gateway([a])
    r = g.ask("/v1/chat/completions", chat())

    def sound(r):
        return r.end == "whole" and (
            r.status == 502
            or r.status == 200
            and (
                isinstance(r.json, dict) and "choices" in r.json
                if mode == "te_and_cl"
                else r.body.endswith(b"smuggle")
            )
        )

    check(sound(r), f"the client got {r.status}, {len(r.body)} bytes, {r.end}: {r.body[:40]!r}")


@case("packed-silence", seconds=7)
def packed_silence(lab):
    """A silent stream that is packed gets no comment in front of its bytes."""
    a = lab.replica("gz_head_first")
    g = lab.gateway([a], "limits: {keep_alive_s: 1}\n")
    r = g.chat(stream=True, headers=["Accept-Encoding: gzip"])
    try:
        d = zlib.decompressobj(31).decompress(r.body) if r.get("content-encoding") == "gzip" else r.body
    except zlib.error as e:
        d = str(e).encode()
    check(
        b"[DONE]" in d, f"content-encoding {r.get('content-encoding')!r}, bytes {r.body[:40]!r}: {d[:60]!r}"
    )


@case("early-413", seconds=12)
def early_answer(lab):
    """A replica refuses a 20 MB body before it has read it: the client gets that 413."""
    a = lab.replica("early_413")
    g = lab.gateway([a])
    f = lab.dir / "big"
    f.write_bytes(json.dumps(chat("A" * (20 << 20))).encode())
    got = Counter(
        subprocess.run(
            [
                "curl",
                "-s",
                "-m",
                "15",
                "-o",
                os.devnull,
                "-w",
                "%{http_code}",
                "-H",
                "Expect:",
                "-H",
                "Content-Type: application/json",
                "--data-binary",
                f"@{f}",
                f"http://127.0.0.1:{g.port}/v1/chat/completions",
            ],
            capture_output=True,
            text=True,
        ).stdout
        for _ in range(24)
    )
    check(set(got) == {"413"}, f"24 requests: {dict(got)}")


@case("upgrade")
def upgrade(lab):
    """A WebSocket is tunnelled, or refused by the gateway itself."""
    a = lab.replica("websocket")
    g = lab.gateway([a])
    r = request(
        g.port,
        "GET",
        "/v1/realtime?model=m",
        headers=[
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Version: 13",
        ],
        timeout=4,
    )
    asked = [{k.lower() for k, _ in x["headers"]} for x in a.requests()]
    check(
        r.status == 101 and b"hello" in r.body or r.status in (400, 403, 404, 426, 501) and not asked,
        f"the client got {r.status}; headers of the requests at the replica: {[sorted(x) for x in asked]}",
    )


@case("request-id")
def request_id(lab):
    """A client finds its own request id on the answer, once."""
    a = lab.replica("own_id")
    g = lab.gateway([a])
    r = g.chat(headers=["x-request-id: mine-1"])
    ids = r.all("x-request-id")
    check(
        len(ids) <= 1 and any(v == "mine-1" for _, v in r.headers),
        f"x-request-id: {ids}; the client sent mine-1",
    )


@case("half-an-event")
def half_an_event(lab):
    """A replica dies inside an event: each event that a decoder returns is JSON; the end is not clean."""
    a = lab.replica("die_mid_event")
    g = lab.gateway([a])
    r = g.chat(stream=True)
    bad, errors = [], 0
    for d in sse(r.body):
        if d == b"[DONE]":
            continue
        try:
            errors += "error" in json.loads(d)
        except ValueError:
            bad.append(d)
    check(
        not bad and (errors or r.end == "cut"), f"not JSON: {bad[:1]}; error events {errors}; ended {r.end}"
    )


LINGER = r"linger|grace|pre_?stop|deregist|unready|not_ready|stop_|drain_|shutdown|quiesce|lame|keep_serving|announce"


@case("linger", seconds=8)
def linger(lab):
    """A setting lets the gateway serve after SIGTERM while /readyz is not 200: endpoint lists need time."""
    schema = json.loads(lab.plimsoll("schema", "gateway").stdout)
    defs = schema.get("$defs", {})
    found = []

    def walk(node, path, depth=0):
        for name, p in node.get("properties", {}).items():
            if re.search(LINGER, name) and name != "drain_s":
                found.append((path + [name], p))
            for ref in re.findall(r'"\$ref": "#/\$defs/(\w+)"', json.dumps(p)) if depth < 3 else []:
                walk(defs.get(ref, {}), path + [name], depth + 1)

    walk(schema, [])
    check(found, "the gateway's file has no setting for it; the port refuses at once")
    path, p = found[0]
    value = "3s" if p.get("type") == "string" else 3000 if path[-1].endswith("_ms") else 3
    for name in reversed(path):
        value = {name: value}
    a = lab.replica("ok")
    g = lab.gateway([a], "".join(f"{k}: {json.dumps(v)}\n" for k, v in value.items()))
    g.process.send_signal(signal.SIGTERM)
    time.sleep(1)
    new, ready = g.chat(timeout=2), g.page("/readyz")
    check(
        new.status == 200 and ready.status != 200,
        f"1 s after SIGTERM with {'.'.join(path)}: a new request {new!r}, /readyz {ready.status or ready.end}",
    )


@case("keep-half-event", seconds=7)
def event_in_two(lab):
    """No comment is written into an event that comes in two reads."""
    a = lab.replica("half_event")
    g = lab.gateway([a], "limits: {keep_alive_s: 1}\n")
    r = g.chat(stream=True)
    texts = []
    for d in sse(r.body):
        if d != b"[DONE]":
            texts += [json.loads(d)["choices"][0]["delta"].get("content")]
    check("hello world" in texts and r.body.rstrip().endswith(b"[DONE]"), f"{texts} {r!r}")


@case("keep-ndjson", seconds=7)
def lines_of_json(lab):
    """A stream that is not SSE gets no comments."""
    a = lab.replica("ndjson")
    g = lab.gateway([a], "limits: {keep_alive_s: 1}\n")
    r = g.chat(stream=True)
    lines = [l for l in r.body.splitlines() if l.strip()]
    check(len(lines) == 3 and all(l.startswith(b"{") for l in lines), repr(r))


@case("keep-crlf")
def crlf(lab):
    """Events that end with CRLF pass, and are counted as an answer."""
    a = lab.replica("crlf")
    g = lab.gateway([a])
    r = g.chat(stream=True)
    time.sleep(0.1)
    check(len(list(sse(r.body))) == 5 and g.outcomes().get("answered") == 1, f"{r!r} {g.outcomes()}")


@case("keep-smuggling")
def smuggling(lab):
    """Requests with two lengths are refused, or framed anew; nothing is smuggled."""
    a = lab.replica("ok")
    g = lab.gateway([a])
    B = b'{"model":"m","messages":[]}'
    H = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    both = exchange(
        g.port,
        H
        + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/evil HTTP/1.1\r\nHost: x\r\n\r\n",
    )
    two = exchange(g.port, H + b"Content-Length: 27\r\nContent-Length: 5\r\n\r\n" + B)
    sent = a.requests()
    check(
        all(x["path"] == "/v1/chat/completions" for x in sent) and two.split(b" ")[1:2] == [b"400"],
        f"replica got {[x['path'] for x in sent]}; two lengths: {two[:20]!r}, both kinds: {both[:20]!r}",
    )


@case("keep-client-gone", seconds=6)
def client_gone(lab):
    """A client that goes away ends the replica's work."""
    a = lab.replica("long_stream")
    g = lab.gateway([a])
    g.chat(stream=True, timeout=1)
    time.sleep(1.2)
    check("client gone" in a.events() and "stream sent whole" not in a.events(), f"{a.events()}")


@case("keep-reload", seconds=8)
def reload(lab):
    """A reload keeps streams."""
    a, b = lab.replica("long_stream"), lab.replica("ok")
    g = lab.gateway([a])
    with ThreadPoolExecutor(1) as pool:
        s = pool.submit(g.chat, stream=True, timeout=20)
        time.sleep(1)
        g.file.write_text(g.file.read_text().replace(a.url, b.url).replace(a.name, b.name))
        g.process.send_signal(signal.SIGHUP)
        time.sleep(1.2)
        new, whole = g.chat(), b"[DONE]" in s.result().body
    check(
        new.status == 200 and len(b.requests()) == 1 and whole,
        f"new request {new!r}, b got {len(b.requests())}; the old stream is {'whole' if whole else 'cut'}",
    )


@case("keep-keys")
def keys(lab):
    """A client's key is stripped in each of its three headers."""
    a = lab.replica("ok")
    g = lab.gateway([a], KEYS % "", env=SECRETS)
    got = codes(
        g.chat(headers=h)
        for h in (
            [f"Authorization: Bearer {KEY}"],
            [f"x-api-key: {KEY}"],
            [f"x-api-key: {KEY}", f"Authorization: Bearer {KEY}", f"api-key: {KEY}"],
        )
    )
    bad = g.chat(headers=["x-api-key: nobody-0123456789"])
    check(
        got == {200: 3} and bad.status == 401 and KEY not in a.log.read_text(),
        f"{got}, wrong key {bad.status}, leaked {KEY in a.log.read_text()}",
    )


@case("keep-answer-rate")
def answer_rate(lab):
    """A key is charged for long answers, with or without max_tokens."""
    out = {}
    for name, more in {"max_tokens": {"max_tokens": 200}, "none": {}}.items():
        a = lab.replica("ok", tokens=200, gap=0)
        g = lab.gateway([a], KEYS % ", rate: {tokens_per_min: 600, burst_s: 10}", env=SECRETS)
        out[name] = sum(
            g.chat(stream=True, headers=[f"Authorization: Bearer {KEY}"], **more).status == 200
            for _ in range(8)
        )
        lab.stop()
    check(all(1 <= n <= 3 for n in out.values()), f"let in, of 8: {out}")


@case("keep-hints")
def hints(lab):
    """103 Early Hints in front of an answer."""
    a = lab.replica("hints")
    g = lab.gateway([a])
    r = g.chat()
    check(r.status == 200 and "choices" in r.json, repr(r))


# ---- canary


def canary_verdict(lab, mode, seconds=120):
    """Two sound replicas and a canary, 6 requests/s: the second after which it is rolled back, or None; the last verdict; its log."""
    good, new = [lab.replica("ok", tokens=3) for _ in range(2)], lab.replica(mode, name="new")
    g = lab.gateway(
        [*good, f"{{url: '{new.url}', name: new, role: canary}}"],
        "canary: {share: 0.2, before_s: 0, least_s: 600}\n",
    )
    began, after, last, i = time.time(), None, "", 0

    def strings(v):
        return (
            [v]
            if isinstance(v, str)
            else [
                s
                for x in (v.values() if isinstance(v, dict) else v if isinstance(v, list) else [])
                for s in strings(x)
            ]
        )

    with ThreadPoolExecutor(8) as pool:
        while (t := time.time() - began) < seconds and after is None:
            pool.submit(g.chat, f"q{i}", stream=True)
            i += 1
            time.sleep(max(0, began + i / 6 - time.time()))
            if i % 18 == 0:
                v = g.page("/v1/verdict").json
                last = f"{v.get('verdict')}: {str(v.get('why'))[:80]}"
                if any(
                    re.search(r"\broll(ed)?[_ -]?back", s)
                    for s in strings(v) + strings(g.page("/v1/canary").json)
                ):
                    after = t
    return after, last, len(new.requests())


@case("canary-401", "e401", seconds=125)
@case("canary-error-events", "err_event_200", seconds=125)
def canary(lab, mode):
    """A canary that answers only errors is rolled back within 2 minutes at 6 requests/s."""
    after, last, n = canary_verdict(lab, mode)
    check(after is not None, f"not rolled back after 120 s; it failed {n} requests; verdict {last}")


# ---- metrics pages

BUDGET = """version: 1
name: t
load: {window: 20s}
budgets:
  - {id: ttft, metric: ttft, p: 99, max: 500ms, scope: engine}
  - {id: ttft-ok, metric: ttft, p: 90, max: 500ms, scope: engine}
  - {id: itl, metric: itl, p: 95, max: 50ms}
"""


def watched(lab, *targets, seconds=26):
    """A watch of 26 s over pages: its last rows by id, its exit code and all it printed."""
    (lab.dir / "b.yaml").write_text(BUDGET)
    r = lab.plimsoll(
        "watch",
        *(["-b", "b.yaml"] if not str(targets[0]).endswith(".yaml") else []),
        *(["--every", "1s", "--window", "20s"] if not str(targets[0]).endswith(".yaml") else []),
        "--for",
        f"{seconds}s",
        "--listen",
        "none",
        "--format",
        "json",
        *targets,
        timeout=seconds + 40,
    )
    rows = {}
    for d in documents(r.stdout):
        for row in find(d, lambda x: "id" in x and "state" in x and "n" in x):
            rows[row["id"]] = row
    return rows, r.returncode, r.stdout + r.stderr


def describe(row):
    return f"{row.get('id')} {row.get('state')}: {row.get('why', '')[:90]}" if row else "no row"


def over(row):
    return max(row["over"]) if row.get("over") else 0.0


def near(row, truth):
    return row.get("n", 0) <= 1.25 * truth


@case("keep-page", "base", seconds=28)
@case("keep-openmetrics", "openmetrics", seconds=28)
@case("prefixed-names", "prefixed", seconds=28)
def sound_page(lab, name):
    """A sound page, in another notation: 400 requests in 20 s, 3 % over 500 ms; no gap over 50 ms."""
    rows, rc, all = watched(lab, f"http://127.0.0.1:{lab.pages()}/{name}/metrics")
    t, k, i = (rows.get(x, {}) for x in ("ttft", "ttft-ok", "itl"))
    check(
        t.get("n", 0) >= 300
        and near(t, 400)
        and abs(over(t) - 0.03) < 0.01
        and k.get("state") == i.get("state") == "holds",
        f"exit {rc}; {describe(t)}; {describe(i)}",
    )


@case("cut-page", seconds=28)
def cut_page(lab):
    """A page that ends in the middle is no scrape: no count is larger than the truth, no row is broken by it."""
    rows, rc, all = watched(lab, f"http://127.0.0.1:{lab.pages()}/cut/metrics")
    i, k = rows.get("itl", {}), rows.get("ttft-ok", {})
    check(
        6000 <= i.get("n", 0)
        and near(i, 12000)
        and over(i) < 0.01
        and near(k, 400)
        and "broken" not in (i.get("state"), k.get("state")),
        f"{describe(i)}; truth 0 of 12 000",
    )


@case("keep-login-page", seconds=16)
def login_page(lab):
    """A login page is a lost source: no row holds."""
    rows, rc, all = watched(lab, f"http://127.0.0.1:{lab.pages()}/login/metrics", seconds=12)
    check(
        rc != 0 and not any(r.get("state") in ("holds", "broken") for r in rows.values()),
        f"exit {rc}; {[describe(r) for r in rows.values()]}",
    )


@case("two-jobs", seconds=30)
def two_jobs(lab):
    """One server that two jobs scrape is counted once, or refused with words."""
    (lab.dir / "w.yaml").write_text(
        f"sources: [{{prometheus: 'http://127.0.0.1:{lab.pages()}', match: '{{namespace=\"prod\"}}'}}]\n"
        "budget: b.yaml\nevery: 1s\nwindow: 20s\n"
    )
    rows, rc, all = watched(lab, "w.yaml")
    t = rows.get("ttft", {})
    refused = t.get("n", 0) == 0 and re.search(
        r"podmonitor|twice|two jobs|both jobs|duplicate|same (server|page|target|replica)", all
    )
    check(
        t.get("n", 0) >= 300 and near(t, 400) or refused,
        f"exit {rc}; {describe(t)}; truth 400 requests {all[-160:] if not t else ''}",
    )


@case("dead-page", seconds=28)
def dead_page(lab):
    """Two pages, one dead at the start: the watch judges the other and names the lost one."""
    dead = free_port()
    rows, rc, all = watched(
        lab, f"http://127.0.0.1:{lab.pages()}/base/metrics", f"http://127.0.0.1:{dead}/metrics"
    )
    t = rows.get("ttft", {})
    check(
        rc not in (2, 5) and t.get("n", 0) >= 200 and str(dead) in all,
        f"exit {rc}; {describe(t)}; {all.strip().splitlines()[-1][:120] if all.strip() else ''}",
    )


@case("otlp-null", '"status": null', seconds=3)
@case("keep-otlp", '"kind": "SPAN_KIND_SERVER", "future": {"a": 1}', seconds=3)
def otlp(lab, field):
    """OTLP as JSON: null means absent, unknown fields are skipped."""
    port = free_port()
    p = lab.start(
        [BIN, "collect", "--listen", f"127.0.0.1:{port}", "-o", lab.dir / "spans", "-q"],
        lab.dir / "collect.out",
    )
    wait_port(port, process=p)
    span = (
        '{"traceId": "5B8EFFF798038103D269B633813FC606", "spanId": "eee19b7ec3c1b174", "name": "x", '
        '"startTimeUnixNano": "1795862674000000000", "endTimeUnixNano": "1795862675000000000", %s}' % field
    )
    r = request(
        port,
        "POST",
        "/v1/traces",
        ('{"resourceSpans": [{"scopeSpans": [{"spans": [%s]}]}]}' % span).encode(),
        ["Content-Type: application/json"],
    )
    check(r.status == 200 and not re.search(r'rejectedSpans": ?"?[1-9]', r.text), f"{field}: {r!r}")


# ---- rules

SERIES = {
    "up": "1",
    "vllm:num_requests_running": "4",
    "vllm:generation_tokens_total": "0+6000",
    'vllm:request_success_total{finished_reason="stop"}': "0+200",
    'vllm:request_success_total{finished_reason="error"}': "0",
    'vllm:time_to_first_token_seconds_bucket{le="0.5"}': "0+200",
    'vllm:time_to_first_token_seconds_bucket{le="+Inf"}': "0+200",
    'vllm:inter_token_latency_seconds_bucket{le="0.04"}': "0+6000",
    'vllm:inter_token_latency_seconds_bucket{le="0.06"}': "0+6000",
    'vllm:inter_token_latency_seconds_bucket{le="+Inf"}': "0+6000",
}


@case("vanished-targets", seconds=6)
def vanish(lab):
    """All targets leave the discovery: an exported rule pages within 5 minutes.

    PROMTOOL, or promtool in PATH, evaluates the rules; without it their text is checked.
    """
    (lab.dir / "b.yaml").write_text(BUDGET)
    made = lab.plimsoll(
        "export",
        "rules",
        "-b",
        "b.yaml",
        "--source",
        f"http://127.0.0.1:{lab.pages()}/base/metrics",
        "--label",
        "job=vllm",
    )
    files = [f for f in lab.dir.rglob("*.y*ml") if "rules" in f.name and "test" not in f.name]
    check(files, f"no rules: exit {made.returncode} {made.stderr[-100:]}")
    tool = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if not tool:
        rules = re.split(r"\n\s*- (?=alert:|record:)", files[0].read_text())
        waits = {"s": 1, "m": 60, "h": 3600}
        pages = [
            r
            for r in rules
            if r.startswith("alert:")
            and re.search(r'severity: "?page', r)
            and "absent" in r
            and not re.search(r"(increase|\[)\d+[mhd]", r)
            and (m := re.search(r"for: (\d+)([smh])", r))
            and int(m[1]) * waits[m[2]] <= 300
        ]
        return check(pages, "no alert with severity page fires if no series is there")

    def labelled(s):
        name, _, l = s.partition("{")
        return name + '{job="vllm",instance="a"' + ("," + l if l else "}")

    rows = "".join(
        f"      - {{series: '{labelled(s)}', values: '{v}x60 stale'}}\n" for s, v in SERIES.items()
    )
    ask = 'count(ALERTS{alertstate="firing",severity="page"})'
    (lab.dir / "vanish.yml").write_text(
        f"rule_files: [{files[0]}]\nevaluation_interval: 30s\ntests:\n"
        f"  - interval: 30s\n    input_series:\n{rows}    promql_expr_test:\n"
        f"      - {{expr: '{ask}', eval_time: 29m, exp_samples: []}}\n"
        f"      - {{expr: '{ask} >= bool 1', eval_time: 36m, exp_samples: [{{labels: '{{}}', value: 1}}]}}\n"
    )
    r = subprocess.run([tool, "test", "rules", lab.dir / "vanish.yml"], capture_output=True, text=True)
    check(r.returncode == 0, "promtool: " + " ".join((r.stdout + r.stderr).split())[-220:])


if __name__ == "__main__":
    main(CASES)
