// Bad arguments of decode, first part: missing tensors, devices, types. One row per mistake.
#include <gtest/gtest.h>

#include "spoiled_call.h"

namespace foscar::test {
namespace {

TEST(DecodeErrors, TensorsDevicesAndTypes) {
  expect_decode_errors({

      // given
      {"no q", [](Call& c) { c.params.q = {}; }, kValue, {"q:", "nothing", "a tensor"}},
      {"no o", [](Call& c) { c.params.o = {}; }, kValue, {"o:", "nothing", "a tensor"}},
      {"no pool",
       [](Call& c) { c.params.cache.pool = {}; },
       kValue,
       {"pool:", "nothing", "a tensor"}},
      {"rank out of range",
       [](Call& c) { c.params.q.ndim = 9; },
       kValue,
       {"q:", "9 dimensions", "0 to 5"}},
      {"negative extent",
       [](Call& c) { c.params.q.shape[0] = -2; },
       kValue,
       {"q:", "[-2, 8, 128]", "no negative"}},
      {"no table",
       [](Call& c) { c.table() = {}; },
       kValue,
       {"table:", "no page table", "kv_indptr", "block_table"}},
      {"two tables",
       [](Call& c) {
         const PageTable block = c.table();
         c.use_csr();
         c.table().block_table = block.block_table;
         c.table().kv_len = block.kv_len;
       },
       kValue,
       {"table:", "both", "exactly one"}},
      {"half a CSR table",
       [](Call& c) {
         c.use_csr();
         c.table().kv_last_page_len = {};
       },
       kValue,
       {"kv_last_page_len:", "nothing", "a tensor"}},
      {"CSR without indptr",
       [](Call& c) {
         c.use_csr();
         c.table().kv_indptr = {};
       },
       kValue,
       {"kv_indptr:", "nothing", "a tensor"}},
      {"half a block table",
       [](Call& c) { c.table().kv_len = {}; },
       kValue,
       {"kv_len:", "nothing", "a tensor"}},
      // H66: devices
      {"o elsewhere", [](Call& c) { c.params.o.device = kCuda0; }, kType, {"o:", "CUDA:0", "CPU"}},
      {"lse elsewhere",
       [](Call& c) { c.params.lse.device = kCuda0; },
       kType,
       {"lse:", "CUDA:0", "CPU"}},
      {"pool elsewhere",
       [](Call& c) { c.params.cache.pool.device = kCuda0; },
       kType,
       {"pool:", "CUDA:0", "CPU"}},
      {"lengths elsewhere",
       [](Call& c) { c.table().kv_len.device = kCuda0; },
       kType,
       {"kv_len:", "CUDA:0", "CPU"}},
      {"block table elsewhere",
       [](Call& c) { c.table().block_table.device = kCuda0; },
       kType,
       {"block_table:", "CUDA:0", "CPU"}},
      {"indices elsewhere",
       [](Call& c) {
         c.use_csr();
         c.table().kv_indices.device = kCuda0;
       },
       kType,
       {"kv_indices:", "CUDA:0", "CPU"}},
      {"two CUDA devices",
       [](Call& c) {
         for (Tensor* t : {&c.params.q, &c.params.o, &c.params.lse}) t->device = kCuda0;
         c.params.cache.pool.device = {DeviceType::kCuda, 1};
       },
       kType,
       {"pool:", "CUDA:1", "CUDA:0"}},
      // dtypes
      {"q int",
       [](Call& c) { c.params.q.dtype = DType::kI32; },
       kType,
       {"q:", "int32", "bfloat16 or float16 or float32"}},
      {"o narrower than asked",
       [](Call& c) { c.params.o.dtype = DType::kF16; },
       kType,
       {"o:", "float16", "float32"}},
      {"lse half",
       [](Call& c) { c.params.lse.dtype = DType::kF16; },
       kType,
       {"lse:", "float16", "float32"}},
      {"pool int32",
       [](Call& c) { c.params.cache.pool.dtype = DType::kI32; },
       kType,
       {"pool:", "int32", "uint8"}},
      {"H13 int64 lengths",
       [](Call& c) {
         c.table().kv_len.dtype = DType::kI64;
         c.table().kv_len.data = c.wide.data();
       },
       kType,
       {"kv_len:", "int64", "int32"}},
      {"H13 int64 table",
       [](Call& c) {
         c.table().block_table.dtype = DType::kI64;
         c.table().block_table.data = c.wide.data();
       },
       kType,
       {"block_table:", "int64", "int32"}},
      {"H13 int64 indptr",
       [](Call& c) {
         c.use_csr();
         c.table().kv_indptr.dtype = DType::kI64;
       },
       kType,
       {"kv_indptr:", "int64", "int32"}},
      {"H13 16-bit lengths",
       [](Call& c) { c.table().kv_len.dtype = DType::kF16; },
       kType,
       {"kv_len:", "float16", "int32"}},
  });
}

// On a CUDA device types are narrower; the checks come before any look for a device.
TEST(DecodeErrors, CudaTypes) {
  Call call;
  for (Tensor* t : {&call.params.q, &call.params.o, &call.params.lse, &call.params.cache.pool,
                    &call.table().block_table, &call.table().kv_len})
    t->device = kCuda0;
  expect_error(
      {"q FP32 on CUDA", {}, kType, {"q:", "float32", "bfloat16 or float16 on a CUDA device"}},
      call, [&] { decode(call.params); });
  call.params.q.dtype = DType::kF16;
  expect_error({"o FP32 on CUDA", {}, kType, {"o:", "float32", "float16 (the dtype of q)"}}, call,
               [&] { decode(call.params); });
}

TEST(DecodeErrors, UnknownBackend) {
  Call call;
  expect_error({"backend", {}, kValue, {"backend:", "'warp'", "reference"}}, call,
               [&] { decode(call.params, {.backend = "warp"}); });
}

}  // namespace
}  // namespace foscar::test
