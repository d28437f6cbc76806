"""The exceptions anyxpu raises on purpose. Each says what was asked, why not, and the way out."""

from __future__ import annotations


class AnyxpuError(RuntimeError):
    """Base of all of anyxpu's own errors."""


class KernelError(AnyxpuError):
    """A kernel could not be compiled, loaded or launched.

    Attributes:
        kernel: the kernel's name.
        source: path of its source, left on disk for reading; "" where there is none.
    """

    def __init__(self, kernel: str, source: str, message: str) -> None:
        self.kernel, self.source = kernel, source
        where = f" (source: {source})" if source else ""
        super().__init__(f"kernel {kernel}{where}: {message}")
        self.message = message

    def __reduce__(self) -> tuple[type[KernelError], tuple[str, str, str]]:
        # Compile workers send it to their parent, and Triton copies it.
        return type(self), (self.kernel, self.source, self.message)


class ArgumentError(AnyxpuError, ValueError):
    """An operator was given what does not fit it. torch's own are of either kind, by operator and version."""


class CacheError(AnyxpuError, OSError):
    """A cache folder cannot be used, or a file in it is damaged; the message names it and the way out."""


class UnsupportedOperation(AnyxpuError, NotImplementedError):
    """The kernel or operator uses something this backend does not compile; the message names it."""
