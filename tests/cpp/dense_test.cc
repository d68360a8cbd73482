// decode_dense, the baseline over unquantized pages: right, paged, empty-safe and NaN-safe like the
// low-bit decode.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "oracle.h"

namespace foscar::test {
namespace {

// Runs over pages of `kv_dtype`; unused slots are NaN. Also returns the oracle over the rounded
// rows.
void expect_dense_right(const TestBackend& backend, const Geometry& g, DType kv_dtype,
                        const RunOptions& options = {}) {
  const HostCache pages = empty_cache(g);  // for its page ids only
  const std::size_t row = static_cast<std::size_t>(g.head_dim);
  const std::size_t size =
      static_cast<std::size_t>(pages.num_pages) * g.num_kv_heads * g.page_size * row;
  std::vector<float> k(size, std::numeric_limits<float>::quiet_NaN()), v = k;
  const auto at = [&](int b, int head, int t) {
    const int page =
        pages.pages[static_cast<std::size_t>(b)][static_cast<std::size_t>(t / g.page_size)];
    return ((static_cast<std::size_t>(page) * g.num_kv_heads + head) * g.page_size +
            t % g.page_size) *
           row;
  };
  for (int b = 0; b < g.batch_size(); ++b) {
    for (int head = 0; head < g.num_kv_heads; ++head) {
      for (int t = 0; t < g.kv_lens[static_cast<std::size_t>(b)]; ++t) {
        gaussian_rows(1)(b, head, t, std::span(k).subspan(at(b, head, t), row));
        gaussian_rows(2)(b, head, t, std::span(v).subspan(at(b, head, t), row));
      }
    }
  }
  const std::vector<std::uint8_t> k_bytes = to_bytes(k, kv_dtype), v_bytes = to_bytes(v, kv_dtype);
  k = to_floats(k_bytes, kv_dtype);
  v = to_floats(v_bytes, kv_dtype);

  const std::vector<float> q = gaussian_q(g);
  Place& place = *backend.place;
  const Device device = place.device();
  const DType o_dtype = output_dtype(backend, g, options);
  const std::size_t rows = q.size() / row;
  const auto upload = [&](const auto& values) {
    return Buffer(place, values.data(), values.size() * sizeof(values[0]));
  };
  const Buffer q_buffer = upload(to_bytes(q, g.q_dtype)), k_buffer = upload(k_bytes),
               v_buffer = upload(v_bytes);
  const Buffer o_buffer = upload(to_bytes(std::vector<float>(q.size(), 7.0f), o_dtype));
  const Buffer mask_buffer = upload(options.mask), sinks_buffer = upload(options.sinks);
  const Buffer lse_buffer = upload(std::vector<float>(rows, 7.0f));
  const PlacedCache placed = place_cache(place, pages, options);
  const auto q_like = [&](void* data, DType dtype) {
    return Tensor::contiguous(data, dtype, {g.batch_size(), g.qo_len, g.num_qo_heads, g.head_dim},
                              device);
  };
  const auto kv_like = [&](void* data) {
    return Tensor::contiguous(data, kv_dtype,
                              {pages.num_pages, g.num_kv_heads, g.page_size, g.head_dim}, device);
  };
  const std::int64_t workspace_bytes =
      backend.is_cuda() ? decode_workspace_bytes(g.batch_size(), g.qo_len, g.num_qo_heads,
                                                 g.num_kv_heads, g.head_dim, device)
                        : 0;
  const Buffer workspace =
      upload(std::vector<std::uint8_t>(static_cast<std::size_t>(workspace_bytes), 0));
  decode_dense(
      {.q = q_like(q_buffer.data(), g.q_dtype),
       .cache = {},
       .o = q_like(o_buffer.data(), o_dtype),
       .lse = Tensor::contiguous(lse_buffer.data(), DType::kF32,
                                 {g.batch_size(), g.qo_len, g.num_qo_heads}, device),
       .causal = options.causal,
       .window_left = options.window_left,
       .mask = options.mask.empty() ? Tensor{}
                                    : Tensor::contiguous(mask_buffer.data(), DType::kU8,
                                                         {g.qo_len, g.qo_len}, device),
       .logits_soft_cap = options.soft_cap,
       .sinks = options.sinks.empty() ? Tensor{}
                                      : Tensor::contiguous(sinks_buffer.data(), DType::kF32,
                                                           {g.num_qo_heads}, device),
       .kv_chunk_size = options.kv_chunk_size},
      {.k = kv_like(k_buffer.data()), .v = kv_like(v_buffer.data()), .table = placed.cache.table},
      {.workspace = workspace.data(), .workspace_bytes = workspace_bytes, .backend = backend.name});
  const Result result{to_floats(o_buffer.download(), o_dtype),
                      to_floats(lse_buffer.download(), DType::kF32)};
  const auto value = [&](bool is_v, int b, int head, int t, int c) {
    return static_cast<double>((is_v ? v : k)[at(b, head, t) + static_cast<std::size_t>(c)]);
  };
  // A baseline may round its probabilities to BF16: 2^-9 on top of the usual bound.
  Tolerance tol = tolerance(backend, o_dtype);
  if (!backend.is_reference()) tol.o += 0x1p-9;
  expect_matches(result, oracle_attention(g, value, q, options), tol, g);
}

TEST_P(Decode, DensePages) {
  if (backend().is_cuda()) GTEST_SKIP() << "the cuda backend decodes quantized pages only";
  for (DType kv_dtype : {DType::kBF16, DType::kF16}) {
    for (int head_dim : {64, 128, 256}) {
      for (int page_size : {1, 16, 256}) {
        const Geometry g{.head_dim = head_dim,
                         .page_size = page_size,
                         .kv_lens = {70, 0, 1, 300},
                         .q_dtype = kv_dtype};
        Geometry fitting = g;
        fitting.format = KvFormat::parse(
            "k2v2-token-g64-f32");  // of the page ids' donor; the numbers do not use it
        expect_dense_right(backend(), fitting, kv_dtype, {.csr = page_size == 16});
      }
    }
  }
}

TEST_P(Decode, DenseHeadsAndRows) {
  if (backend().is_cuda()) GTEST_SKIP() << "the cuda backend decodes quantized pages only";
  for (int ratio : {1, 5, 8}) {
    for (int qo_len : {1, 3}) {
      for (int chunk : {0, 64}) {
        const Geometry g{.num_qo_heads = 2 * ratio,
                         .num_kv_heads = 2,
                         .qo_len = qo_len,
                         .kv_lens = {2, 190, 64}};
        for (bool causal : {true, false})
          expect_dense_right(backend(), g, DType::kBF16,
                             {.causal = causal, .kv_chunk_size = chunk});
      }
    }
  }
}

TEST_P(Decode, DenseModifiers) {
  if (backend().is_cuda()) GTEST_SKIP() << "the cuda backend decodes quantized pages only";
  const std::vector<float> sinks{0.5f, -2.0f, 3.0f, 0.0f, 1.0f, -1.0f, 7.0f, -30.0f};
  const std::vector<std::uint8_t> tree{1, 0, 0, 1, 1, 0, 0, 0, 1};
  for (int qo_len : {1, 3}) {
    for (int window_left : {-1, 0, 40, 100}) {
      for (bool masked : {false, true}) {
        const Geometry g{.qo_len = qo_len, .kv_lens = {2, 190, 64, 0, 129}};
        RunOptions options{.window_left = window_left, .soft_cap = 2.0, .sinks = sinks};
        if (masked) options.mask = qo_len == 3 ? tree : std::vector<std::uint8_t>{0};
        expect_dense_right(backend(), g, DType::kBF16, options);
      }
    }
  }
}

}  // namespace
}  // namespace foscar::test
