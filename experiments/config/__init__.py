"""What a config may say: its fields, how it is read, and its errors."""
