"""Every public callable, valid values of its arguments, and what may be wrong with each."""
