// Choosing a backend by name, and the truth of supported().
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "foscar/foscar.h"

namespace foscar {
namespace {

// Sets FOSCAR_FORCE_BACKEND for one scope.
class Forced {
 public:
  explicit Forced(const char* name) {
    if (const char* old = std::getenv("FOSCAR_FORCE_BACKEND")) old_ = old;
    setenv("FOSCAR_FORCE_BACKEND", name, 1);
  }
  ~Forced() {
    if (old_.empty())
      unsetenv("FOSCAR_FORCE_BACKEND");
    else
      setenv("FOSCAR_FORCE_BACKEND", old_.c_str(), 1);
  }
  Forced(const Forced&) = delete;

 private:
  std::string old_;
};

std::string error_of(const auto& call, ErrorKind kind) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(Backends, TheReferenceIsAlwaysThereAndNeverFirst) {
  const std::vector<BackendInfo> backends = list_backends();
  const auto reference = std::find_if(backends.begin(), backends.end(),
                                      [](const auto& b) { return b.name == "reference"; });
  ASSERT_NE(reference, backends.end());
  EXPECT_TRUE(reference->available);
  for (const BackendInfo& info : backends) EXPECT_FALSE(info.description.empty()) << info.name;
  EXPECT_EQ(resolve_backend(DeviceType::kCpu, "reference"), "reference");
  EXPECT_NE(resolve_backend(DeviceType::kCpu, "cpu"), "reference");
}

TEST(Backends, EnvironmentChoosesAndTheCallOverrides) {
  const Forced forced("reference");
  EXPECT_EQ(resolve_backend(DeviceType::kCpu), "reference");
  EXPECT_EQ(resolve_backend(DeviceType::kCpu, "cpu-scalar"), "cpu-scalar");
}

TEST(Backends, UnknownNamesListTheKnownOnes) {
  for (const char* name : {"gpu", "cpu-", "Reference", "cuda-sm1", " "}) {
    const std::string message =
        error_of([&] { resolve_backend(DeviceType::kCpu, name); }, ErrorKind::kInvalidArgument);
    EXPECT_NE(message.find("backend: unknown name '" + std::string(name) + "'"), std::string::npos)
        << message;
    EXPECT_NE(message.find("reference"), std::string::npos) << message;
    EXPECT_NE(message.find("cpu-scalar"), std::string::npos) << message;
  }
  const Forced forced("no-such-thing");
  EXPECT_NE(error_of([] { resolve_backend(DeviceType::kCpu); }, ErrorKind::kInvalidArgument)
                .find("FOSCAR_FORCE_BACKEND: unknown name 'no-such-thing'"),
            std::string::npos);
}

// CUDA tensors never run on a CPU backend, by name or by default.
TEST(BackendCases, H88_NoSilentChangeOfDevice) {
  for (const char* name : {"reference", "cpu", "cpu-scalar"}) {
    const std::string message =
        error_of([&] { resolve_backend(DeviceType::kCuda, name); }, ErrorKind::kUnsupported);
    EXPECT_NE(message.find(std::string("'") + name + "' takes CPU tensors, got CUDA"),
              std::string::npos)
        << message;
  }
  bool any_cuda = false;
  for (const BackendInfo& info : list_backends())
    any_cuda = any_cuda || (info.device == DeviceType::kCuda && info.available);
  if (any_cuda) return;
  const std::string message =
      error_of([] { resolve_backend(DeviceType::kCuda); }, ErrorKind::kUnsupported);
  EXPECT_NE(message.find("CUDA"), std::string::npos) << message;
}

TEST(BackendCases, H90_SupportedTellsTheTruth) {
  DecodeDesc desc{
      .format = KvFormat::parse("k2v2-token-g128-f32"), .num_qo_heads = 8, .num_kv_heads = 2};
  for (const BackendInfo& info : list_backends()) {
    const Support support = supported(desc, info.name);
    EXPECT_EQ(support.ok, info.available) << info.name << ": " << support.reason;
    if (!support.ok) {
      EXPECT_FALSE(support.reason.empty());
      EXPECT_EQ(error_of([&] { resolve_backend(info.device, info.name); }, ErrorKind::kUnsupported)
                    .empty(),
                false);
    }
    DecodeDesc bad = desc;
    bad.head_dim = 72;
    EXPECT_FALSE(supported(bad, info.name).ok);
    if (info.available) {
      EXPECT_NE(supported(bad, info.name).reason.find("72"), std::string::npos);
    }
    bad = desc;
    bad.format.k.bits = 3;
    EXPECT_FALSE(supported(bad, info.name).ok);
    bad = desc;
    bad.q_dtype = DType::kI32;
    EXPECT_FALSE(supported(bad, info.name).ok);
  }
  EXPECT_FALSE(supported(desc, "no-such-thing").ok);
}

TEST(Backends, CpuNeedsNoWorkspace) {
  EXPECT_EQ(decode_workspace_bytes(0, 1, 8, 2, 128, {}), 0);
  EXPECT_EQ(decode_workspace_bytes(1 << 20, 8, 128, 8, 256, {}), 0);
  // The call may name its backend, so the variable has no say here.
  const Forced forced("no-such-thing");
  EXPECT_EQ(decode_workspace_bytes(1, 1, 8, 2, 128, {}), 0);
}

}  // namespace
}  // namespace foscar
