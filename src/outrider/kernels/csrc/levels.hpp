// Which levels were built and can run here.
#pragma once
#include <string>
#include <vector>

#include "level.hpp"

namespace outrider {

// Best first; never empty, since every build has "portable".
std::vector<const Level*> available_levels();

// Throws std::invalid_argument for a name that cannot run here.
const Level& level_named(const std::string& name);

}  // namespace outrider
