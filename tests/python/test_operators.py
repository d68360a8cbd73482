"""The functions and torch.ops.foscar.*: right numbers, one implementation behind both,
torch.compile, numpy.
"""

from __future__ import annotations

import math

import foscar
import numpy
import pytest
import torch
import torch._dynamo.testing
from problem import Problem

LENGTHS = [40, 0, 17, 1, 200]


@pytest.mark.parametrize("format", ["k2v2-token-g128-f32", "k4v4-token-g64-f16"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("qo_len", [1, 3])
def test_decode_is_right(format, dtype, qo_len) -> None:
    problem = Problem(LENGTHS, format=format, dtype=dtype, qo_len=qo_len)
    out, lse = problem.decode(return_lse=True)
    problem.check(out, lse)
    assert out[1].eq(0).all() and lse[1].eq(-math.inf).all()


def test_both_table_forms_give_the_same_bits() -> None:
    problem = Problem(LENGTHS)
    csr = foscar.decode(problem.q, problem.pool, **problem.cache, **problem.csr())
    assert torch.equal(problem.decode(), csr)


def test_given_outputs_are_filled_and_returned() -> None:
    problem = Problem(LENGTHS)
    out = torch.full_like(problem.q, math.nan)
    lse = torch.full(problem.q.shape[:-1], 7.0)
    returned = problem.decode(out=out, lse=lse)
    assert returned[0] is out and returned[1] is lse
    problem.check(out, lse)


def test_dequantize_leaves_rows_beyond_a_request_alone() -> None:
    problem = Problem(LENGTHS)
    options = {**problem.cache, **problem.table}
    k, v = foscar.dequantize(problem.pool, max_kv_len=220, dtype=torch.bfloat16, **options)
    k_out, v_out = torch.full_like(k, 5), torch.full_like(v, 5)
    foscar.dequantize(problem.pool, k_out=k_out, v_out=v_out, **options)
    for request, length in enumerate(LENGTHS):
        assert k[request, length:].eq(0).all() and k_out[request, length:].eq(5).all()
        assert torch.equal(k[request, :length], k_out[request, :length])
        # 4 bits: half a step of at most a fifteenth of the range, and the rounding of the output.
        given = problem.v[request].float()
        step = (given.amax(-1) - given.amin(-1)) / 15
        error = (v[request, :length].float() - given).abs().amax(-1)
        assert (error <= step / 2 + 2**-8 * given.abs().amax(-1)).all()


def test_numpy_arrays_give_the_bits_of_torch() -> None:
    problem = Problem(LENGTHS, dtype=torch.float16)
    out, lse = problem.decode(return_lse=True)
    table = {name: tensor.numpy() for name, tensor in problem.table.items()}
    q, pool = problem.q.numpy(), problem.pool.numpy()
    q.flags.writeable = False  # read-only inputs are as good
    got, got_lse = foscar.decode(q, pool, return_lse=True, **problem.cache, **table)
    assert isinstance(got, numpy.ndarray)
    assert numpy.array_equal(got, out.numpy()) and numpy.array_equal(got_lse, lse.numpy())
    k, v = foscar.dequantize(pool, max_kv_len=200, **problem.cache, **table)
    expected = foscar.dequantize(problem.pool, max_kv_len=200, **problem.cache, **problem.table)
    assert numpy.array_equal(k, expected[0].numpy()) and numpy.array_equal(v, expected[1].numpy())


def append_and_decode(q, k, v, slots, pool, block_table, kv_len):
    cache = {"format": "k4v4-token-g128-f32", "head_dim": 128, "page_size": 16}
    foscar.quantize_append(k, v, slots, pool, **cache)
    return foscar.decode(q, pool, block_table=block_table, kv_len=kv_len, return_lse=True, **cache)


def compile_arguments(lengths: list[int]) -> tuple:
    """A step of decoding: the cache holds all but the newest token of each request."""
    problem = Problem(lengths)
    slots = torch.cat([problem.slots(b, n - 1, n) for b, n in enumerate(lengths)])
    rows = [
        torch.stack([side[b][-1] for b in range(len(lengths))]) for side in (problem.k, problem.v)
    ]
    return problem.q, *rows, slots, problem.pool, problem.block_table, problem.kv_len


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_K27_H91_compiles_once_and_equals_eager(backend) -> None:
    torch.compiler.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
    compiled = torch.compile(append_and_decode, fullgraph=True, dynamic=True, backend=counter)
    # No two extents of the first call are equal: a trace takes equal ones for one and the same.
    compilations = []
    for lengths in ([70, 33, 18], [17, 5, 200, 64, 2], [100, 90, 80, 70, 7]):
        eager_arguments, arguments = compile_arguments(lengths), compile_arguments(lengths)
        out, lse = append_and_decode(*eager_arguments)
        compiled_out, compiled_lse = compiled(*arguments)
        assert torch.equal(out, compiled_out) and torch.equal(lse, compiled_lse)
        assert torch.equal(eager_arguments[4], arguments[4])  # the pool
        compilations.append(counter.frame_count)
    assert compilations == compilations[:1] * 3  # the first call's, and no other


@pytest.mark.parametrize("table_form", ["block_table", "csr"])
def test_K27_H91_opcheck(table_form) -> None:
    problem = Problem(LENGTHS)
    problem.pool[problem.pool.eq(255)] = 0  # opcheck compares buffers, and NaN is unlike itself
    table = problem.table if table_form == "block_table" else problem.csr()
    cache = tuple(problem.cache.values())
    operators = torch.ops.foscar
    out, lse = torch.empty_like(problem.q), torch.empty(problem.q.shape[:-1])
    rows = torch.zeros(len(LENGTHS), 200, problem.num_kv_heads, problem.head_dim)
    slots = torch.tensor([3, -1, 40], dtype=torch.int64)
    check = torch.library.opcheck
    check(operators.decode.default, (problem.q, problem.pool, *cache), table)
    check(operators.decode_out.default, (problem.q, problem.pool, *cache, out, lse), table)
    check(operators.decode_out.default, (problem.q, problem.pool, *cache, out), table)
    check(
        operators.quantize_append.default,
        (problem.k[0][:3], problem.v[0][:3], slots, problem.pool, *cache),
    )
    check(operators.dequantize.default, (problem.pool, *cache, 200, torch.float32), table)
    check(operators.dequantize_out.default, (problem.pool, *cache, rows, rows.clone()), table)
