//go:build edamodel

// Package tagged is broken under the tag edamodel alone.
package tagged

import "fmt"

// Print prints.
func Print() { fmt.Printf("%d\n", "x") }
