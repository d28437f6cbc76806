"""``triton.backends.intel``, as Intel's build of Triton has it: the names that programs import from there."""
