// The host path asked for by name, from Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>

namespace anyxpu {

// Runs operator `name`.`overload` on the host, whatever else is registered for it, and counts it as host.
pybind11::object host_call(const std::string& name, const std::string& overload, const pybind11::args& args,
                           const pybind11::kwargs& kwargs);

}  // namespace anyxpu
