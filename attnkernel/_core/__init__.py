"""What every package uses: validation, parameters, saved files, frames of pandas, sharding."""
