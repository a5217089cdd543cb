"""Many runs of one config."""
