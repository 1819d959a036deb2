"""Starts replicas (mock.py), metrics pages (pages.py) and Plimsoll on free loopback ports, and ends them again.

A case is a function of one `Lab`. It returns when Plimsoll behaved and raises `Wrong` with what was seen otherwise.
PLIMSOLL names the binary. Only the Python standard library is needed.
"""

import argparse, itertools, json, os, pathlib, random, re, shutil, signal
import socket, subprocess, sys, tempfile, threading, time, traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
BIN = os.environ.get("PLIMSOLL", "plimsoll")
PORTS = itertools.count(random.randrange(20000, 29000))
PORTS_LOCK = threading.Lock()


class Wrong(Exception):
    pass


def check(holds, seen):
    if not holds:
        raise Wrong(seen)


def free_port():
    with PORTS_LOCK:
        for p in PORTS:
            p = 20000 + (p - 20000) % 12000  # below the ports that the kernel hands out
            with socket.socket() as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    s.bind(("127.0.0.1", p))
                    return p
                except OSError:
                    continue


def wait_port(p, host="127.0.0.1", seconds=15, process=None):
    end = time.time() + seconds
    while time.time() < end:
        try:
            socket.create_connection((host, p), 0.3).close()
            return
        except OSError:
            time.sleep(0.03)
        if process and process.poll() is not None:
            break
    raise RuntimeError(f"nothing listens on {p}")


class Answer:
    """An HTTP answer as it came. `end`: whole, cut (closed too early), timeout, or refused."""

    def __init__(self, version="", status=0, headers=(), body=b"", end="whole", seconds=0.0, raw=b""):
        self.version, self.status, self.headers, self.body, self.end, self.seconds, self.raw = (
            version,
            status,
            list(headers),
            body,
            end,
            seconds,
            raw,
        )

    def all(self, name):
        return [v for k, v in self.headers if k.lower() == name]

    def get(self, name):
        return (self.all(name) or [""])[0]

    @property
    def text(self):
        return self.body.decode("utf8", "replace")

    @property
    def json(self):
        try:
            return json.loads(self.body)
        except ValueError:
            return {}

    @property
    def kept(self):
        return self.get("x-plimsoll-cache")

    def __repr__(self):
        return f"{self.status or self.end} {self.text[-80:]!r}"


def parse(raw, closed, method="POST"):
    """An Answer from the bytes so far, or None if more must come."""
    while True:
        head, sep, rest = raw.partition(b"\r\n\r\n")
        if not sep:
            return Answer(end="cut", raw=raw) if closed else None
        first, *lines = head.decode("latin1").split("\r\n")
        parts = first.split(" ", 2)
        status = int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0
        if 100 <= status < 200 and status != 101:
            raw = rest
            continue
        break
    headers = [(l.split(":", 1)[0], l.split(":", 1)[1].strip()) for l in lines if ":" in l]
    h = {k.lower(): v for k, v in headers}

    def answer(body, end):
        return Answer(parts[0], status, headers, body, end, raw=raw)

    if method == "HEAD" or status in (204, 304):
        return answer(b"", "whole")
    if status == 101:
        return answer(rest, "whole") if closed or len(rest) >= 7 else None
    if "chunked" in h.get("transfer-encoding", "").lower():
        body = b""
        while True:
            size, sep, tail = rest.partition(b"\r\n")
            try:
                n = int(size.split(b";")[0], 16) if sep else -1
            except ValueError:
                return answer(body + rest, "cut")
            if n == 0:
                return answer(body, "whole")
            if n < 0 or len(tail) < n + 2:
                return answer(body + (tail[:n] if n > 0 else b""), "cut") if closed else None
            body += tail[:n]
            rest = tail[n + 2 :]
    if "content-length" in h:
        n = int(h["content-length"])
        if len(rest) >= n:
            return answer(rest[:n], "whole")
        return answer(rest, "cut") if closed else None
    return answer(rest, "whole") if closed else None


def request(port, method, path, body=b"", headers=(), timeout=10.0, host="127.0.0.1", raw=None):
    """One request on a connection of its own; `raw` replaces the head."""
    began = time.time()
    end = began + timeout
    data = (
        raw
        if raw is not None
        else (
            f"{method} {path} HTTP/1.1\r\nHost: x\r\n"
            + "".join(f"{h}\r\n" for h in headers)
            + (f"Content-Length: {len(body)}\r\n" if body or method not in ("GET", "HEAD", "DELETE") else "")
            + "\r\n"
        ).encode()
        + body
    )
    try:
        s = socket.create_connection((host, port), min(3, timeout))
    except OSError:
        return Answer(end="refused", seconds=time.time() - began)
    got, a = b"", None

    def send():
        try:
            s.sendall(data)
        except OSError:
            pass

    try:
        if len(data) > 1 << 17:
            threading.Thread(target=send, daemon=True).start()
        else:
            send()
        while a is None:
            left = end - time.time()
            if left <= 0:
                a = parse(got, True, method)
                a.end = "timeout"
                break
            s.settimeout(left)
            try:
                b = s.recv(1 << 16)
            except socket.timeout:
                continue
            except OSError:
                b = b""
            got += b
            a = parse(got, not b, method)
    finally:
        s.close()
    a.seconds = time.time() - began
    return a


