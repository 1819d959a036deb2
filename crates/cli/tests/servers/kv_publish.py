# Publishes KV cache events as vLLM does (vllm/distributed/kv_events.py): pyzmq's PUB socket, a ROUTER that sends batches again, msgspec's MessagePack.
# usage: kv_publish.py PORT REPLAY_PORT TOPIC   (REPLAY_PORT 0: nothing is sent again)
# Each line of stdin is a command, answered by a line of stdout:
#   {"events": [["stored", parent, [names], tokens] | ["removed", [names]] | ["cleared"]]}   a batch
#   {"miss": {"events": …}}   a batch that subscribers don't get, and that is kept to be sent again
#   {"forget": true}          what is kept to be sent again is dropped
#   {"bytes": "hex"}          a payload that is none, under the next number
import json
import sys
import threading
import time
from collections import deque

import msgspec
import zmq


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list
    data_parallel_rank: int | None = None


class BlockStored(msgspec.Struct, omit_defaults=True, tag=True):
    block_hashes: list
    parent_block_hash: int | bytes | None
    token_ids: list
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class BlockRemoved(msgspec.Struct, omit_defaults=True, tag=True):
    block_hashes: list
    medium: str | None


class AllBlocksCleared(msgspec.Struct, omit_defaults=True, tag=True):
    pass


def event(said):
    kind, *rest = said
    if kind == "stored":
        parent, names, tokens = rest
        return BlockStored(names, parent, [7] * (tokens * len(names)), tokens, None, "GPU", None)
    return BlockRemoved(rest[0], "GPU") if kind == "removed" else AllBlocksCleared()


def main():
    port, replay_port, topic = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
    context = zmq.Context()
    pub = context.socket(zmq.XPUB)  # A PUB that says when somebody subscribes, on which the test waits.
    pub.setsockopt(zmq.XPUB_VERBOSE, 1)
    pub.bind(f"tcp://*:{port}")
    kept = deque(maxlen=10_000)

    def replays():
        router = context.socket(zmq.ROUTER)
        router.bind(f"tcp://*:{replay_port}")
        while True:
            client, _, start = router.recv_multipart()
            for number, payload in list(kept):
                if number >= int.from_bytes(start, "big"):
                    router.send_multipart((client, b"", topic, number.to_bytes(8, "big"), payload))
            router.send_multipart((client, b"", b"", (-1).to_bytes(8, "big", signed=True), b""))

    if replay_port:
        threading.Thread(target=replays, daemon=True).start()
    pack, number = msgspec.msgpack.Encoder(), 0
    for line in sys.stdin:
        asked = json.loads(line)
        if "subscribed" in asked:
            while pub.recv()[:1] != b"\x01":
                pass
        if asked.pop("forget", False):
            kept.clear()
        missed = asked.get("miss")
        batch = missed or asked
        if "events" in batch or "bytes" in batch:
            events = [event(said) for said in batch.get("events", [])]
            payload = pack.encode(EventBatch(time.time(), events, 0)) if events else bytes.fromhex(batch["bytes"])
            kept.append((number, payload))
            if not missed:
                pub.send_multipart((topic, number.to_bytes(8, "big"), payload))
            number += 1
        print(json.dumps({"next": number}), flush=True)


main()
