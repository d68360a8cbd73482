// The CPU backends' threads: where workers run, and that a call leaves the caller's state alone.
#include <gtest/gtest.h>
#include <sched.h>

#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "backends/cpu/thread_pool.h"

namespace foscar::test {
namespace {

cpu_set_t affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  return set;
}

// Workers may run where the caller may, but not on the processor that it is on when it calls.
TEST(ThreadPool, WorkersLeaveTheCallersProcessor) {
  const cpu_set_t allowed = affinity();
  if (cpu::num_threads() < 2) GTEST_SKIP() << "one processor, or FOSCAR_NUM_THREADS is 1";
  const std::thread::id caller = std::this_thread::get_id();
  std::mutex mutex;
  std::vector<cpu_set_t> workers;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  // The caller's pieces wait until a worker has had one.
  cpu::parallel_for(8, [&](std::int64_t) {
    if (std::this_thread::get_id() != caller) {
      const std::lock_guard guard(mutex);
      workers.push_back(affinity());
      return;
    }
    while (std::chrono::steady_clock::now() < until) {
      {
        const std::lock_guard guard(mutex);
        if (!workers.empty()) return;
      }
      std::this_thread::yield();
    }
  });
  ASSERT_FALSE(workers.empty()) << "no worker came within 20 seconds";
  for (const cpu_set_t& set : workers) {
    cpu_set_t both;
    CPU_AND(&both, &set, &allowed);
    EXPECT_TRUE(CPU_EQUAL(&both, &set));
    EXPECT_EQ(CPU_COUNT(&set), CPU_COUNT(&allowed) - 1);
  }
  const cpu_set_t after = affinity();
  EXPECT_TRUE(CPU_EQUAL(&after, &allowed)) << "the caller's own affinity changed";
}

}  // namespace
}  // namespace foscar::test
