package adapters

// ParseSize reads a number of bytes as configurations write it: 512, 64KiB, 8MiB, 4GiB.
func ParseSize(text string) (int64, error) { return parseSize(text) }
