"""Answers each request six times, 5 ms apart, each request in a thread of its own; with FAIL it breaks off after two."""
import threading
import time
import numpy as np
import triton_python_backend_utils as pb


def answer(request, fails):
    sender = request.get_response_sender()
    for i in range(6):
        time.sleep(0.005)
        if fails and i == 2:
            error = pb.InferenceResponse(error=pb.TritonError("it breaks off, as it was asked to"))
            sender.send(error, flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return
        sender.send(pb.InferenceResponse([
            pb.Tensor("TEXT", np.array([f"drop {i} ".encode()], dtype=object)),
            pb.Tensor("INDEX", np.array([i], dtype=np.int32)),
        ]))
    sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            fail = pb.get_input_tensor_by_name(request, "FAIL")
            fails = fail is not None and bool(fail.as_numpy().reshape(-1)[0])
            threading.Thread(target=answer, args=(request, fails)).start()
        return None
