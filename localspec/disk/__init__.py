"""Writing to the disk: files and folders that appear whole or not at all, records with a digest."""
