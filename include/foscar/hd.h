// FOSCAR_HD marks functions that the host compiler and nvcc's device pass share: format, layout, folding and
// softmax algebra exist once, for every backend.
#pragma once

#if defined(__CUDACC__)
#define FOSCAR_HD __host__ __device__
#else
#define FOSCAR_HD
#endif
