"""The yardstick: whole models of HuggingFace and others, measured as PyTorch's dynamo benchmark does.

``anyxpu bench models`` is the command; :mod:`anyxpu.bench.models.sweep` runs it, a process a model.
"""