def exchange(port, data, seconds=2.0):
    """Sends bytes and returns all that comes until the other side closes or the time is over."""
    s = socket.create_connection(("127.0.0.1", port), 3)
    out, end = b"", time.time() + seconds
    try:
        s.sendall(data)
        while (left := end - time.time()) > 0:
            s.settimeout(left)
            if not (b := s.recv(1 << 16)):
                break
            out += b
    except OSError:
        pass
    finally:
        s.close()
    return out


def chat(text="hi", **more):
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def sse(body):
    """The data of each event, as a client's decoder hands it over: an event ends with an empty line."""
    for block in re.split(rb"\r\n\r\n|\n\n", body)[:-1]:
        lines = [l[5:].lstrip() for l in block.replace(b"\r\n", b"\n").split(b"\n") if l.startswith(b"data:")]
        if lines:
            yield b"\n".join(lines)


class Replica:
    def __init__(self, lab, port, log, process, name):
        self.lab, self.port, self.log, self.process, self.name = lab, port, log, process, name

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def truth(self):
        return [json.loads(l) for l in self.log.read_text().splitlines()]

    def requests(self):
        return [x for x in self.truth() if "n" in x and "m" in x]

    def events(self):
        return [x["event"] for x in self.truth() if "event" in x and x["event"] != "up"]

    def is_alive(self):
        return self.process.poll() is None


class Gateway:
    def __init__(self, port, admin, file, log, process):
        self.port, self.admin, self.file, self.log, self.process = port, admin, file, log, process

    def ask(self, path, body=None, headers=(), timeout=10.0, method="POST"):
        b = (
            body
            if isinstance(body, bytes)
            else b""
            if body is None
            else (body if isinstance(body, str) else json.dumps(body)).encode()
        )
        kind = (
            []
            if any(h.lower().startswith("content-type") for h in headers)
            or method in ("GET", "HEAD", "DELETE")
            else ["Content-Type: application/json"]
        )
        return request(self.port, method, path, b, [*kind, *headers], timeout)

    def chat(self, text="hi", headers=(), timeout=10.0, **more):
        return self.ask("/v1/chat/completions", chat(text, **more), headers, timeout)

    def page(self, path):
        return request(self.admin, "GET", path, timeout=5)

    def metrics(self):
        return [l for l in self.page("/metrics").text.splitlines() if l and not l.startswith("#")]

    def outcomes(self):
        return {
            m[1]: int(float(m[2]))
            for l in self.metrics()
            if (m := re.match(r'plimsoll_gateway_requests_total\{.*?outcome="(\w+)".*?\} (\S+)', l))
            and float(m[2])
        }

    def lines(self):
        return self.log.read_text().splitlines()

    def names(self, replica):
        """Whether a line or the admin pages say that something is wrong with this replica."""
        n = re.escape(replica.name)
        port = str(replica.port)
        if any(
            (re.search(rf"\b{n}\b", l) or port in l)
            and not re.search(r": answers$|listen|http://\S+/v1$|^/", l)
            for l in self.lines()
        ):
            return True
        if any(re.search(rf'replica_usable\{{.*replica="{n}".*\}} 0$', l) for l in self.metrics()):
            return True
        mine = [
            r for r in self.page("/v1/replicas").json.get("replicas", []) if r.get("name") == replica.name
        ]
        return any(str(r.get("standing", "ready")) != "ready" for r in mine)


