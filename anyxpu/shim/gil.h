// Waiting for a device while holding Python's lock can stop the very thread that would end the wait.
#pragma once

#include <Python.h>

namespace anyxpu {

// Gives the GIL up for its scope if this thread holds it; otherwise does nothing.
class GilReleased {
 public:
  GilReleased() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~GilReleased() {
    if (state_) PyEval_RestoreThread(state_);
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace anyxpu
