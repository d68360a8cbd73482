// The instructions that C++ does not spell, one per function. Everything else in this folder is plain CUDA C++.
// Fragment layouts are those of the PTX manual; `g = lane / 4`, `h = lane % 4` throughout.
#pragma once

#include <cstdint>

namespace foscar::cuda::ptx {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- mbarrier: completion of asynchronous copies ----------------------------------------------------------------

__device__ inline void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// One arrival that also announces `bytes` of asynchronous copies.
__device__ inline void mbarrier_arrive_expect_tx(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ inline void mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Blocks until the phase of parity `parity` has completed.
__device__ inline void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ready;\n"
      "bra wait;\n"
      "ready:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Copies `bytes` (a multiple of 16) from global to shared memory; both addresses 16-byte aligned. Each byte is read
// once, so it is marked for early eviction.
__device__ inline void bulk_copy(std::uint32_t destination, const void* source, std::uint32_t bytes,
                                 std::uint32_t barrier, std::uint64_t cache_policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(destination),
      "l"(source), "r"(bytes), "r"(barrier), "l"(cache_policy)
      : "memory");
}

// What createpolicy.fractional.L2::evict_first with fraction 1.0 returns: KV is read once.
inline constexpr std::uint64_t kEvictFirst = 0x12F0000000000000ull;

__device__ inline void prefetch_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// ---- matrix fragments -------------------------------------------------------------------------------------------

// Four 8x8 matrices of 16-bit elements (8 rows x 16 bytes). Lane i supplies the address of row i % 8 of
// matrix i / 8; register m holds bytes 4h .. 4h+3 of row g of matrix m.
__device__ inline void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

__device__ inline void ldmatrix_x2(std::uint32_t (&r)[2], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address));
}

// The same, each matrix transposed: register m holds 16-bit word g of rows 2h (low half) and 2h+1 (high half).
__device__ inline void ldmatrix_x4_trans(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// Transposes one 8x8 matrix of 16-bit elements held across the warp.
__device__ inline std::uint32_t movmatrix_trans(std::uint32_t r) {
  std::uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(r));
  return transposed;
}

// d = c + A[16x32, u8] * B[32x8, s8], exact in 32-bit integers.
//   a0: row g, k 4h..4h+3   a1: row g+8   a2: row g, k 16+4h..   a3: row g+8   b0: k 4h.., column g   b1: k 16+4h..
//   c0, c1: row g, columns 2h, 2h+1        c2, c3: row g+8
struct OperandA {
  std::uint32_t a0, a1, a2, a3;
};
__device__ inline void mma_u8s8(std::int32_t (&c)[4], const OperandA& a,
                                const std::uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a.a0), "r"(a.a1), "r"(a.a2), "r"(a.a3), "r"(b[0]), "r"(b[1]));
}

// The same with c = 0, which needs no registers to be cleared.
__device__ inline void mma_u8s8_from_zero(std::int32_t (&d)[4], const OperandA& a,
                                          const std::uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a.a0), "r"(a.a1), "r"(a.a2), "r"(a.a3), "r"(b[0]), "r"(b[1]), "r"(0));
}

// The same with unsigned B.
__device__ inline void mma_u8u8(std::int32_t (&c)[4], const OperandA& a,
                                const std::uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a.a0), "r"(a.a1), "r"(a.a2), "r"(a.a3), "r"(b[0]), "r"(b[1]));
}

// ---- arithmetic -------------------------------------------------------------------------------------------------

// 2^x; relative error below 2^-22, 0 for -inf.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log2(x); -inf for 0 and for subnormals.
__device__ inline float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace foscar::cuda::ptx
