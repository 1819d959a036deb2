"""What others make of Envoy's external processing: gRPC's own Python with the messages that Envoy publishes (xds-protos), held against ours.

usage: ext_proc.py ask PORT [CA]    calls of stdin, a JSON list of steps each line, against a picker; prints what each call was told, a JSON list a line
       ext_proc.py health PORT SERVICE...   what the health service says of each
       ext_proc.py fixtures FOLDER  messages as this codec writes them, and what they hold, for tests that have no Python

A step is {"request_headers": [[name, value], ...]}, {"request_body": text}, {"request_trailers": true}, the same of the response, {"cancel": true}, or {"wait": n}: until
n answers have come. Beside it: "end", "modes": [request, response], "subset": [...] or text, "served": endpoint, "upstream": endpoint.
"""

import json
import pathlib
import queue
import sys
import threading

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf import json_format

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
KINDS = ["request_headers", "request_body", "request_trailers", "response_headers", "response_body", "response_trailers"]
MODES = {"NONE": 0, "STREAMED": 1, "BUFFERED": 2, "BUFFERED_PARTIAL": 3, "FULL_DUPLEX_STREAMED": 4, "GRPC": 5}


def message(step):
    said = pb.ProcessingRequest()
    kind = next(kind for kind in KINDS if kind in step)
    part = getattr(said, kind)
    part.SetInParent()
    if kind.endswith("headers"):
        for name, value in step[kind]:
            line = part.headers.headers.add(key=name)
            if step.get("text"):
                line.value = value
            else:
                line.raw_value = value.encode()
        part.end_of_stream = step.get("end", False)
    elif kind.endswith("body"):
        part.body = step[kind].encode() * step.get("times", 1)
        part.end_of_stream = step.get("end", False)
    if "modes" in step:
        said.protocol_config.request_body_mode = MODES[step["modes"][0]]
        said.protocol_config.response_body_mode = MODES[step["modes"][1]]
    if "subset" in step:
        said.metadata_context.filter_metadata["envoy.lb.subset_hint"].update(
            {"x-gateway-destination-endpoint-subset": step["subset"]}
        )
    if "served" in step:
        said.metadata_context.filter_metadata["envoy.lb"].update({"x-gateway-destination-endpoint-served": step["served"]})
    if "upstream" in step:
        said.attributes["envoy.filters.http.ext_proc"].update({"upstream.address": step["upstream"]})
    said.observability_mode = step.get("observes", False)
    return said


def told(answer):
    """An answer as JSON, with bytes as text, metadata as it is, and only what Envoy would act on."""
    kind = answer.WhichOneof("response")
    found = {"kind": kind}
    part = getattr(answer, kind)
    if kind == "immediate_response":
        mutation = part.headers
        found |= {"status": part.status.code, "body": part.body.decode(), "details": part.details}
    elif kind.endswith("trailers"):
        mutation = part.header_mutation
    else:
        mutation, change = part.response.header_mutation, part.response.body_mutation
        found["clears_route"] = part.response.clear_route_cache
        which = change.WhichOneof("mutation")
        if which == "body":
            found["body"] = change.body.decode()
        elif which == "streamed_response":
            found |= {"streamed": change.streamed_response.body.decode(), "end": change.streamed_response.end_of_stream}
    found["set"] = {option.header.key: option.header.raw_value.decode() for option in mutation.set_headers}
    found["actions"] = sorted({option.append_action for option in mutation.set_headers})
    found["remove"] = list(mutation.remove_headers)
    if answer.HasField("dynamic_metadata"):
        found["metadata"] = json_format.MessageToDict(answer.dynamic_metadata)
    return found


def call(channel, steps):
    came, ended, begun = queue.Queue(), [], threading.Event()
    method = channel.stream_stream(
        PROCESS, request_serializer=lambda message: message.SerializeToString(), response_deserializer=pb.ProcessingResponse.FromString
    )
    answers = []

    def said():
        for step in steps:
            if "wait" in step:
                while len(answers) < step["wait"] and not ended:
                    try:
                        answers.append(came.get(timeout=0.05))
                    except queue.Empty:
                        pass
            elif "cancel" in step:
                # gRPC reads the steps in a thread of its own, perhaps before `running` has its value.
                begun.wait()
                running.cancel()
                return
            else:
                yield message(step)

    running = method(said())
    begun.set()
    status = "OK"
    try:
        for answer in running:
            came.put(answer)
    except grpc.RpcError as error:
        status = f"{error.code().name}: {error.details()}"
    ended.append(True)
    while not came.empty():
        answers.append(came.get())
    return {"status": status, "answers": [told(answer) for answer in answers]}


def ask(port, ca=None):
    if ca:
        channel = grpc.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(pathlib.Path(ca).read_bytes()))
    else:
        channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    for line in sys.stdin:
        print(json.dumps(call(channel, json.loads(line))), flush=True)


