// Runs the suite. Exit code 77 means that FOSCAR_TEST_BACKEND names a backend that is not available
// here.
#include <cstdio>
#include <cstdlib>

#include "harness.h"

namespace foscar::test {
namespace {

std::string backend_label(const testing::TestParamInfo<TestBackend>& info) {
  std::string label = info.param.name;
  for (char& c : label) c = c == '-' ? '_' : c;
  return label;
}

INSTANTIATE_TEST_SUITE_P(On, Cases, testing::ValuesIn(test_backends()), backend_label);
INSTANTIATE_TEST_SUITE_P(On, Decode, testing::ValuesIn(test_backends()), backend_label);
INSTANTIATE_TEST_SUITE_P(On, Append, testing::ValuesIn(test_backends()), backend_label);

}  // namespace
}  // namespace foscar::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (foscar::test::test_backends().empty()) {
    const char* wanted = std::getenv("FOSCAR_TEST_BACKEND");
    std::printf("no backend '%s' is available here\n", wanted == nullptr ? "" : wanted);
    return 77;
  }
  return RUN_ALL_TESTS();
}
