// A valid decode call to spoil, and what a spoiled one must do: throw an Error whose message begins
// with the argument and holds what was given and what is allowed, and write nothing.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "oracle.h"

namespace foscar::test {

inline constexpr Device kCuda0{DeviceType::kCuda, 0};
inline constexpr ErrorKind kType = ErrorKind::kInvalidType, kValue = ErrorKind::kInvalidArgument;

// A valid call over two requests of 20 and 3 tokens; page_size 16, so 2 + 1 pages.
struct Call {
  Geometry g{.kv_lens = {20, 3}};
  HostCache host = make_cache(g, gaussian_rows(1), gaussian_rows(2));
  std::vector<float> q = gaussian_q(g);
  std::vector<float> q_padded = std::vector<float>(q.size() * 4);
  std::vector<float> o = std::vector<float>(q.size() * 4, 7.0f);
  std::vector<float> lse = std::vector<float>(64, 7.0f);
  std::vector<std::int32_t> block{host.pages[0][0], host.pages[0][1], host.pages[1][0], -1};
  std::vector<std::int32_t> lens{20, 3};
  std::vector<std::int32_t> indptr{0, 2, 3}, indices{block[0], block[1], block[2]}, last{4, 3};
  std::vector<std::int64_t> wide = std::vector<std::int64_t>(8, 0);
  std::vector<std::uint16_t> dense =
      std::vector<std::uint16_t>(static_cast<std::size_t>(host.num_pages) * 2 * 16 * 128, 0);
  DecodeParams params;
  PagedDenseKv kv;

  Call() {
    params.q = Tensor::contiguous(q.data(), DType::kF32, {2, 8, 128});
    params.o = Tensor::contiguous(o.data(), DType::kF32, {2, 8, 128});
    params.lse = Tensor::contiguous(lse.data(), DType::kF32, {2, 8});
    params.cache = {.format = g.format, .head_dim = 128, .page_size = 16, .pool = {}, .table = {}};
    params.cache.pool = Tensor::contiguous(host.pool.data(), DType::kU8,
                                           {host.num_pages, 2, host.layout.page_head_bytes});
    params.cache.table.block_table = Tensor::contiguous(block.data(), DType::kI32, {2, 2});
    params.cache.table.kv_len = Tensor::contiguous(lens.data(), DType::kI32, {2});
    kv.k = Tensor::contiguous(dense.data(), DType::kBF16, {host.num_pages, 2, 16, 128});
    kv.v = kv.k;
    kv.table = params.cache.table;
  }
  PageTable& table() { return params.cache.table; }
  void use_csr() {
    table() = {};
    table().kv_indptr = Tensor::contiguous(indptr.data(), DType::kI32, {3});
    table().kv_indices = Tensor::contiguous(indices.data(), DType::kI32, {3});
    table().kv_last_page_len = Tensor::contiguous(last.data(), DType::kI32, {2});
  }
  bool untouched() const {
    for (float x : o)
      if (x != 7.0f) return false;
    for (float x : lse)
      if (x != 7.0f) return false;
    return true;
  }
};

struct Mistake {
  const char* what;
  std::function<void(Call&)> make;
  ErrorKind kind;
  std::vector<std::string> message;  // the argument, what was given, what is allowed
};

void expect_error(const Mistake& mistake, Call& call, const std::function<void()>& run);
// Each mistake in turn, with a valid call after it that must give the right result.
void expect_decode_errors(const std::vector<Mistake>& mistakes);

}  // namespace foscar::test
