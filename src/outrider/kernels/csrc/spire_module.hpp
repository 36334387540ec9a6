// The part of Python's view that is about SPIRe drafts.
#pragma once
#include <nanobind/nanobind.h>

namespace outrider {

void bind_spire(nanobind::module_& m);

}  // namespace outrider
