"""Arrays and who works on them: the seam to NumPy and CuPy, device memory, page-locked memory."""

from engine.memory import blocks as blocks  # CuPy allocates through it as soon as it is found
