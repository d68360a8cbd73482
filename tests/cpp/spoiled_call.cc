// See spoiled_call.h.
#include "spoiled_call.h"

namespace foscar::test {

void expect_error(const Mistake& mistake, Call& call, const std::function<void()>& run) {
  try {
    run();
    ADD_FAILURE() << mistake.what << ": no error";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.kind(), mistake.kind) << mistake.what << ": " << message;
    EXPECT_EQ(message.rfind(mistake.message[0], 0), 0u)
        << mistake.what << ": '" << message << "' must begin with the argument";
    for (const std::string& part : mistake.message) {
      EXPECT_NE(message.find(part), std::string::npos)
          << mistake.what << ": '" << message << "' lacks '" << part << "'";
    }
  }
  EXPECT_TRUE(call.untouched()) << mistake.what << ": something was written";
}

void expect_decode_errors(const std::vector<Mistake>& mistakes) {
  for (const Mistake& mistake : mistakes) {
    Call call;
    mistake.make(call);
    expect_error(mistake, call, [&] { decode(call.params); });
    // The next valid call works.
    Call valid;
    decode(valid.params);
    const std::vector<float> o(valid.o.begin(), valid.o.begin() + 2 * 8 * 128),
        lse(valid.lse.begin(), valid.lse.begin() + 16);
    Geometry g = valid.g;
    g.q_dtype = DType::kF32;
    expect_matches({o, lse}, oracle_decode(valid.host, valid.q),
                   tolerance({resolve_backend(DeviceType::kCpu), &cpu_place()}, DType::kF32), g);
  }
}

}  // namespace foscar::test
