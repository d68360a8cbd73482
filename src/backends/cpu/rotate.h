// rotate_rows on the library's threads.
#pragma once

#include "backends/cpu/kernels.h"

namespace foscar::cpu {

void run_rotate_rows(const Kernels& kernels, const RotateArgs& args);

}  // namespace foscar::cpu
