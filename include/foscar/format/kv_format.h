// KvFormat: what the numbers of a low-bit KV cache are. A value is
//
//     x ~= scale * code + offset,     code in 0 .. 2^bits - 1,
//
// where (scale, offset) belong to a *group* of codes:
//   QuantAxis::kToken    parameters belong to a token; a group is `group_size` consecutive channels of one token
//   QuantAxis::kChannel  parameters belong to a channel; a group is `group_size` consecutive tokens of one channel
//
// Formats have names that parse and print:   k2v2-token-g128-f32      both sides token-wise
//                                            k4v2-token-g64-f16       4-bit K, 2-bit V
//                                            k2v2-channel-token-g32-f16   K channel-wise, V token-wise
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "foscar/dtype.h"
#include "foscar/hd.h"

namespace foscar {

enum class QuantAxis : std::uint8_t { kToken, kChannel };

// One side (K or V) of a format.
struct SideFormat {
  int bits = 2;  // 2 or 4
  QuantAxis axis = QuantAxis::kToken;
  int group_size = 128;  // channels (kToken) or tokens (kChannel) that share (scale, offset)

  bool operator==(const SideFormat&) const = default;
};

struct KvFormat {
  SideFormat k;
  SideFormat v;
  DType param_dtype = DType::kF32;  // of scale and offset: kF32, kF16 or kBF16

  bool operator==(const KvFormat&) const = default;

  // Parses a name. Throws Error{kInvalidArgument} naming the part that is wrong and what is allowed there.
  static KvFormat parse(std::string_view name);
  // The name; parse(name()) == *this for every format that parse can return.
  std::string name() const;
};

// What the library offers. Rows of data, not code: a format that the packing already expresses is added here.
inline constexpr std::array kSupportedBits{2, 4};
inline constexpr std::array kSupportedTokenGroupSizes{32, 64, 128, 256};
inline constexpr std::array kSupportedHeadDims{64, 128, 256};
inline constexpr int kMaxPageSize = 256;

// Empty if a cache of this format, head_dim and page_size (tokens) can exist, else one sentence naming the
// field, its value and the allowed values.
std::string format_problem(const KvFormat& format, int head_dim, int page_size);

// Bits per element (K and V together, parameters included) of a page of this format: 2.5 for
// k2v2-token-g128-f32 at head_dim 128. Throws Error{kInvalidArgument} when format_problem() is not empty.
double bits_per_element(const KvFormat& format, int head_dim, int page_size);

}  // namespace foscar
