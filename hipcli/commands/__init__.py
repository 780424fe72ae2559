"""The commands of `hip`, one file each: parse, call, show."""
