"""Arrays and who works on them: the seam to NumPy and CuPy, page-locked memory, threads."""
