"""Programs that tests run on simulated GPUs; each is started by name, in a process of its own."""
