"""Stands for torchvision where programs want its data sets and transforms: pictures of noise, nothing downloaded."""

from torchvision import datasets as datasets
from torchvision import transforms as transforms
from torchvision import utils as utils
