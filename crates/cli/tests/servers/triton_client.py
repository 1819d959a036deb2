"""Asks a KServe server over gRPC as Triton's own Python client does; prints one line of JSON.
usage: triton_client.py HOST:PORT MODEL REQUESTS [CA.pem]: with the file of an authority over TLS"""
import json
import queue
import sys

import grpc
import numpy as np
import tritonclient.grpc as triton

address, model, requests = sys.argv[1], sys.argv[2], int(sys.argv[3])
authority = sys.argv[4] if len(sys.argv) > 4 else None
client = triton.InferenceServerClient(address, ssl=authority is not None, root_certificates=authority)
told = {
    "live": client.is_server_live(),
    "ready": client.is_server_ready(),
    "model_ready": client.is_model_ready(model),
    "nobody_ready": client.is_model_ready("nobody"),
    "metadata": client.get_model_metadata(model, as_json=True),
    "config": client.get_model_config(model, as_json=True)["config"],
    "index": client.get_model_repository_index(as_json=True),
    "server": client.get_server_metadata(as_json=True)["name"],
}


def tensor(rows):
    one = triton.InferInput("INPUT", [rows, 4], "FP32")
    one.set_data_from_numpy(np.ones((rows, 4), dtype=np.float32))
    return one


told["unary"] = []
for number in range(requests):
    answer = client.infer(model, [tensor(1 + number % 3)], request_id=str(number))
    told["unary"].append([answer.get_response().id, list(answer.as_numpy("OUTPUT").shape)])

came = queue.Queue()
client.start_stream(lambda result, error: came.put((result, error)))
for number in range(requests):
    client.async_stream_infer(model, [tensor(2)], request_id=f"s{number}", enable_empty_final_response=True)
told["streamed"] = []
for _ in range(requests):
    result, error = came.get(timeout=60)
    assert error is None, error
    response = result.get_response()
    told["streamed"].append([response.id, response.parameters["triton_final_response"].bool_param])
client.async_stream_infer(model, [tensor(999)], request_id="large")
told["streamed_error"] = came.get(timeout=60)[1].message()
client.stop_stream()


def fails(ask):
    try:
        ask()
    except triton.InferenceServerException as error:
        return [error.status(), error.message()]


told["too_many_rows"] = fails(lambda: client.infer(model, [tensor(999)]))
told["unknown_model"] = fails(lambda: client.infer("nobody", [tensor(1)]))
if authority:
    with open(authority, "rb") as file:
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(file.read()))
else:
    channel = grpc.insecure_channel(address)
check = channel.unary_unary(
    "/grpc.health.v1.Health/Check", request_serializer=bytes, response_deserializer=bytes)
told["health"] = list(check(b""))
print(json.dumps(told))
