"""oneDNN on xpu's streams: matrix products and convolutions, through its C API and nothing compiled.

Read in this order: capi (the library and its calls), engine (one engine a device, one stream a queue), primitive
(descriptors, executables, the cache), fallbacks (what oneDNN did not serve, and why), packing (weights that do not
change), matmul, convolution, fused (a convolution and what follows it). Of narrow numbers: quantized and
quantized_plans (scales of both operands), integer (none), weight_only (of the weight alone), eight_bits (floats).
"""
