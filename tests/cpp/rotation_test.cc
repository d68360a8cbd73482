// rotate_rows: the matrix it applies, attention through it, its clip, its errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>

#include "oracle.h"

namespace foscar::test {
namespace {

// [count, dim, dim], each orthogonal: Gram-Schmidt in double over Gaussian rows.
std::vector<float> orthogonal(int count, int dim, unsigned seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<float> all;
  for (int m = 0; m < count; ++m) {
    std::vector<std::vector<double>> rows;
    while (static_cast<int>(rows.size()) < dim) {
      std::vector<double> row(static_cast<std::size_t>(dim));
      for (double& x : row) x = normal(random);
      for (int pass = 0; pass < 2; ++pass) {
        for (const auto& other : rows) {
          const double dot = std::inner_product(row.begin(), row.end(), other.begin(), 0.0);
          for (std::size_t c = 0; c < row.size(); ++c) row[c] -= dot * other[c];
        }
      }
      const double norm = std::sqrt(std::inner_product(row.begin(), row.end(), row.begin(), 0.0));
      for (double& x : row) x /= norm;
      rows.push_back(row);
    }
    for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

// A call on rows [tokens, heads, dim] in FP32.
struct Rows {
  int tokens, heads, dim;
  std::vector<float> x;

  Tensor tensor() { return Tensor::contiguous(x.data(), DType::kF32, {tokens, heads, dim}); }
};

Rows gaussian(int tokens, int heads, int dim, unsigned seed) {
  Rows rows{tokens, heads, dim, {}};
  const RowFn fill = gaussian_rows(seed);
  for (int t = 0; t < tokens; ++t) {
    for (int h = 0; h < heads; ++h) {
      rows.x.resize(rows.x.size() + static_cast<std::size_t>(dim));
      fill(0, h, t, std::span(rows.x).last(static_cast<std::size_t>(dim)));
    }
  }
  return rows;
}

Rows rotated(const TestBackend& backend, Rows rows, const Rotation& rotation, int num_kv_heads,
             bool inverse = false, double clip_ratio = 0.0) {
  Rows out = rows;
  std::fill(out.x.begin(), out.x.end(), std::nanf(""));
  rotate_rows({.x = rows.tensor(),
               .out = out.tensor(),
               .rotation = rotation,
               .num_kv_heads = num_kv_heads,
               .inverse = inverse,
               .clip_ratio = clip_ratio},
              {.backend = backend.name});
  return out;
}

// The identity, so that the result's rows are the matrix.
Rows identity(int dim) {
  Rows rows{dim, 1, dim, std::vector<float>(static_cast<std::size_t>(dim * dim), 0.0f)};
  for (int i = 0; i < dim; ++i) rows.x[static_cast<std::size_t>(i * dim + i)] = 1.0f;
  return rows;
}

bool offered(const TestBackend& backend) { return !backend.is_cuda(); }
#define SKIP_WHERE_NOT_OFFERED() \
  if (!offered(backend())) GTEST_SKIP() << "rotate_rows is not offered by the cuda backend"

TEST_P(Cases, H68_HadamardIsOrthonormalForEveryHeadDim) {
  SKIP_WHERE_NOT_OFFERED();
  const std::pair<int, int> orders[] = {{64, 64},   {80, 16},  {96, 32},   {112, 16},
                                        {128, 128}, {192, 64}, {256, 256}, {512, 512}};
  for (const auto& [dim, order] : orders) {
    EXPECT_EQ(hadamard_order(dim), order);
    const Rows r = rotated(backend(), identity(dim), {}, 1);
    for (int i = 0; i < dim; ++i) {
      for (int j = 0; j < dim; ++j) {
        double dot = 0;
        for (int c = 0; c < dim; ++c) {
          dot += double(r.x[std::size_t(i * dim + c)]) * r.x[std::size_t(j * dim + c)];
        }
        ASSERT_NEAR(dot, i == j ? 1.0 : 0.0, 1e-5) << dim << " " << i << " " << j;
      }
    }
    // Sylvester's matrix itself, not just any orthogonal one: the first row of a block is constant, signs alternate in
    // the second, and nothing leaves the block.
    for (int c = 0; c < dim; ++c) {
      const float entry = c < order ? static_cast<float>(1.0 / std::sqrt(order)) : 0.0f;
      EXPECT_NEAR(r.x[std::size_t(c)], entry, 1e-6f) << dim;
      EXPECT_NEAR(r.x[std::size_t(dim + c)], c % 2 == 0 ? entry : -entry, 1e-6f) << dim;
    }
  }
}

TEST_P(Cases, H68_ScoresSurviveTheRotation) {
  SKIP_WHERE_NOT_OFFERED();
  for (const int dim : {64, 80, 96, 128, 192, 256, 512}) {
    const Rows q = gaussian(5, 8, dim, 1), k = gaussian(5, 2, dim, 2);
    const Rows q_rot = rotated(backend(), q, {}, 2), k_rot = rotated(backend(), k, {}, 2);
    const auto score = [&](const Rows& a, const Rows& b, int t, int h) {
      double dot = 0;
      for (int c = 0; c < dim; ++c) {
        dot += double(a.x[std::size_t((t * 8 + h) * dim + c)]) *
               b.x[std::size_t((t * 2 + h / 4) * dim + c)];
      }
      return dot / std::sqrt(dim);
    };
    for (int t = 0; t < 5; ++t) {
      for (int h = 0; h < 8; ++h) EXPECT_NEAR(score(q_rot, k_rot, t, h), score(q, k, t, h), 1e-4);
    }
    // Its own inverse, in place as well.
    Rows back = q_rot;
    rotate_rows({.x = back.tensor(), .out = back.tensor(), .num_kv_heads = 2, .inverse = true},
                {.backend = backend().name});
    for (std::size_t i = 0; i < q.x.size(); ++i) ASSERT_NEAR(back.x[i], q.x[i], 1e-5);
  }
}

// Every form of the matrices, against double precision.
TEST_P(Cases, H69_PerHeadMatrices) {
  SKIP_WHERE_NOT_OFFERED();
  constexpr int kDim = 64, kKvHeads = 4, kHeads = 16, kTokens = 7;
  const std::vector<float> matrices = orthogonal(kKvHeads, kDim, 3);
  const Rows x = gaussian(kTokens, kHeads, kDim, 4);
  struct Form {
    const char* what;
    DType dtype;
    bool shared, transposed;
  };
  for (const Form& form :
       {Form{"per head", DType::kF32, false, false}, Form{"shared", DType::kF32, true, false},
        Form{"transposed view", DType::kF32, false, true},
        Form{"bfloat16", DType::kBF16, false, false}, Form{"float16", DType::kF16, false, true}}) {
    std::vector<float> values = matrices;
    if (form.transposed) {
      for (int m = 0; m < kKvHeads; ++m) {
        for (int e = 0; e < kDim * kDim; ++e) {
          values[std::size_t(m * kDim * kDim + e % kDim * kDim + e / kDim)] =
              matrices[std::size_t(m * kDim * kDim + e)];
        }
      }
    }
    std::vector<std::uint8_t> bytes = to_bytes(values, form.dtype);
    Tensor matrix = form.shared
                        ? Tensor::contiguous(bytes.data(), form.dtype, {kDim, kDim})
                        : Tensor::contiguous(bytes.data(), form.dtype, {kKvHeads, kDim, kDim});
    if (form.transposed) std::swap(matrix.strides[1], matrix.strides[2]);
    for (const bool inverse : {false, true}) {
      const Rows y = rotated(backend(), x, {.matrix = matrix}, kKvHeads, inverse);
      double error = 0, norm = 0;
      for (int row = 0; row < kTokens * kHeads; ++row) {
        const int m = form.shared ? 0 : row % kHeads / (kHeads / kKvHeads);
        for (int j = 0; j < kDim; ++j) {
          double right = 0;
          for (int i = 0; i < kDim; ++i) {
            const int e = inverse ? j * kDim + i : i * kDim + j;
            right += double(x.x[std::size_t(row * kDim + i)]) *
                     matrices[std::size_t(m * kDim * kDim + e)];
          }
          const double d = y.x[std::size_t(row * kDim + j)] - right;
          error += d * d;
          norm += right * right;
        }
      }
      // Rounded entries are independently off by at most u of themselves, so a product is by u of its norm.
      const double u = form.dtype == DType::kF32 ? kDim * 0x1p-24
                                                 : (form.dtype == DType::kF16 ? 0x1p-11 : 0x1p-8);
      EXPECT_LE(std::sqrt(error / norm), u) << form.what << (inverse ? ", inverse" : "");
    }
  }
}

// K and V rotated differently, quantized, decoded, rotated back: attention over the unquantized values within the format's
// error, and far from it with the wrong matrices.
TEST_P(Cases, H69_AttentionThroughRotations) {
  SKIP_WHERE_NOT_OFFERED();
  Geometry g{.format = KvFormat::parse("k4v4-token-g64-f32"),
             .head_dim = 64,
             .num_qo_heads = 16,
             .num_kv_heads = 4,
             .kv_lens = {40},
             .q_dtype = DType::kF32};
  std::vector<float> rk = orthogonal(4, 64, 5), rv = orthogonal(4, 64, 6);
  const Rotation k_rotation{.matrix = Tensor::contiguous(rk.data(), DType::kF32, {4, 64, 64})};
  const Rotation v_rotation{.matrix = Tensor::contiguous(rv.data(), DType::kF32, {4, 64, 64})};
  const Rows k = gaussian(40, 4, 64, 7), v = gaussian(40, 4, 64, 8);
  Rows q{1, 16, 64, gaussian_q(g, 9)};
  const auto error = [&](const Rotation& back) {
    const Rows k_rot = rotated(backend(), k, k_rotation, 4),
               v_rot = rotated(backend(), v, v_rotation, 4);
    const auto rows = [](const Rows& from) {
      return [&from](int, int head, int t, std::span<float> row) {
        std::copy_n(from.x.begin() + (t * from.heads + head) * from.dim, from.dim, row.begin());
      };
    };
    const HostCache cache = make_cache(g, rows(k_rot), rows(v_rot));
    const Result r = run_decode(backend(), cache, rotated(backend(), q, k_rotation, 4).x);
    const Rows o = rotated(backend(), {1, 16, 64, r.o}, back, 4, true);
    const Oracle right =
        oracle_attention(g,
                         [&](bool is_v, int, int head, int t, int c) {
                           return double((is_v ? v : k).x[std::size_t((t * 4 + head) * 64 + c)]);
                         },
                         q.x, {});
    double e = 0, n = 0;
    for (std::size_t i = 0; i < right.o.size(); ++i) {
      e += (o.x[i] - right.o[i]) * (o.x[i] - right.o[i]);
      n += right.o[i] * right.o[i];
    }
    return std::sqrt(e / n);
  };
  // 4 bits over N(0, 1) rows of 64: steps of about 5 / 15 sigma, so values are off by 0.1 of their norm.
  EXPECT_LE(error(v_rotation), 0.2);
  EXPECT_GE(error(k_rotation), 0.9);
}

// The rule's own example: 128 channels, ratio 0.96 -> the element at index 122, 0.92 -> 117.
TEST_P(Cases, H69_ClipsAtTheQuantile) {
  SKIP_WHERE_NOT_OFFERED();
  std::vector<float> values(128);
  std::iota(values.begin(), values.end(), 0.0f);
  std::shuffle(values.begin(), values.end(), std::mt19937(1));
  for (std::size_t i = 0; i < values.size(); i += 2) values[i] = -values[i];
  for (const auto& [ratio, index] :
       {std::pair{0.96, 122}, std::pair{0.92, 117}, std::pair{0.0, 127}}) {
    const Rows y = rotated(backend(), {1, 1, 128, values}, {.hadamard_order = 1}, 1, false, ratio);
    for (std::size_t c = 0; c < 128; ++c) {
      EXPECT_EQ(y.x[c], std::clamp(values[c], -float(index), float(index))) << ratio << " " << c;
    }
  }
  // Not finite: left to the quantizer.
  for (const float bad : {std::nanf(""), HUGE_VALF}) {
    std::vector<float> row = values;
    row[7] = bad;
    const Rows y = rotated(backend(), {1, 1, 128, row}, {.hadamard_order = 1}, 1, false, 0.9);
    EXPECT_EQ(std::memcmp(y.x.data(), row.data(), sizeof(float) * 128), 0);
  }
}

// Strides, 16-bit types and rows at the end of a block of four, which must not depend on their neighbours.
TEST_P(Cases, H69_StridedRowsOfEveryType) {
  SKIP_WHERE_NOT_OFFERED();
  std::vector<float> r = orthogonal(2, 80, 11);
  for (const Rotation& rotation :
       {Rotation{}, Rotation{.matrix = Tensor::contiguous(r.data(), DType::kF32, {2, 80, 80})}}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      const Rows x = gaussian(9, 4, 80, 12);
      std::vector<float> wide(9 * 500, 1e30f);
      for (std::size_t t = 0; t < 9; ++t)
        std::copy_n(x.x.begin() + t * 320, 320, wide.begin() + t * 500);
      std::vector<std::uint8_t> bytes = to_bytes(wide, dtype),
                                out = to_bytes(std::vector<float>(9 * 500, 7.0f), dtype);
      const auto view = [&](std::vector<std::uint8_t>& data) {
        Tensor t{.data = data.data(), .dtype = dtype, .device = {}, .ndim = 4};
        t.shape = {3, 3, 4, 80};
        t.strides = {1500, 500, 80, 1};
        return t;
      };
      rotate_rows({.x = view(bytes), .out = view(out), .rotation = rotation, .num_kv_heads = 2},
                  {.backend = backend().name});
      const std::vector<float> got = to_floats(out, dtype);
      const std::vector<float> in = to_floats(to_bytes(x.x, dtype), dtype);
      for (int t = 0; t < 9; ++t) {
        const Rows alone = rotated(
            backend(), {1, 4, 80, {in.begin() + t * 320, in.begin() + (t + 1) * 320}}, rotation, 2);
        const std::vector<float> right = to_floats(to_bytes(alone.x, dtype), dtype);
        for (int i = 0; i < 500; ++i) {
          EXPECT_EQ(got[std::size_t(t * 500 + i)], i < 320 ? right[std::size_t(i)] : 7.0f);
        }
      }
    }
  }
}

TEST(RotationErrors, NameTheArgument) {
  Rows x = gaussian(2, 16, 64, 1), out = x;
  std::vector<float> r = orthogonal(1, 64, 1), many(16 * 64 * 64);
  std::vector<std::int32_t> ints(64 * 64);
  const RotateParams good{.x = x.tensor(), .out = out.tensor(), .num_kv_heads = 4};
  struct Row {
    const char* what;
    std::function<void(RotateParams&)> spoil;
    ErrorKind kind;
    const char *name, *given, *allowed;
  };
  const auto value = ErrorKind::kInvalidArgument, type = ErrorKind::kInvalidType;
  for (const Row& row : {
           Row{"no x", [](RotateParams& p) { p.x = {}; }, value, "x:", "", ""},
           Row{"40", [](RotateParams& p) { p.x.shape[2] = p.out.shape[2] = 40; }, value,
               "head_dim:", "40", "multiples of 16"},
           Row{"order 128", [](RotateParams& p) { p.rotation.hadamard_order = 128; }, value,
               "hadamard_order:", "128 for head_dim 64", "powers of two"},
           Row{"3 matrices",
               [&](RotateParams& p) {
                 p.rotation.matrix = Tensor::contiguous(many.data(), DType::kF32, {3, 64, 64});
               },
               value, "rotation:", "3 in dimension 0", "4 (num_kv_heads)"},
           Row{"width",
               [&](RotateParams& p) {
                 p.rotation.matrix = Tensor::contiguous(many.data(), DType::kF32, {64, 32});
               },
               value, "rotation:", "32", "64 (head_dim of x)"},
           Row{"type",
               [&](RotateParams& p) {
                 p.rotation.matrix = Tensor::contiguous(ints.data(), DType::kI32, {64, 64});
               },
               type, "rotation:", "int32", "float32 or float16 or bfloat16"},
           Row{"device",
               [](RotateParams& p) {
                 p.out.device = {DeviceType::kCuda, 0};
               },
               type, "out:", "CUDA:0", "CPU"},
           Row{"shape", [](RotateParams& p) { p.out.shape[0] = 1; }, value, "out:", "1", "2"},
           Row{"heads", [](RotateParams& p) { p.num_kv_heads = 5; }, value,
               "num_kv_heads:", "5 for 16", "divisor"},
           Row{"ratio", [](RotateParams& p) { p.clip_ratio = 1.0; }, value, "clip_ratio:", "1.0",
               "not including, 1"},
           Row{"NaN", [](RotateParams& p) { p.clip_ratio = std::nan(""); }, value,
               "clip_ratio:", "nan", "0 (off)"},
       }) {
    RotateParams bad = good;
    row.spoil(bad);
    const std::vector<float> before = out.x;
    try {
      rotate_rows(bad);
      ADD_FAILURE() << row.what << ": accepted";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.kind(), row.kind) << text;
      EXPECT_EQ(text.rfind(row.name, 0), 0u) << text;
      EXPECT_NE(text.find(row.given), std::string::npos) << text;
      EXPECT_NE(text.find(row.allowed), std::string::npos) << text;
    }
    EXPECT_EQ(out.x, before) << row.what;
  }
  rotate_rows(good);
}

}  // namespace
}  // namespace foscar::test
