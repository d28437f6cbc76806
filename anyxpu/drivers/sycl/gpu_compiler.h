// OpenCL C for a GPU of Level Zero, which takes SPIR-V and native code only: Intel's OpenCL driver shows the same GPU
// and makes native code of it in this process.
#pragma once

#include "modules.h"

namespace anyxpu::sycl_driver {

// Whether there is such a driver for this GPU.
bool compiles_opencl_c(const Device& device);
// Whether that driver knows the device by this OpenCL extension; false also where there is no such driver.
bool supports_extension(const Device& device, const char* name);
// Native code; throws Failure(AX_UNSUPPORTED) where there is no such driver, (AX_BUILD_FAILED, <the log>) else.
std::vector<uint8_t> compile_opencl_c(const Device& device, const Code& code);

}  // namespace anyxpu::sycl_driver
