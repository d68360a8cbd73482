// Page copies on the stream of the call.
#pragma once

#include "dispatch/backend.h"

namespace foscar::cuda {

void copy_pages(const CopyPagesArgs& args);

}  // namespace foscar::cuda
