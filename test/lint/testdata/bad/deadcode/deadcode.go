// Command deadcode has an exported function that no program calls.
package main

func main() {}

// Unreached is reached by nothing.
func Unreached() {}
