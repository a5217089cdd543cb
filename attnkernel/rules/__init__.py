"""Rules: how the scores of one query become the weights of its keys."""

from ._rules import Entmax as Entmax, Rule as Rule, Softmax as Softmax, Uniform as Uniform
