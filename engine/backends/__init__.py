"""`engine.backends`: switches of libraries that PyTorch computes with, for scripts that set them."""

from engine.backends import cuda as cuda
from engine.backends import cudnn as cudnn
from engine.backends import mps as mps
