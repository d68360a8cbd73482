// Names of formats, which combinations exist, and what a page weighs.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "foscar/foscar.h"

namespace foscar {
namespace {

std::string parse_error(const std::string& name) {
  try {
    KvFormat::parse(name);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return {};
}

TEST(Format, NamesSurviveARoundTrip) {
  std::set<std::string> names;
  for (const std::string bits : {"k2v2", "k4v4", "k4v2", "k2v4"}) {
    for (const std::string axis : {"token", "channel", "channel-token", "token-channel"}) {
      for (const std::string group : {"g32", "g64", "g128", "g256"}) {
        for (const std::string params : {"f32", "f16", "bf16"}) {
          const std::string name = bits + "-" + axis + "-" + group + "-" + params;
          EXPECT_EQ(KvFormat::parse(name).name(), name);
          names.insert(name);
        }
      }
    }
  }
  EXPECT_EQ(names.size(), 4u * 4 * 4 * 3);
}

TEST(Format, FieldsOfAName) {
  const KvFormat format = KvFormat::parse("k4v2-channel-token-g64-bf16");
  EXPECT_EQ(format.k.bits, 4);
  EXPECT_EQ(format.v.bits, 2);
  EXPECT_EQ(format.k.axis, QuantAxis::kChannel);
  EXPECT_EQ(format.v.axis, QuantAxis::kToken);
  EXPECT_EQ(format.k.group_size, 64);
  EXPECT_EQ(format.param_dtype, DType::kBF16);
}

TEST(Format, BadNamesSayWhatIsWrong) {
  const struct {
    const char *name, *found;
  } cases[] = {
      {"", "parts"},
      {"k2v2", "1 parts"},
      {"k3v2-token-g128-f32", "bits are 3"},
      {"k8v8-token-g128-f32", "bits are 8"},
      {"k2v1-token-g128-f32", "bits are 1"},
      {"k2v0-token-g128-f32", "bits are 0"},
      {"v2k2-token-g128-f32", "starts with 'v2k2'"},
      {"k2-token-g128-f32", "starts with 'k2'"},
      {"k2v2-row-g128-f32", "axis is 'row'"},
      {"k2v2-token-token-g128-f32", "one axis twice"},
      {"k2v2-token-128-f32", "group is '128'"},
      {"k2v2-token-g-f32", "''"},
      {"k2v2-token-g48-f32", "48"},
      {"k2v2-token-g-32-f32", "axis is 'g'"},
      {"k2v2-token-g128-f64", "'f64'"},
      {"k2v2-token-g128-f32-x", "axis is 'g128'"},
      {"k99999999999v2-token-g128-f32", "not a number"},
  };
  for (const auto& c : cases) {
    const std::string message = parse_error(c.name);
    EXPECT_NE(message.find("format"), std::string::npos) << c.name << " -> " << message;
    EXPECT_NE(message.find(c.found), std::string::npos) << c.name << " -> " << message;
    EXPECT_NE(message.find("expected"), std::string::npos) << c.name << " -> " << message;
  }
  EXPECT_LT(parse_error(std::string(100000, 'k')).size(), 400u);
}

TEST(FormatCases, H43_UnsupportedSizesAreNamed) {
  const KvFormat format = KvFormat::parse("k2v2-token-g32-f32");
  for (int head_dim : {-1, 0, 8, 40, 56, 72, 80, 96, 100, 112, 130, 160, 192, 512, 1024}) {
    const std::string problem = format_problem(format, head_dim, 16);
    EXPECT_NE(problem.find("head_dim: got " + std::to_string(head_dim)), std::string::npos)
        << problem;
    EXPECT_NE(problem.find("64, 128, 256"), std::string::npos) << problem;
  }
  for (int page_size : {-16, 0, 3, 12, 48, 255, 257, 512}) {
    const std::string problem = format_problem(format, 128, page_size);
    EXPECT_NE(problem.find("page_size: got " + std::to_string(page_size)), std::string::npos)
        << problem;
    EXPECT_NE(problem.find("1 .. 256"), std::string::npos) << problem;
  }
}

TEST(FormatCases, H41_GroupsMustDivideHeadDim) {
  KvFormat format = KvFormat::parse("k2v2-token-g128-f32");
  EXPECT_NE(format_problem(format, 64, 16).find("quant_group_size: got 128 for head_dim 64"),
            std::string::npos);
  EXPECT_EQ(format_problem(format, 128, 16), "");
  format.v.group_size = 48;
  EXPECT_NE(format_problem(format, 128, 16).find("quant_group_size: got 48"), std::string::npos);
}

TEST(FormatCases, H30_OtherBitWidthsAreNamed) {
  for (int bits : {-2, 0, 1, 3, 8, 16}) {
    KvFormat format = KvFormat::parse("k2v2-token-g128-f32");
    format.k.bits = bits;
    EXPECT_NE(format_problem(format, 128, 16).find("k_bits: got " + std::to_string(bits)),
              std::string::npos);
    format = KvFormat::parse("k2v2-token-g128-f32");
    format.v.bits = bits;
    EXPECT_NE(format_problem(format, 128, 16).find("v_bits: got " + std::to_string(bits)),
              std::string::npos);
  }
}

TEST(Format, ChannelWiseIsRefusedByName) {
  EXPECT_NE(format_problem(KvFormat::parse("k2v2-channel-g64-f32"), 128, 64).find("k_axis"),
            std::string::npos);
  EXPECT_NE(format_problem(KvFormat::parse("k2v2-token-channel-g64-f32"), 128, 64).find("v_axis"),
            std::string::npos);
}

TEST(FormatCases, H92_BitsPerElementAreTheFormula) {
  const auto bits = [](const char* name, int page_size) {
    return bits_per_element(KvFormat::parse(name), 128, page_size);
  };
  EXPECT_EQ(bits("k2v2-token-g128-f32", 16), 2.5);
  EXPECT_EQ(bits("k2v2-token-g32-f32", 16), 4.0);
  EXPECT_EQ(bits("k4v4-token-g128-f32", 16), 4.5);
  EXPECT_EQ(bits("k4v4-token-g32-f32", 16), 6.0);
  EXPECT_EQ(bits("k2v2-token-g128-f16", 64), 2.25);
  EXPECT_EQ(bits("k4v4-token-g128-bf16", 64), 4.25);
  EXPECT_EQ(bits("k4v2-token-g128-f32", 1), 3.5);
  EXPECT_THROW(bits("k2v2-channel-g64-f32", 64), Error);
}

TEST(FormatCases, H93_PagesAreCountedInBytes) {
  for (int head_dim : {64, 128, 256}) {
    for (int page_size = 1; page_size <= 256; page_size *= 2) {
      for (int group : {32, 64}) {
        for (int k_bits : {2, 4}) {
          for (int v_bits : {2, 4}) {
            for (DType params : {DType::kF32, DType::kF16, DType::kBF16}) {
              const KvFormat format{
                  {k_bits, QuantAxis::kToken, group}, {v_bits, QuantAxis::kToken, group}, params};
              const PageLayout layout = make_page_layout(format, head_dim, page_size);
              const int codes = page_size * head_dim * (k_bits + v_bits) / 8;
              const int pairs = page_size * 2 * (head_dim / group) * 2 * dtype_bytes(params);
              EXPECT_EQ(layout.page_head_bytes, (codes + pairs + 15) / 16 * 16);
              EXPECT_EQ(pool_bytes(layout, 1000, 8), 8000ll * layout.page_head_bytes);
            }
          }
        }
      }
    }
  }
  // Past 2^31 and 2^32 bytes the count stays exact.
  const PageLayout layout = make_page_layout(KvFormat::parse("k4v4-token-g128-f32"), 128, 256);
  EXPECT_EQ(pool_bytes(layout, 1'000'000, 8), 1'000'000ll * 8 * 256 * 144);
}

// Every byte of a block belongs to exactly one code byte or parameter pair, or is padding at the
// end.
TEST(Format, PlanesDoNotOverlap) {
  for (const char* name : {"k2v2-token-g64-f32", "k4v2-token-g32-f16", "k2v4-token-g64-bf16"}) {
    for (int page_size : {1, 2, 16, 64}) {
      const PageLayout layout = make_page_layout(KvFormat::parse(name), 64, page_size);
      std::vector<int> codes(static_cast<std::size_t>(layout.page_head_bytes), 0), params = codes;
      for (const SideLayout* side : {&layout.k, &layout.v}) {
        for (int slot = 0; slot < page_size; ++slot) {
          for (int c = 0; c < 64; ++c)
            ++codes[static_cast<std::size_t>(code_offset(layout, *side, slot, c))];
          for (int c = 0; c < 64; c += side->group_size) {
            for (int i = 0; i < layout.pair_bytes(); ++i) {
              ++params[static_cast<std::size_t>(params_offset(layout, *side, slot, c) + i)];
            }
          }
        }
      }
      int unused = 0;
      for (int i = 0; i < layout.page_head_bytes; ++i) {
        const int code_count = codes[static_cast<std::size_t>(i)];
        const int param_count = params[static_cast<std::size_t>(i)];
        const int owner_bits = i < layout.v.codes_offset ? layout.k.bits : layout.v.bits;
        EXPECT_EQ(code_count, i < layout.k.params_offset ? codes_per_byte(owner_bits) : 0);
        EXPECT_LE(param_count, 1);
        EXPECT_TRUE(code_count == 0 || param_count == 0);
        unused += code_count == 0 && param_count == 0;
      }
      EXPECT_LT(unused, 16) << name;
    }
  }
}

}  // namespace
}  // namespace foscar
