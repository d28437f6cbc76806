// A program of an OpenCL device, from its code to its binary: what CPU modules are made of, and how Intel's OpenCL
// driver is used as a compiler for the GPU that Level Zero shows.
#pragma once

#include <CL/cl.h>

#include <string>
#include <vector>

#include "modules.h"

namespace anyxpu::sycl_driver {

// Throws `status` with what was to be done and OpenCL's name for `code`, unless that is CL_SUCCESS.
void check_cl(cl_int code, const char* what, ax_status status = AX_BUILD_FAILED);
std::string cl_error_name(cl_int code);
// One of a device's texts, such as CL_DEVICE_EXTENSIONS; "" where it does not know the query.
std::string device_text(cl_device_id device, cl_device_info what);
bool has_extension(cl_device_id device, std::string_view name);

class OpenCLProgram {
 public:
  // Creates and builds it; throws Failure(AX_BUILD_FAILED, <the build log>).
  OpenCLProgram(cl_context context, cl_device_id device, const Code& code);
  ~OpenCLProgram();
  OpenCLProgram(const OpenCLProgram&) = delete;
  OpenCLProgram& operator=(const OpenCLProgram&) = delete;

  cl_program handle() const { return program_; }
  std::vector<uint8_t> binary() const;
  std::string kernel_names() const;  // with semicolons between

 private:
  void create(cl_context context, const Code& code);
  void build(const char* options) const;
  std::string build_log() const;

  cl_device_id device_;
  cl_program program_ = nullptr;
};

}  // namespace anyxpu::sycl_driver
