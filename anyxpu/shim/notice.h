// What is said of an operator that the host served.
#pragma once

#include <string>

namespace anyxpu {

// Says once of each operator that it ran on the host; anyxpu/ops/notice.py finds the line of the caller's program.
void notice(const std::string& name);

}  // namespace anyxpu
