// Rotation files. data/rotation_v1.pt and _v2.pt were written by torch.save (torch 2.13) with random orthogonal matrices of
// 8 x 8: layers 0 and 3 of one matrix, layers 0 and 1 of two.
#include "io/rotation_file.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "foscar/error.h"
#include "io/restricted_pickle.h"

namespace foscar::io {
namespace {

std::string data(const char* name) { return std::string(FOSCAR_TEST_DATA) + "/" + name; }

std::string scratch(const std::string& name) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  return testing::TempDir() + "foscar_" + test->name() + "_" + name;
}

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string write_all(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

TEST(RotationFile, ReadsVersion1) {
  const RotationFile file = read_rotation_pt(data("rotation_v1.pt"));
  EXPECT_EQ(file.objective, "qqt_r_h_pbr");
  ASSERT_EQ(file.layers.size(), 2u);
  for (const int id : {0, 3}) {
    const LayerRotation& layer = file.layers.at(id);
    EXPECT_FALSE(layer.per_kv_head);
    EXPECT_EQ(layer.head_dim, 8);
    ASSERT_EQ(layer.matrix.size(), 64u);
    EXPECT_LE(orthogonality_error(layer), 1e-6);
  }
  // Typed from what torch prints.
  EXPECT_EQ(file.layers.at(0).matrix[0], -0.5128094553947449f);
  EXPECT_EQ(file.layers.at(0).matrix[1], 0.0627467930316925f);
  EXPECT_EQ(file.layers.at(3).matrix[63], 0.021189313381910324f);
}

TEST(RotationFile, ReadsVersion2) {
  const RotationFile file = read_rotation_pt(data("rotation_v2.pt"));
  EXPECT_EQ(file.objective, "sst_r_h_pbr");
  ASSERT_EQ(file.layers.size(), 2u);
  const LayerRotation& layer = file.layers.at(1);
  EXPECT_TRUE(layer.per_kv_head);
  EXPECT_EQ(layer.num_matrices, 2);
  ASSERT_EQ(layer.matrix.size(), 128u);
  EXPECT_EQ(layer.matrix[0], -0.7315346002578735f);
  EXPECT_EQ(layer.matrix[127], 0.2935750186443329f);
}

TEST(RotationFile, SafetensorsRoundTrip) {
  for (const char* name : {"rotation_v1.pt", "rotation_v2.pt"}) {
    const RotationFile file = read_rotation_pt(data(name));
    const std::string path = scratch(name);
    write_rotation_safetensors(path, file);
    const RotationFile again = read_rotation_safetensors(path);
    EXPECT_EQ(again.objective, file.objective);
    ASSERT_EQ(again.layers.size(), file.layers.size());
    for (const auto& [id, layer] : file.layers) {
      EXPECT_EQ(again.layers.at(id).matrix, layer.matrix);
      EXPECT_EQ(again.layers.at(id).per_kv_head, layer.per_kv_head);
    }
    std::filesystem::remove(path);
  }
}

// A pickle that would run a command names it in the error and runs nothing; in the plain and in the protocol 4 form.
TEST(RotationFile, NothingIsExecuted) {
  const std::string marker = scratch("marker");
  const std::string command = "touch " + marker;
  const std::string text = std::string("X") + char(command.size()) + std::string(3, '\0') + command;
  for (const std::string& program :
       {"\x80\x02"
        "cposix\nsystem\n" +
            text + "\x85R.",
        std::string("\x80\x04\x8c\x05posix\x8c\x06system\x93") + text + "\x85R."}) {
    try {
      RestrictedPickle("file.pt",
                       {reinterpret_cast<const std::uint8_t*>(program.data()), program.size()});
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kFile);
      EXPECT_NE(std::string(error.what()).find("posix system"), std::string::npos) << error.what();
    }
  }
  EXPECT_FALSE(std::filesystem::exists(marker));
}

// Cut at every length, and every byte changed: an Error, or a file whose matrices are still orthogonal.
TEST(RotationFile, DamagedFilesAreErrors) {
  const std::string good = read_all(data("rotation_v2.pt"));
  ASSERT_GT(good.size(), 3000u);
  const std::string path = scratch("damaged.pt");
  int refused = 0;
  const auto attempt = [&](const std::string& bytes) {
    try {
      const RotationFile file = read_rotation_pt(write_all(path, bytes));
      for (const auto& [id, layer] : file.layers)
        EXPECT_LE(orthogonality_error(layer), kMaxOrthogonalityError);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kFile) << error.what();
      ++refused;
    }
  };
  for (std::size_t length = 0; length < good.size(); length += length < 600 ? 1 : 7)
    attempt(good.substr(0, length));
  EXPECT_GT(refused, 900);
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ std::array{1, 0x80, 0xff}[at % 3]);
    attempt(bytes);
  }
  std::filesystem::remove(path);
}

TEST(RotationFile, MatricesMustBeOrthogonal) {
  std::string bytes = read_all(data("rotation_v1.pt"));
  const float first = -0.5128094553947449f, changed = 0.6f;
  const std::size_t at = bytes.find(std::string(reinterpret_cast<const char*>(&first), 4));
  ASSERT_NE(at, std::string::npos);
  std::memcpy(bytes.data() + at, &changed, 4);
  const std::string path = write_all(scratch("skew.pt"), bytes);
  try {
    read_rotation_pt(path);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("rotation of layer 0"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("orthogonal"), std::string::npos) << error.what();
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace foscar::io
