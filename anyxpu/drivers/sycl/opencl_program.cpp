#include "opencl_program.h"

#include <array>
#include <string_view>

namespace anyxpu::sycl_driver {
namespace {

struct ErrorName {
  cl_int code;
  const char* name;
};

constexpr std::array<ErrorName, 16> kErrorNames{{
    {CL_DEVICE_NOT_AVAILABLE, "CL_DEVICE_NOT_AVAILABLE"},
    {CL_COMPILER_NOT_AVAILABLE, "CL_COMPILER_NOT_AVAILABLE"},
    {CL_OUT_OF_RESOURCES, "CL_OUT_OF_RESOURCES"},
    {CL_OUT_OF_HOST_MEMORY, "CL_OUT_OF_HOST_MEMORY"},
    {CL_BUILD_PROGRAM_FAILURE, "CL_BUILD_PROGRAM_FAILURE"},
    {CL_LINK_PROGRAM_FAILURE, "CL_LINK_PROGRAM_FAILURE"},
    {CL_INVALID_VALUE, "CL_INVALID_VALUE"},
    {CL_INVALID_BINARY, "CL_INVALID_BINARY"},
    {CL_INVALID_BUILD_OPTIONS, "CL_INVALID_BUILD_OPTIONS"},
    {CL_INVALID_PROGRAM, "CL_INVALID_PROGRAM"},
    {CL_INVALID_PROGRAM_EXECUTABLE, "CL_INVALID_PROGRAM_EXECUTABLE"},
    {CL_INVALID_KERNEL_NAME, "CL_INVALID_KERNEL_NAME"},
    {CL_INVALID_KERNEL_DEFINITION, "CL_INVALID_KERNEL_DEFINITION"},
    {CL_INVALID_KERNEL, "CL_INVALID_KERNEL"},
    {CL_INVALID_OPERATION, "CL_INVALID_OPERATION"},
    {CL_INVALID_COMPILER_OPTIONS, "CL_INVALID_COMPILER_OPTIONS"},
}};

}  // namespace

std::string cl_error_name(cl_int code) {
  for (const ErrorName& entry : kErrorNames) {
    if (entry.code == code) return entry.name;
  }
  return "OpenCL error " + std::to_string(code);
}

void check_cl(cl_int code, const char* what, ax_status status) {
  if (code != CL_SUCCESS) throw Failure(status, std::string("cannot ") + what + ": " + cl_error_name(code));
}

std::string device_text(cl_device_id device, cl_device_info what) {
  size_t size = 0;
  if (clGetDeviceInfo(device, what, 0, nullptr, &size) != CL_SUCCESS || size == 0) return {};
  std::string text(size, '\0');
  clGetDeviceInfo(device, what, size, text.data(), nullptr);
  return text.c_str();
}

bool has_extension(cl_device_id device, std::string_view name) {
  const std::string names = " " + device_text(device, CL_DEVICE_EXTENSIONS) + " ";
  return names.find(" " + std::string(name) + " ") != std::string::npos;
}

OpenCLProgram::OpenCLProgram(cl_context context, cl_device_id device, const Code& code) : device_(device) {
  try {
    create(context, code);
    build(code.options);
  } catch (...) {
    if (program_ != nullptr) clReleaseProgram(program_);
    throw;
  }
}

OpenCLProgram::~OpenCLProgram() { clReleaseProgram(program_); }

std::vector<uint8_t> OpenCLProgram::binary() const {
  size_t size = 0;
  check_cl(clGetProgramInfo(program_, CL_PROGRAM_BINARY_SIZES, sizeof(size), &size, nullptr), "read the binary's size",
           AX_INVALID);
  std::vector<uint8_t> binary(size);
  uint8_t* pointers[] = {binary.data()};
  check_cl(clGetProgramInfo(program_, CL_PROGRAM_BINARIES, sizeof(pointers), pointers, nullptr), "read the binary",
           AX_INVALID);
  return binary;
}

void OpenCLProgram::create(cl_context context, const Code& code) {
  cl_int status = CL_SUCCESS;
  const size_t size = code.bytes;
  switch (code.format) {
    case AX_MODULE_OPENCL_C: {
      const char* text = static_cast<const char*>(code.data);
      program_ = clCreateProgramWithSource(context, 1, &text, &size, &status);
      return check_cl(status, "load OpenCL C");
    }
    case AX_MODULE_SPIRV:
      program_ = clCreateProgramWithIL(context, code.data, size, &status);
      return check_cl(status, "load SPIR-V");
    default: {
      const auto* binary = static_cast<const unsigned char*>(code.data);
      cl_int binary_status = CL_SUCCESS;
      program_ = clCreateProgramWithBinary(context, 1, &device_, &size, &binary, &binary_status, &status);
      check_cl(status, "load native code");
      return check_cl(binary_status, "load native code");
    }
  }
}

void OpenCLProgram::build(const char* options) const {
  const cl_int status = clBuildProgram(program_, 1, &device_, options, nullptr, nullptr);
  if (status == CL_SUCCESS) return;
  const std::string log = build_log();
  if (!log.empty()) throw Failure(AX_BUILD_FAILED, log);
  cl_ulong local = 0;
  clGetDeviceInfo(device_, CL_DEVICE_LOCAL_MEM_SIZE, sizeof(local), &local, nullptr);
  // Intel's driver for GPUs says no more of a kernel whose arrays do not fit.
  const std::string most = status == CL_OUT_OF_RESOURCES
                               ? ": a kernel of it needs more than the device has, of local memory perhaps (" +
                                     std::to_string(local) + " bytes a work-group)"
                               : "";
  throw Failure(AX_BUILD_FAILED, "the OpenCL compiler answers " + cl_error_name(status) + most);
}

std::string OpenCLProgram::build_log() const {
  size_t size = 0;
  clGetProgramBuildInfo(program_, device_, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size);
  std::string log(size, '\0');
  if (size) clGetProgramBuildInfo(program_, device_, CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr);
  while (!log.empty() && (log.back() == '\0' || log.back() == '\n')) log.pop_back();
  return log;
}

std::string OpenCLProgram::kernel_names() const {
  size_t size = 0;
  clGetProgramInfo(program_, CL_PROGRAM_KERNEL_NAMES, 0, nullptr, &size);
  std::string text(size, '\0');
  if (size) clGetProgramInfo(program_, CL_PROGRAM_KERNEL_NAMES, size, text.data(), nullptr);
  return text.c_str();
}

}  // namespace anyxpu::sycl_driver
