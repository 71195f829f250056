"""The CUDA kernels worth fusing, as raw sources that NVRTC compiles at first use, and what launches them.

A `.cu` file has a few `extern "C"` kernels of one family and a Python module of the same name beside it, which knows
their grids and blocks and takes raw device arrays. Element types are macros: one file serves all dtypes
(`engine.kernels.cuda.launch`). Nothing here knows about tensors; importing compiles nothing and needs no GPU.
"""