class Lab:
    def __init__(self, mock=HERE / "mock.py", pages=HERE / "pages.py"):
        self.mock, self.pages_file = mock, pages
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="plimsoll-case-"))
        self.processes, self.count = [], 0

    def start(self, args, out, **k):
        f = open(out, "w")
        p = subprocess.Popen([str(a) for a in args], stdout=f, stderr=f, cwd=self.dir, **k)
        self.processes.append(p)
        return p

    def replica(self, mode="ok", model="m", name=None, **more):
        port = free_port()
        self.count += 1
        log = self.dir / f"replica-{port}.log"
        host = more.get("host", "127.0.0.1")
        args = [sys.executable, self.mock, port, mode, "--model", model, "--log", log] + [
            x for k, v in more.items() for x in (f"--{k}", v)
        ]
        p = self.start(args, self.dir / f"replica-{port}.out")
        wait_port(port, host, process=p)
        return Replica(self, port, log, p, name or "engine-" + "abcdefgh"[self.count - 1])

    def gateway(self, replicas, more="", env=None, settle=1.0):
        """`replicas`: Replica values, or text in YAML's flow style for one replica each."""
        port, admin, n = free_port(), free_port(), len(self.processes)
        file, log = self.dir / f"gateway-{n}.yaml", self.dir / f"gateway-{n}.log"
        rows = "".join(
            "  - " + (r if isinstance(r, str) else f"{{url: '{r.url}', name: {r.name}}}") + "\n"
            for r in replicas
        )
        file.write_text(
            f"listen: 127.0.0.1:{port}\nadmin: 127.0.0.1:{admin}\nname_replicas: true\nreplicas:\n{rows}{more}"
        )
        p = self.start([BIN, "gateway", file], log, env={**os.environ, **(env or {})})
        try:
            wait_port(port, process=p)
        except RuntimeError:
            raise Wrong("the gateway does not start: " + " ".join(log.read_text().split())[-200:])
        time.sleep(settle)
        return Gateway(port, admin, file, log, p)

    def pages(self):
        port = free_port()
        p = self.start([sys.executable, self.pages_file, port], self.dir / f"pages-{port}.out")
        wait_port(port, process=p)
        return port

    def plimsoll(self, *args, timeout=60):
        return subprocess.run(
            [BIN, *map(str, args)], capture_output=True, text=True, timeout=timeout, cwd=self.dir
        )

    def stop(self, *which):
        which = [w if isinstance(w, subprocess.Popen) else w.process for w in which] or self.processes
        for p in which:
            if p.poll() is None:
                p.send_signal(signal.SIGTERM)
        for p in which:
            try:
                p.wait(3)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()

    def close(self):
        self.stop()
        shutil.rmtree(self.dir, ignore_errors=True)


def at_once(n, workers, f):
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(f, range(n)))


def codes(answers):
    return dict(Counter(a.status or a.end for a in answers))


def documents(text):
    """JSON documents in a text: one a line, or one over several lines."""
    d, i = json.JSONDecoder(), 0
    while (i := text.find("{", i)) >= 0:
        try:
            value, i = d.raw_decode(text, i)
            yield value
        except ValueError:
            i += 1


def find(value, test):
    """Every dictionary inside a JSON value that passes the test."""
    if isinstance(value, dict):
        if test(value):
            yield value
        for v in value.values():
            yield from find(v, test)
    elif isinstance(value, list):
        for v in value:
            yield from find(v, test)


def run(cases, names, jobs, lab=Lab):
    """Runs cases, the longest first, each again if it is wrong; returns {name: right?}."""
    results, lock = {}, threading.Lock()

    def one(name):
        for _ in range(2):
            l = lab()
            try:
                cases[name][0](l)
                seen = ""
            except Wrong as e:
                seen = str(e)
            except Exception as e:
                where = traceback.extract_tb(e.__traceback__)[-1].lineno
                seen = f"the test itself failed: {type(e).__name__}: {e} ({where})"
            finally:
                l.close()
            if not seen:
                break
        with lock:
            results[name] = not seen
            print(f"{name:24} {'WRONG: ' + ' '.join(seen.split()) if seen else 'right'}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, sorted(names, key=lambda n: -cases[n][1])))
    return results


def main(cases, lab=Lab):
    """The command line of a suite. `--part K/N` takes every Nth case, so that a test runner can spread them."""
    p = argparse.ArgumentParser()
    p.add_argument("--part", default="1/1")
    p.add_argument("--jobs", type=int, default=6)
    p.add_argument("names", nargs="*", metavar="CASE")
    a = p.parse_args()
    if unknown := [n for n in a.names if n not in cases]:
        sys.exit(f"no case {unknown[0]}; cases: {' '.join(cases)}")
    if not shutil.which(BIN):
        sys.exit(f"no binary {BIN}; name it with PLIMSOLL=path")
    k, n = map(int, a.part.split("/"))
    longest_first = sorted(a.names or cases, key=lambda name: -cases[name][1])
    results = run(cases, longest_first[k - 1 :: n], a.jobs, lab)
    print(f"{sum(results.values())} of {len(results)} right")
    sys.exit(not all(results.values()))
