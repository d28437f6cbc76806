// Device memory as the host sees it, for the time of one operator.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>
#include <vector>

#include "shim/ops.h"

namespace anyxpu {

// Gives xpu tensors of one device their CPU twins and carries back what was written.
//
//   use(tensor, written) for every argument   which bytes are needed
//   open()                                     waits for the stream; copies where the host cannot reach
//   host(tensor)                               its CPU twin; twins share memory as their originals do
//   fresh(tensor)                              instead: CPU memory of its own, for what is only written
//   ... the CPU kernel runs ...
//   close()                                    carries back what was written or resized
//   result(tensor, op)                         the xpu tensor of what the kernel returned
//   finish()                                   waits for the uploads
class HostMemory {
 public:
  explicit HostMemory(c10::DeviceIndex device);
  ~HostMemory();  // waits like finish() where an error came before it
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  void use(const at::Tensor& tensor, bool written);
  void open();
  at::Tensor host(const at::Tensor& tensor);
  at::Tensor fresh(const at::Tensor& tensor);
  void close();
  at::Tensor result(const at::Tensor& tensor, const std::string& op);
  void finish();

 private:
  // A storage of the device and the CPU storage that stands for its bytes [low, high).
  struct Region {
    c10::Storage device;
    c10::Storage host;
    size_t low = SIZE_MAX, high = 0;
    bool written = false;
    void* opened = nullptr;  // where the CPU storage lay when the kernel began; elsewhere: it was resized
  };
  struct Twin {
    at::Tensor device, host;
    int64_t offset;  // the CPU twin's storage offset when it was made
  };

  void open_region(Region& region);
  void close_region(Region& region);
  void close_twin(const Twin& twin);
  Region* region_of(const at::Tensor& host_tensor);
  int64_t device_offset(const Region& region, const at::Tensor& host_tensor) const;
  c10::Storage upload(const c10::Storage& storage);

  c10::DeviceIndex device_;
  bool shared_;  // the host reads and writes the device's own memory
  bool busy_ = false;
  std::unordered_map<c10::StorageImpl*, Region> regions_;        // by the device's storage
  std::unordered_map<c10::StorageImpl*, c10::Storage> uploads_;  // by the CPU's storage
  std::unordered_map<c10::TensorImpl*, bool> written_;
  std::vector<Twin> written_twins_;
  std::vector<c10::Storage> kept_;  // CPU storages whose uploads are under way
};

}  // namespace anyxpu
