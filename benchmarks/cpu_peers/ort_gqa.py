"""ONNX Runtime's GroupQueryAttention over INT4 and INT8 KV caches, one scale per channel.

A model of one node, built here. The operator appends the token of its call to the cache and then
attends, so the cache holds all tokens but the last; past and present share their memory, as in a
decoding loop. Quantized values are symmetric; at 4 bits a byte holds channel 2i in its low half
and 2i + 1 in its high half, both biased by 8.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from benchmarks.cpu_peers.problem import Problem, bf16_to_float, kHeadDim, kKvHeads, kQoHeads

kLevels = {4: 7.0, 8: 127.0}


def _model(batch: int, kv_len: int, bits: int) -> bytes:
    packed = kHeadDim * bits // 8
    code = TensorProto.UINT8 if bits == 4 else TensorProto.INT8
    cache = (code, [batch, kKvHeads, kv_len, packed])
    row = (TensorProto.FLOAT, [batch, 1, kKvHeads * kHeadDim])
    out = (TensorProto.FLOAT, [batch, 1, kQoHeads * kHeadDim])
    scale = (TensorProto.FLOAT, [kKvHeads * kHeadDim])
    inputs = {
        "query": out,
        "key": row,
        "value": row,
        "past_key": cache,
        "past_value": cache,
        "seqlens_k": (TensorProto.INT32, [batch]),
        "total": (TensorProto.INT32, [1]),
        "k_scale": scale,
        "v_scale": scale,
    }
    names = list(inputs)
    node = helper.make_node(
        "GroupQueryAttention",
        names[:7] + [""] * 5 + names[7:],
        ["out", "present_key", "present_value"],
        domain="com.microsoft",
        num_heads=kQoHeads,
        kv_num_heads=kKvHeads,
        kv_cache_bit_width=bits,
        k_quant_type="PER_CHANNEL",
        v_quant_type="PER_CHANNEL",
    )
    outputs = {"out": out, "present_key": cache, "present_value": cache}
    graph = helper.make_graph(
        [node],
        "decode",
        [helper.make_tensor_value_info(name, *info) for name, info in inputs.items()],
        [helper.make_tensor_value_info(name, *info) for name, info in outputs.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


class OrtGqa:
    def __init__(self, bits: int) -> None:
        self.kernel = f"onnxruntime {onnxruntime.__version__} GroupQueryAttention"
        self.format = f"int{bits} per channel"
        self._bits = bits
        self.limit = {4: 0.7, 8: 0.05}[bits]  # quantization, against the BF16 values

    def prepare(self, problem: Problem) -> None:
        b, n = problem.batch_size, problem.kv_len
        self._problem = problem
        self._feeds = {"query": problem.query.reshape(b, 1, -1)}
        levels = kLevels[self._bits]
        for side, (name, short) in enumerate((("key", "k"), ("value", "v"))):
            packed, last = [], []
            scale = None
            for request in range(b):
                rows = bf16_to_float(problem.rows(request, side))  # [heads, tokens, D]
                if scale is None:  # requests repeat the same values
                    scale = np.abs(rows).max(axis=1) / levels
                last.append(rows[:, -1].reshape(1, -1))
                codes = np.clip(np.rint(rows / scale[:, None]), -levels - 1, levels)
                codes = codes.astype(np.int8)
                if self._bits == 4:
                    biased = (codes + 8).astype(np.uint8)
                    codes = biased[..., 0::2] | biased[..., 1::2] << 4
                packed.append(codes)
            self._feeds[name] = np.stack(last)
            self._feeds[f"past_{name}"] = np.stack(packed)
            self._feeds[f"{short}_scale"] = scale.reshape(-1)
        self._feeds["seqlens_k"] = np.full(b, n - 1, np.int32)
        self._feeds["total"] = np.array([n], np.int32)
        self.kv_bytes = 2.0 * self._feeds["past_key"].nbytes
        self._model = _model(b, n, self._bits)
        self._values = {
            name: onnxruntime.OrtValue.ortvalue_from_numpy(array)
            for name, array in self._feeds.items()
        }
        self._out = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros_like(self._feeds["query"]))

    def set_threads(self, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        # Its threads would otherwise spin on into the turns of the others.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            self._model, options, providers=["CPUExecutionProvider"]
        )
        self._binding = self._session.io_binding()
        for name, value in self._values.items():
            self._binding.bind_ortvalue_input(name, value)
        self._binding.bind_ortvalue_output("out", self._out)
        for name in ("key", "value"):
            self._binding.bind_ortvalue_output(f"present_{name}", self._values[f"past_{name}"])

    def run(self) -> None:
        self._session.run_with_iobinding(self._binding)

    def error(self) -> float:
        return self._problem.error_of(self._out.numpy()[0].reshape(kQoHeads, kHeadDim))

    def release(self) -> None:
        self._session = self._binding = self._values = self._feeds = self._out = None
