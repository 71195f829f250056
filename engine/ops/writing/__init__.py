"""Writing into memory that exists: in place, `out=`."""
