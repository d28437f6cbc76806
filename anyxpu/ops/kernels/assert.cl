/* A condition that the device looks at and the host hears of at its next wait. assertions.cl stands in front of this text. */

/* condition: one byte, 0 where it does not hold. */
__kernel void holds(__global const uchar* condition, __global int* record, int kernel_number) {
  if (get_global_id(0) == 0 && condition[0] == 0) ax_fail(record, kernel_number, 0);
}
