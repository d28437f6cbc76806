// What the files share that other libraries' C functions are called by.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#define ANYXPU_EXPORT extern "C" __attribute__((visibility("default")))

// Pointers and integers; those that a function does not take are not looked at.
using anyxpu_sycl_six_words = int (*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

namespace anyxpu::sycl_driver {

// No dnnl_status_t is negative.
constexpr int kException = -1;
constexpr int kNothingTaken = -2;

std::string& exception_of_this_thread();  // what the last one said

// oneDNN's C calls let SYCL's exceptions out (a lost device, memory that ran out), which the foreign-function layer of
// the interpreter cannot bear: they are caught here.
template <typename Call>
int guarded_call(Call&& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    exception_of_this_thread() = error.what();
  } catch (...) {
    exception_of_this_thread() = "an exception that says nothing";
  }
  return kException;
}

}  // namespace anyxpu::sycl_driver
