"""Rules: how the scores of one query become the weights of its keys."""

from ._base import Rule as Rule
from ._entmax import Entmax as Entmax
from ._softmax import Softmax as Softmax
from ._uniform import Uniform as Uniform
