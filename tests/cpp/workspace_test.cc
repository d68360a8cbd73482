// The workspace of CUDA backends: the size that the library asks for is enough, and nothing less is
// accepted.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "oracle.h"

namespace foscar::test {
namespace {

// The workspace that the library asks for is enough; less, or none, or a misaligned one is an
// error.
TEST_P(Cases, H67_WorkspaceOfTheNeededSize) {
  if (!backend().is_cuda()) GTEST_SKIP() << "only CUDA backends use a workspace";
  const Geometry g{.format = KvFormat::parse("k2v2-token-g64-f32"),
                   .head_dim = 256,
                   .num_qo_heads = 64,
                   .num_kv_heads = 4,
                   .kv_lens = std::vector<int>(528, 64)};
  Place& place = *backend().place;
  const Device device = place.device();
  const std::int64_t needed = decode_workspace_bytes(g.batch_size(), 1, 64, 4, 256, device);
  const HostCache host = make_cache(g, gaussian_rows(1), gaussian_rows(2));
  const PlacedCache placed = place_cache(place, host, {});
  const std::vector<std::uint8_t> q = to_bytes(gaussian_q(g), g.q_dtype), poison(q.size(), 0xFF),
                                  zeros(static_cast<std::size_t>(needed) + 256, 0);
  const Buffer q_buffer(place, q.data(), q.size()), o_buffer(place, poison.data(), poison.size()),
      workspace(place, zeros.data(), zeros.size());
  const auto rows = [&](const Buffer& buffer) {
    return Tensor::contiguous(buffer.data(), g.q_dtype, {g.batch_size(), 64, 256}, device);
  };
  const DecodeParams params{
      .q = rows(q_buffer), .cache = placed.cache, .o = rows(o_buffer), .lse = {}};
  const auto message = [&](void* data, std::int64_t bytes) -> std::string {
    try {
      decode(params, {.workspace = data, .workspace_bytes = bytes, .backend = backend().name});
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  };
  const std::string size = std::to_string(needed);
  for (const auto& [data, bytes, given] :
       {std::tuple{workspace.data(), needed - 1, std::to_string(needed - 1)},
        std::tuple{static_cast<void*>(nullptr), needed, std::string("a null pointer")}}) {
    const std::string text = message(data, bytes);
    EXPECT_EQ(text.rfind("workspace:", 0), 0u) << text;
    EXPECT_NE(text.find(given), std::string::npos) << text;
    EXPECT_NE(text.find("at least " + size), std::string::npos) << text;
  }
  EXPECT_NE(
      message(static_cast<std::uint8_t*>(workspace.data()) + 16, needed).find("alignment of 256"),
      std::string::npos);
  EXPECT_EQ(o_buffer.download(), poison) << "an error wrote to o";
  EXPECT_EQ(message(workspace.data(), needed), "");
  EXPECT_NE(o_buffer.download(), poison);
}

}  // namespace
}  // namespace foscar::test
