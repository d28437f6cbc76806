// Which device type ATen takes for the one accelerator of the process.
#pragma once

namespace anyxpu {

// From now on xpu is, also where torch was made for CUDA; autograd on CUDA tensors does not work after that. Does
// nothing where torch was not made for CUDA.
void become_accelerator();

}  // namespace anyxpu
