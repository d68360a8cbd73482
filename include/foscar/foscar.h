// The whole public interface.
#pragma once

#include "foscar/append.h"
#include "foscar/backends.h"
#include "foscar/decode.h"
#include "foscar/dtype.h"
#include "foscar/error.h"
#include "foscar/format/affine.h"
#include "foscar/format/kv_format.h"
#include "foscar/format/packing.h"
#include "foscar/layout/page_layout.h"
#include "foscar/layout/paged_kv.h"
#include "foscar/pages.h"
#include "foscar/rotation.h"
#include "foscar/tensor.h"

#define FOSCAR_VERSION "0.1.0"
