"""Rules on shapes, strides, dtypes and devices: pure functions of integers and kinds, without an array."""
