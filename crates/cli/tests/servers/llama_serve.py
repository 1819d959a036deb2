"""Serve a GGUF file on loopback with llama.cpp's HTTP server (the one inside the xllamacpp wheel)."""
import argparse, signal, time, xllamacpp as x
ap = argparse.ArgumentParser()
ap.add_argument("model"); ap.add_argument("--port", type=int, default=8080); ap.add_argument("--parallel", type=int, default=4)
ap.add_argument("--ctx", type=int, default=4096); ap.add_argument("--threads", type=int, default=1)
ap.add_argument("--embedding", action="store_true"); ap.add_argument("--no-cache", action="store_true"); ap.add_argument("--alias", default="tiny")
a = ap.parse_args()
p = x.CommonParams()
p.model.path = a.model; p.hostnames = ["127.0.0.1"]; p.port = a.port; p.n_parallel = a.parallel; p.n_ctx = a.ctx
p.cpuparams.n_threads = a.threads; p.cpuparams_batch.n_threads = a.threads
p.cache_prompt = not a.no_cache; p.endpoint_metrics = True; p.endpoint_slots = True; p.embedding = a.embedding
p.model_alias = {a.alias} if isinstance(p.model_alias, set) else a.alias
s = x.Server(p)
print("listening", s.listening_address, flush=True)
signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(SystemExit(0)))
while True: time.sleep(1)