def health(port, *services):
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    stub = health_pb2_grpc.HealthStub(grpc.insecure_channel(f"127.0.0.1:{port}"))
    for service in services:
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=20)
            print(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
        except grpc.RpcError as error:
            print(error.code().name)


# What a fixture's name says, and the step that it is of.
HEAD = [[":method", "POST"], [":path", "/v1/completions"], ["x-a", "ä"], ["x-empty", ""]]
REQUESTS = {
    "head": {"request_headers": HEAD, "modes": ["FULL_DUPLEX_STREAMED", "STREAMED"]},
    "head-text": {"request_headers": HEAD[:3], "text": True, "end": True, "modes": ["BUFFERED", "BUFFERED_PARTIAL"]},
    "head-later": {"request_headers": HEAD[:2], "modes": ["GRPC", "NONE"], "observes": True},
    "subset-list": {"request_headers": HEAD[:2], "subset": ["10.0.0.1:8000", " 10.0.0.2:8000, [::1]:9", ""]},
    "subset-text": {"request_headers": HEAD[:2], "subset": "10.0.0.1:8000, 10.0.0.2"},
    "subset-empty": {"request_headers": HEAD[:2], "subset": []},
    "subset-number": {"request_headers": HEAD[:2], "subset": 7},
    "body": {"request_body": "{\"model\": \"m\"}", "end": True},
    "body-nothing": {"request_body": ""},
    "trailers": {"request_trailers": True},
    "served": {"response_headers": [[":status", "200"]], "served": "10.0.0.3:8000", "upstream": "10.0.0.4:8000"},
    "upstream": {"response_headers": [[":status", "429"], ["retry-after", "2"]], "upstream": "10.0.0.4:8000", "end": True},
    "response-body": {"response_body": "data: [DONE]\n\n", "times": 3},
    "response-trailers": {"response_trailers": True},
}


def answers():
    """Answers as this codec writes them."""
    overwrite = 2

    def put(mutation, *headers, remove=()):
        for name, value in headers:
            option = mutation.set_headers.add(append_action=overwrite)
            option.header.key, option.header.raw_value = name, value
        mutation.remove_headers.extend(remove)

    def picked(answer, endpoints):
        answer.dynamic_metadata.update({"envoy.lb": {"x-gateway-destination-endpoint": endpoints}})

    one = pb.ProcessingResponse()
    put(one.request_headers.response.header_mutation, ("x-gateway-destination-endpoint", b"10.0.0.1:8000,10.0.0.2:8000"), remove=["x-b"])
    one.request_headers.response.clear_route_cache = True
    picked(one, "10.0.0.1:8000,10.0.0.2:8000")
    yield "picked", one
    one = pb.ProcessingResponse()
    put(one.request_body.response.header_mutation, ("content-length", b"3"))
    one.request_body.response.body_mutation.body = b"abc"
    one.request_body.response.clear_route_cache = True
    picked(one, "10.0.0.1:8000")
    yield "picked-body", one
    one = pb.ProcessingResponse()
    one.request_trailers.SetInParent()
    picked(one, "10.0.0.1:8000")
    yield "picked-trailers", one
    for kind in ["request_headers", "request_body", "response_headers", "response_body"]:
        one = pb.ProcessingResponse()
        getattr(one, kind).response.SetInParent()
        yield f"goes-on-{kind}", one
    one = pb.ProcessingResponse()
    one.response_trailers.SetInParent()
    yield "goes-on-response_trailers", one
    one = pb.ProcessingResponse()
    one.response_body.response.body_mutation.streamed_response.body = b"data: x\n\n"
    yield "streamed", one
    one = pb.ProcessingResponse()
    piece = one.request_body.response.body_mutation.streamed_response
    piece.body, piece.end_of_stream = b"x" * 300, True
    yield "streamed-end", one
    one = pb.ProcessingResponse()
    one.immediate_response.status.code = 429
    put(one.immediate_response.headers, ("retry-after", b"7"))
    one.immediate_response.body, one.immediate_response.details = b"{}", "why"
    yield "instead", one


def fixtures(folder):
    folder = pathlib.Path(folder)
    held = {}
    for name, step in REQUESTS.items():
        (folder / f"{name}.request").write_bytes(message(step).SerializeToString())
    for name, answer in answers():
        (folder / f"{name}.response").write_bytes(answer.SerializeToString(deterministic=True))
    for file in sorted(folder.glob("**/*.request")):
        said = pb.ProcessingRequest.FromString(file.read_bytes())
        kind = said.WhichOneof("request")
        part = getattr(said, kind)
        found = {"kind": kind, "observes": said.observability_mode}
        if kind.endswith("headers"):
            found |= {
                "headers": [[line.key, (line.raw_value or line.value.encode()).decode()] for line in part.headers.headers],
                "end": part.end_of_stream,
            }
        elif kind.endswith("body"):
            found |= {"body": part.body.decode(), "end": part.end_of_stream}
        if said.HasField("protocol_config"):
            names = {number: name for name, number in MODES.items()}
            config = said.protocol_config
            found["modes"] = [names[config.request_body_mode], names[config.response_body_mode]]
        metadata = {name: json_format.MessageToDict(fields) for name, fields in said.metadata_context.filter_metadata.items()}
        found["metadata"] = metadata
        found["attributes"] = {name: json_format.MessageToDict(fields) for name, fields in said.attributes.items()}
        held[str(file.relative_to(folder))] = found
    (folder / "held.json").write_text(json.dumps(held, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


{"ask": ask, "health": health, "fixtures": fixtures}[sys.argv[1]](*sys.argv[2:])
