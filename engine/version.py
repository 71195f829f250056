"""What PyTorch tells of its build: there is no CUDA toolkit and no ROCm in this one."""

cuda = None
hip = None
