/* --- ax_fail: word for the host of an assertion that does not hold; the first one's stays (see shim/assertions.cpp) */

inline void ax_fail(__global int* record, int kernel_number, int message) {
  if (atomic_cmpxchg((volatile __global int*)record, 0, 1) != 0) return;
  record[1] = kernel_number;
  record[2] = message;
  for (uint axis = 0; axis < 3; ++axis) record[3 + axis] = (int)get_group_id(axis);
  atomic_xchg((volatile __global int*)record + 6, 1);
}
